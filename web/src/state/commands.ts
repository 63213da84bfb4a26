/** What can be found by typing: views, heads, models, settings. */

import type { Explorer } from './explorer.svelte';
import { chooseFile, kindsWords, opensFiles } from './files';
import { type Binding, perform } from './keys';

export interface Command {
  title: string;
  /** The key that does the same, or nothing. */
  shown: string;
  run: () => void;
}

/** Commands for what was typed, the best first. */
export function commandsFor(explorer: Explorer, typed: string, bindings: readonly Binding[]): Command[] {
  const wanted = typed.trim().toLowerCase();
  const direct = placeOf(explorer, wanted);
  const all = [...keyed(explorer, bindings), ...settings(explorer), ...files(explorer)];
  const words = wanted.split(/\s+/).filter(Boolean);
  const fits = all
    .map((command) => ({ command, title: command.title.toLowerCase() }))
    .filter(({ title }) => words.every((word) => title.includes(word)))
    .sort((one, other) => Number(other.title.startsWith(wanted)) - Number(one.title.startsWith(wanted)));
  return [...direct, ...fits.map(({ command }) => command)].slice(0, 12);
}

/** `3 5`, `3.5`, `layer 3 head 5` and `token 12` lead straight there. */
function placeOf(explorer: Explorer, wanted: string): Command[] {
  const reading = explorer.a;
  if (!reading) return [];
  const found = /^(?:l|layer)?\s*(\d+)\s*[\s.,:]\s*(?:h|head)?\s*(\d+)$/.exec(wanted);
  if (found) {
    const [layer, head] = [Number(found[1]), Number(found[2])];
    if (layer < reading.read.layers && head < (reading.read.heads[layer] ?? 0)) {
      return [{ title: `Go to layer ${layer} head ${head}`, shown: '', run: () => explorer.change({ layer, head }) }];
    }
  }
  const token = /^(?:token|query)?\s*(\d+)$/.exec(wanted);
  if (token && Number(token[1]) < reading.count) {
    const query = Number(token[1]);
    return [{ title: `Go to token ${query}, ${reading.names[query]}`, shown: '', run: () => explorer.change({ query }) }];
  }
  if (wanted.length < 2) return [];
  const matches: Command[] = [];
  for (const [query, name] of reading.names.entries()) {
    if (matches.length === 4) break;
    if (!name.toLowerCase().startsWith(wanted)) continue;
    matches.push({ title: `Go to token ${query}, ${name}`, shown: '', run: () => explorer.change({ query }) });
  }
  return matches;
}

function keyed(explorer: Explorer, bindings: readonly Binding[]): Command[] {
  return bindings
    .filter(({ local, action }) => !local && action.do !== 'palette' && !('by' in action))
    .map(({ means, shown, action }) => ({ title: capital(means), shown, run: () => perform(explorer, action) }));
}

function settings(explorer: Explorer): Command[] {
  const themes = (['system', 'light', 'dark'] as const).map((theme) => ({
    title: `Theme: ${theme}`,
    shown: '',
    run: () => explorer.change({ theme }),
  }));
  const scales = (['sqrt', 'log', 'linear'] as const).map((scale) => ({
    title: `Colors: ${{ sqrt: 'square-root', log: 'logarithmic', linear: 'linear' }[scale]} scale`,
    shown: '',
    run: () => explorer.change({ scale }),
  }));
  const models = explorer.models.flatMap(({ name }) => [
    { title: `Model: ${name}`, shown: '', run: () => explorer.change({ model: name }) },
    { title: `Compare with: ${name}`, shown: '', run: () => explorer.change({ beside: name }) },
  ]);
  return [...models, ...scales, ...themes];
}

function files(explorer: Explorer): Command[] {
  const { text, pdf } = opensFiles(explorer);
  return text ? [{ title: `Open ${kindsWords(pdf)}`, shown: '', run: () => chooseFile(explorer) }] : [];
}

function capital(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
