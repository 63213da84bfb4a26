/** What each key does; the help and the palette list the same table. */

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
  bind('r', 'replace the chosen word', { do: 'replace' }),
  bind('u', 'undo the last replacement', { do: 'undo' }),
  bind('e', 'save this view', { do: 'export' }),
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
