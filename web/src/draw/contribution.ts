/** Contributions to one token: rows of rollout and attribution in readable form. */

import type { Token } from '../api/types';
import type { NumberArray } from '../api/binary';
import { largest } from './flow';
import type { Series } from './chart';
import { levelPhrase } from './levels';

/** The token that is asked about when none is chosen: the first mask of the text, else its first token. */
export function questionToken(tokens: readonly Token[]): number {
  const mask = tokens.findIndex(({ special, piece }) => special && /^[[<]\W*mask\W*[\]>]$/i.test(piece));
  return Math.max(0, mask);
}

/** One row of a matrix (rows, columns) that lies row after row. */
export function rowOf({ shape, data }: NumberArray<Float32Array>, row: number): Float32Array {
  const columns = shape[1] ?? 0;
  return data.subarray(row * columns, (row + 1) * columns);
}

/** The shares of a row, which sum to 1 if any value is positive; negative values count as 0. */
export function shares(row: Float32Array): Float32Array {
  const positive = row.map((value) => Math.max(0, value));
  const sum = positive.reduce((total, value) => total + value, 0);
  return sum > 0 ? positive.map((value) => value / sum) : positive;
}

/** The values of the largest tokens of `by` in all rows: one line per token. */
export function courses(values: NumberArray<Float32Array>, by: Float32Array, names: readonly string[], most: number): Series[] {
  const rows = values.shape[0] ?? 0;
  const columns = values.shape[1] ?? 0;
  return largest(by, most)
    .filter(({ probability }) => probability > 0)
    .map(({ token }) => ({
      name: `${token} ${names[token] ?? ''}`,
      points: Array.from({ length: rows }, (_, at) => ({ x: at, y: values.data[at * columns + token] ?? null })),
    }));
}

/** Where a rollout was followed to, in words; the last level is where it starts. */
export function levelWords(level: number, levels: number): string {
  if (level === levels - 1) return 'at the top, where it starts';
  return `down to ${levelPhrase(level)}`;
}
