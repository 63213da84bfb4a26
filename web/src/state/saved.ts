/** What a saved page can answer: controls that lead to anything else are not shown in it, or say what is missing. */

import type { PageRequest } from '../api/request';
import * as requests from '../api/requests';
import { SavedSource } from '../api/saved';
import type { Source } from '../api/source';
import { coarsest } from '../draw/tiles';
import { placeOf, tileRequest } from './head.svelte';
import type { Reading } from './reading.svelte';
import { headWords, overOf, type ViewState } from './url';

/** What is shown, and where its answers come from. */
interface Shown {
  source: Source;
  a: Reading | null;
  view: ViewState;
}

/** Whether the answers of all these requests can be had: in a saved page, those that it holds. */
export function canAnswer({ source }: { source: Source }, wanted: readonly PageRequest<unknown>[]): boolean {
  return !(source instanceof SavedSource) || wanted.every(({ path }) => path in source.page.answers);
}

/** Whether the head of a view is there: its map as it would be shown, or its page. */
function holds(explorer: Shown, state: ViewState): boolean {
  const { view, layer, head, pool, more } = state;
  const reading = explorer.a;
  if (!reading) return true;
  const at = { text: reading.id, layer, head };
  if (view === 'head') return canAnswer(explorer, [requests.ablation({ ...at, token: null, how: 'zero', target: 'embedding' })]);
  if (view !== 'map') return true;
  if (more['map.by'] === 'words') return canAnswer(explorer, [requests.wordMap({ text: reading.id, ...placeOf(state) })]);
  return canAnswer(explorer, [tileRequest(reading.id, placeOf(state), pool, coarsest(reading.count))]);
}

/** Why a saved page stays where it is instead of showing a head that is not in it; empty where it can go. */
export function lacking(explorer: Shown, next: ViewState): string {
  const { source, a } = explorer;
  // From what is not there itself, every way leads on.
  if (!(source instanceof SavedSource) || !a || holds(explorer, next) || !holds(explorer, explorer.view)) return '';
  if (overOf(next)) return `The ${headWords(next)} is not in this file. Open it live with: ${source.command}`;
  const all = a.read.heads.flatMap((heads, layer) => Array.from({ length: heads }, (_, head) => ({ layer, head })));
  const held = all.filter((place) => holds(explorer, { ...next, ...place }));
  const what = next.view === 'head' ? 'The page' : next.more['map.by'] === 'words' ? 'The map over words' : 'This map';
  const [only] = held;
  const which = held.length === 1 && only ? `only that of layer ${only.layer}, head ${only.head}` : `${held.length || 'none'} of ${all.length} heads`;
  return `${what} of layer ${next.layer}, head ${next.head} is not in this file, which holds ${which}: it holds all of them only of a short text. Open it live with: ${source.command}`;
}
