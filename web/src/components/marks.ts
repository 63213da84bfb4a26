/** What the marks of tokens in a running text do with a pointer and with keys. */

import type { directionOf } from '../draw/direction';

/** The token whose mark an event happened in, or null. */
export function tokenOf(event: Event): number | null {
  const mark = (event.target as Element).closest<HTMLElement>('[data-token]');
  return mark ? Number(mark.dataset.token) : null;
}

/** Whether a key presses the mark it is on: a mark that is no button does not do it by itself. */
function presses(event: KeyboardEvent): boolean {
  return (event.key === 'Enter' || event.key === ' ') && (event.target as Element).matches('[data-token][role]');
}

/** Picks by Enter and Space, and goes to the next or previous of `count` tokens by arrows. */
export function onmarkkey(
  event: KeyboardEvent,
  at: number,
  count: number,
  direction: ReturnType<typeof directionOf>,
  does: { pick: () => void; go: (to: number) => void },
): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (presses(event)) {
    event.preventDefault();
    does.pick();
  }
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  does.go(Math.min(count - 1, Math.max(0, at + (direction === 'rtl' ? -by : by))));
}
