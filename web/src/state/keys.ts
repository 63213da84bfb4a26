/** What each key does; the help lists the same table. */

export type Action =
  | { do: 'layer' | 'head' | 'query' | 'key' | 'zoom'; by: number }
  | { do: 'fit' | 'side' | 'help' | 'release' };

export interface Binding {
  key: string;
  /** How the help writes it; keys of one meaning share a line there. */
  shown: string;
  means: string;
  action: Action;
  /** Works only while the map or the flow has the focus, where it does not scroll the page. */
  local: boolean;
}

export const BINDINGS: readonly Binding[] = [
  { key: '[', shown: '[', means: 'previous, next layer', action: { do: 'layer', by: -1 }, local: false },
  { key: ']', shown: ']', means: 'previous, next layer', action: { do: 'layer', by: 1 }, local: false },
  { key: ',', shown: ',', means: 'previous, next head', action: { do: 'head', by: -1 }, local: false },
  { key: '.', shown: '.', means: 'previous, next head', action: { do: 'head', by: 1 }, local: false },
  { key: 'ArrowUp', shown: '↑', means: 'previous, next query (row)', action: { do: 'query', by: -1 }, local: true },
  { key: 'ArrowDown', shown: '↓', means: 'previous, next query (row)', action: { do: 'query', by: 1 }, local: true },
  { key: 'ArrowLeft', shown: '←', means: 'previous, next key (column)', action: { do: 'key', by: -1 }, local: true },
  { key: 'ArrowRight', shown: '→', means: 'previous, next key (column)', action: { do: 'key', by: 1 }, local: true },
  { key: 'Escape', shown: 'Esc', means: 'release the chosen key', action: { do: 'release' }, local: true },
  { key: '+', shown: '+', means: 'larger, smaller cells', action: { do: 'zoom', by: 1 }, local: false },
  { key: '-', shown: '−', means: 'larger, smaller cells', action: { do: 'zoom', by: -1 }, local: false },
  { key: '0', shown: '0', means: 'fit the map', action: { do: 'fit' }, local: false },
  { key: 't', shown: 't', means: 'flow or table', action: { do: 'side' }, local: false },
  { key: '?', shown: '?', means: 'this help', action: { do: 'help' }, local: false },
];

/** The action of a key press; `inside` says whether the map or the flow has the focus. */
export function actionOf(event: KeyboardEvent, inside: boolean): Action | null {
  // AltGr types [ and ] on many layouts and is reported as Ctrl with Alt.
  const altGr = event.getModifierState('AltGraph');
  if (event.metaKey || (!altGr && (event.ctrlKey || event.altKey))) return null;
  const found = BINDINGS.find(({ key, local }) => key === event.key && (inside || !local));
  return found?.action ?? null;
}
