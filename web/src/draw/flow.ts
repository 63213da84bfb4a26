/** The flow of one token: which edges are drawn, in which rows, as which curves. */

export interface Edge {
  token: number;
  probability: number;
}

/** The `count` largest values and where they are, largest first; ties in order of position. */
export function largest(values: Float32Array, count: number): Edge[] {
  const top: Edge[] = [];
  values.forEach((probability, token) => {
    const last = top[count - 1];
    if (last !== undefined && probability <= last.probability) return;
    let at = top.length;
    while (at > 0 && probability > (top[at - 1] as Edge).probability) at--;
    top.splice(at, 0, { token, probability });
    if (top.length > count) top.pop();
  });
  return top;
}

/** Sum of the probabilities of some edges. */
export function mass(edges: readonly Edge[]): number {
  return edges.reduce((sum, edge) => sum + edge.probability, 0);
}

/** A line of the picture: a token, or a gap of tokens that are not shown. */
export type Row = { token: number } | { gap: number };

/** Texts up to this many tokens are shown whole. */
export const WHOLE_TEXT = 40;

/** Tokens to show, in the order of the text. Long texts show the named ones, with gaps between. */
export function flowRows(tokens: number, named: Iterable<number>): Row[] {
  if (tokens <= WHOLE_TEXT) return Array.from({ length: tokens }, (_, token) => ({ token }));
  const rows: Row[] = [];
  let reached = 0;
  for (const token of [...new Set(named)].sort((a, b) => a - b)) {
    if (token > reached) rows.push({ gap: token - reached });
    rows.push({ token });
    reached = token + 1;
  }
  if (reached < tokens) rows.push({ gap: tokens - reached });
  return rows;
}

/** An SVG path from the left column to the right one, level at both ends. */
export function curve(x0: number, y0: number, x1: number, y1: number): string {
  const middle = (x0 + x1) / 2;
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}`;
}

/** Width of a line in pixels: proportional, with a hair left to see. */
export function lineWidth(probability: number): number {
  return Math.max(0.8, 18 * probability);
}

/** Opacity of a line: faint edges stay visible, strong ones stand out. */
export function lineOpacity(probability: number): number {
  return Math.min(1, 0.18 + 0.82 * Math.sqrt(probability));
}
