/** What each key does; the help and the palette list the same table. */

import type { Explorer } from './explorer.svelte';

export type Action =
  | { do: 'layer' | 'head' | 'query' | 'key' | 'zoom'; by: number }
  | { do: 'fit' | 'weight' | 'pool' | 'help' | 'palette' | 'export' | 'release' | 'replace' | 'undo' }
  | { do: 'view'; view: string };

export interface Binding {
  key: string;
  /** How the help writes it; keys of one meaning share a line there. */
  shown: string;
  means: string;
  action: Action;
  /** Works only while a picture has the focus, where it does not scroll the page. */
  local: boolean;
}

const LAYER = 'previous, next layer';
const HEAD = 'previous, next head';
const QUERY = 'previous, next query (row)';
const KEY = 'previous, next key (column)';
const CELLS = 'larger, smaller cells';

const bind = (key: string, means: string, action: Action, local = false, shown = key): Binding => ({
  key,
  shown,
  means,
  action,
  local,
});

export const BINDINGS: readonly Binding[] = [
  bind('/', 'find a command', { do: 'palette' }),
  bind('[', LAYER, { do: 'layer', by: -1 }),
  bind(']', LAYER, { do: 'layer', by: 1 }),
  bind(',', HEAD, { do: 'head', by: -1 }),
  bind('.', HEAD, { do: 'head', by: 1 }),
  bind('ArrowUp', QUERY, { do: 'query', by: -1 }, true, '↑'),
  bind('ArrowDown', QUERY, { do: 'query', by: 1 }, true, '↓'),
  bind('ArrowLeft', KEY, { do: 'key', by: -1 }, true, '←'),
  bind('ArrowRight', KEY, { do: 'key', by: 1 }, true, '→'),
  bind('Escape', 'deselect the query and key', { do: 'release' }, true, 'Esc'),
  bind('+', CELLS, { do: 'zoom', by: 1 }),
  bind('-', CELLS, { do: 'zoom', by: -1 }, false, '−'),
  bind('0', 'fit the map', { do: 'fit' }),
  bind('n', 'raw or norm-weighted', { do: 'weight' }),
  bind('x', 'pooled cells show the maximum or the mean', { do: 'pool' }),
  bind('1', 'picture: arcs', { do: 'view', view: 'overview' }),
  bind('2', 'picture: map', { do: 'view', view: 'map' }),
  bind('3', 'picture: flow', { do: 'view', view: 'flow' }),
  bind('r', 'replace the chosen word', { do: 'replace' }),
  bind('u', 'undo the last replacement', { do: 'undo' }),
  bind('e', 'share this view', { do: 'export' }),
  bind('?', 'this help', { do: 'help' }),
];

/** Whoever types does not pause for longer between two keys. */
const PAUSE_MS = 700;

/** Keys that belong to typing beside those that write a character. */
const TYPING = ['Shift', 'CapsLock', 'AltGraph', 'Dead', 'Backspace', 'Delete', 'Enter', 'Process', 'Unidentified'];

/**
 * Whether a key was meant for the text box, which the page closed while somebody typed in it. Such keys do
 * nothing; a pause, or a key that writes nothing, says that the next one is meant for the page.
 */
export function stillTyping(event: KeyboardEvent, typing: { closedAt: number | null }): boolean {
  if (typing.closedAt === null) return false;
  const types = event.key.length === 1 || TYPING.includes(event.key);
  const still = types && event.timeStamp - typing.closedAt < PAUSE_MS;
  typing.closedAt = still ? event.timeStamp : null;
  if (still) event.preventDefault();
  return still;
}

/** The action of a key press; `inside` says whether a picture has the focus. */
export function actionOf(event: KeyboardEvent, inside: boolean, bindings: readonly Binding[]): Action | null {
  // AltGr types [ and ] on many layouts and is reported as Ctrl with Alt.
  const altGr = event.getModifierState('AltGraph');
  if (event.metaKey || (!altGr && (event.ctrlKey || event.altKey))) return null;
  const found = bindings.find(({ key, local }) => key === event.key && (inside || !local));
  return found?.action ?? null;
}

/** Does what a key or a command asks for. */
export function perform(explorer: Explorer, action: Action): void {
  if (action.do === 'help' || action.do === 'palette' || action.do === 'export') {
    explorer.dialog = explorer.dialog === action.do ? null : action.do;
    return;
  }
  if (action.do === 'view') return explorer.change({ view: action.view });
  const { view, a } = explorer;
  if (!a) return;
  if (action.do === 'undo') return void explorer.undo();
  const step = (from: number | null, by: number) =>
    from === null ? (by > 0 ? 0 : a.count - 1) : Math.min(a.count - 1, Math.max(0, from + by));
  explorer.point(null);
  switch (action.do) {
    case 'layer':
      return explorer.change({ layer: wrap(view.layer + action.by, a.read.layers) });
    case 'head':
      return explorer.change({ head: wrap(view.head + action.by, explorer.headsOf(view.layer) ?? 1) });
    case 'query':
      return explorer.change({ query: step(view.query, action.by) });
    case 'key':
      return explorer.change({ key: step(view.key, action.by) });
    case 'zoom':
      return explorer.zoomBy(action.by);
    case 'fit':
      return explorer.change({ zoom: null, top: 0, left: 0 });
    case 'weight':
      return explorer.change({ weight: view.weight === 'raw' ? 'norm' : 'raw' });
    case 'pool':
      return explorer.change({ pool: view.pool === 'max' ? 'mean' : 'max' });
    case 'replace':
      explorer.replacing = explorer.source.live;
      return;
    case 'release':
      return explorer.change({ query: null, key: null });
  }
}

/** `index` in 0..count-1, going round. */
export function wrap(index: number, count: number): number {
  return (((index % count) + count) % count) || 0;
}
