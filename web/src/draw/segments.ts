/** Attention between the two texts of a pair: which cells of a map are shown. */

import type { TextRead } from '../api/types';

/** ab: queries of the first text to keys of the second. */
export const EDGES = ['all', 'ab', 'ba', 'aa', 'bb'] as const;
export type Edges = (typeof EDGES)[number];

export const EDGE_NAMES: Record<Edges, string> = { all: 'All', ab: 'A → B', ba: 'B → A', aa: 'Within A', bb: 'Within B' };

/** The text of a token, or of a word: 0, 1, or 2 for a special token, which belongs to neither. */
export function textsOf(read: TextRead, words: boolean): Uint8Array {
  const ofToken = read.tokens.map(({ special, in_pair }) => (special ? 2 : in_pair ? 1 : 0));
  return Uint8Array.from(words ? read.words.map(({ first }) => ofToken[first] ?? 2) : ofToken);
}

/** The texts of the queries and of the keys. */
export function sidesOf(edges: Exclude<Edges, 'all'>): readonly [number, number] {
  return [edges[0] === 'a' ? 0 : 1, edges[1] === 'a' ? 0 : 1];
}

/** A square map with the other cells 0; `renormalized`: what is left of a row sums to 1. */
export function onlyEdges(
  values: Float32Array,
  texts: Uint8Array,
  edges: Exclude<Edges, 'all'>,
  renormalized: boolean,
): { values: Float32Array; kept: number } {
  const [from, to] = sidesOf(edges);
  const count = texts.length;
  const found = new Float32Array(values.length);
  let [kept, rows] = [0, 0];
  for (let row = 0; row < count; row++) {
    if (texts[row] !== from) continue;
    let sum = 0;
    for (let column = 0; column < count; column++) {
      if (texts[column] === to) sum += values[row * count + column] as number;
    }
    const scale = renormalized && sum > 0 ? 1 / sum : 1;
    for (let column = 0; column < count; column++) {
      if (texts[column] === to) found[row * count + column] = (values[row * count + column] as number) * scale;
    }
    kept += sum;
    rows++;
  }
  return { values: found, kept: rows > 0 ? kept / rows : 0 };
}
