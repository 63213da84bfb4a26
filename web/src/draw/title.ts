/** The title of the page's tab in the browser: what is looked at, so that tabs and steps of the history differ. */

const MOST = 40;

/** "Map 3.5: The river bank was muddy, so we took…, unmask"; without a head or a text, what is left. */
export function pageTitle(view: string, head: { layer: number; head: number } | null, text: string): string {
  const what = head ? `${view} ${head.layer}.${head.head}` : view;
  const words = beginning(text.trim().replace(/\s+/g, ' '));
  return `${what}${words === '' ? '' : `: ${words}`} · unmask`;
}

/** The first words of a text, as many as there is room for; a first word that is longer is truncated. */
function beginning(text: string): string {
  const characters = [...text];
  if (characters.length <= MOST) return text;
  const first = characters.slice(0, MOST + 1).join('');
  const words = first.slice(0, Math.max(0, first.lastIndexOf(' ')));
  return `${words === '' ? characters.slice(0, MOST).join('') : words}…`;
}
