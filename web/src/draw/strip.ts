/** Long texts are shown in pages of tokens, so that the page stays light. */

import type { Segment } from './words';

export const PAGE = 800;

/** The segments of one page: its tokens, and what lies before each of them. */
export function pageOf(segments: readonly Segment[], page: number): Segment[] {
  const tokens = segments.filter(({ token }) => token !== null).length;
  if (tokens <= PAGE) return [...segments];
  const [first, stop] = [page * PAGE, (page + 1) * PAGE];
  const found: Segment[] = [];
  let waiting: Segment[] = [];
  let passed = 0;
  for (const segment of segments) {
    if (segment.token === null) {
      waiting.push(segment);
      continue;
    }
    passed = segment.token;
    if (passed >= first && passed < stop) found.push(...waiting, segment);
    waiting = [];
  }
  return passed < stop ? [...found, ...waiting] : found;
}
