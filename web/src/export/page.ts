/** The page as a file that needs no server. */

import * as requests from '../api/requests';
import { accepted } from '../api/source';
import type { Explorer } from '../state/explorer.svelte';
import { bodyOf, type Reading } from '../state/reading.svelte';
import { DARES } from '../live/dares';
import { DEFAULTS, formatHash, OF_TEXT } from '../state/url';
import { viewOf, VIEWS } from '../views';

const PAUSE_MS = 250;
/** Tokens of a text whose file holds every view: 3 MB for the default model. */
const SHORT = 45;

/** What was asked for, and all that the open view asks for; with the model, for texts of the reader's own. */
export async function savedPage(explorer: Explorer, withModel = false): Promise<string> {
  const readings = [...explorer.readings, explorer.before].filter((reading) => reading !== null);
  for (const reading of readings) await held(explorer, reading);
  const live = explorer.startShown ? [...explorer.livePaths.values(), ...guesses(explorer)] : [];
  const { view, layer, head, query: token, weight, special } = explorer.view;
  const texts = readings.map(({ id }) => id);
  const looked = readings.filter(({ side }) => side !== 'before').map(({ id }) => id);
  const body = {
    paths: [...new Set([...pathsOf(explorer.asked, texts), ...live])],
    hash: formatHash(explorer.view),
    title: `${explorer.a?.text.slice(0, 60) ?? view} | unmask`,
    views: explorer.startShown ? [DEFAULTS.view] : [],
    ...(withModel && explorer.model ? { live: explorer.model.index } : {}),
    ...(texts.length > 0 ? { look: { texts: looked, views: viewsHeld(explorer), layer, head, token, weight, special } } : {}),
  };
  return new TextDecoder().decode(accepted(await explorer.source.post('export', body)).data);
}

/** The texts that readers guess about; they are read when somebody has guessed. */
function guesses({ model }: Explorer): string[] {
  return model ? DARES.flatMap(({ texts }) => texts.map((text) => requests.live({ model: model.index, text }).path)) : [];
}

/**
 * Views of a shared page: of a short text all that are about it, else the open one and the grid of heads. Features
 * are what the cache of this machine holds, so they are there if they are open.
 */
function viewsHeld(explorer: Explorer): string[] {
  const { view } = explorer.view;
  const longest = Math.max(...explorer.readings.map(({ count }) => count));
  const short = longest <= SHORT ? VIEWS.filter(({ id, needs, ability }) => needs === 'text' && !ability && id !== 'features').map(({ id }) => id) : ['heads'];
  const first = viewOf(view).needs === 'live' ? OF_TEXT : view;
  return [...new Set([first, ...short])];
}

/** What was asked for, without answers about texts that were looked at before. */
export function pathsOf(asked: Iterable<string>, texts: readonly string[]): string[] {
  return [...asked].filter((path) => {
    const [what, first = '', second = ''] = path.split(/[/?]/);
    if (what === 'texts') return texts.includes(first);
    // A saved page has no search: what was found stays here.
    // Nor does it keep every word that was typed: the sentences that are shown are added to these.
    if (what === 'live' || what === 'search' || what === 'index') return false;
    return (what !== 'compare' && what !== 'change') || (texts.includes(first) && texts.includes(second));
  });
}

/** Sends a text again that the server may have dropped, and waits where that begins its analysis anew. */
async function held(explorer: Explorer, reading: Reading): Promise<void> {
  await explorer.post('texts', bodyOf(reading.sent));
  if (!reading.complete) return;
  for (;;) {
    const state = await explorer.fetchFresh(requests.state({ text: reading.id }));
    if (!['waiting', 'reading', 'measuring'].includes(state.phase)) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
