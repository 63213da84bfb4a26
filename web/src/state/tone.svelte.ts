/** Whether the page is light or dark: as chosen, or as the system is set. */

import type { Tone } from '../draw/color';
import type { Theme } from './url';

const query = window.matchMedia('(prefers-color-scheme: dark)');
let systemDark = $state(query.matches);
query.addEventListener('change', (event) => {
  systemDark = event.matches;
});

export function toneOf(theme: Theme): Tone {
  if (theme !== 'system') return theme;
  return systemDark ? 'dark' : 'light';
}
