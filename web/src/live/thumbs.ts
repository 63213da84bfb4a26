/** Small pictures of all heads on one canvas: whole maps, or the row of one token. */

import { codeOf } from '../draw/scale';
import type { LiveText } from './reading';

/** A small map: codes of `side` x `side` cells. */
export interface Small {
  codes: Uint8Array;
  side: number;
}

/** Paints the map of a head as a square of `size` pixels into an image of some width; nearest cells. */
export function paintMap(image: Uint32Array, width: number, size: number, left: number, top: number, { codes, side }: Small, table: Uint32Array): void {
  for (let y = 0; y < size; y++) {
    const row = Math.floor((y * side) / size) * side;
    for (let x = 0; x < size; x++) image[(top + y) * width + left + x] = table[codes[row + Math.floor((x * side) / size)] as number] as number;
  }
}

/** A row as a small map of its own: every column one key. */
export function rowAsMap(row: ArrayLike<number>): Small {
  const side = row.length;
  const codes = new Uint8Array(side * side);
  const line = Uint8Array.from(row, codeOf);
  for (let at = 0; at < side; at++) codes.set(line, at * side);
  return { codes, side };
}

export function mapOf(live: LiveText, head: number): Small {
  return { codes: Uint8Array.from(live.map(head), codeOf), side: live.count };
}

/** The heads in which a token attends most to one word other than itself; special tokens do not count. */
export function strongest(live: LiveText, token: number, count = 3): number[] {
  const own = live.read.tokens[token]?.word;
  const most = live.layerOf.map((_, head) => {
    let best = 0;
    live.row(head, token).forEach((p, key) => {
      const other = live.read.tokens[key];
      if (other && other.category !== 'special' && other.category !== 'punctuation' && other.word !== own) best = Math.max(best, p);
    });
    return { head, best };
  });
  return most.sort((one, other) => other.best - one.best).slice(0, count).map(({ head }) => head);
}

/** The strongest edges of a head between words, for arcs: at most `most`, each at least `least`. */
export function edgesOf(live: LiveText, head: number, least = 0.1, most = 60): { query: number; key: number; weight: number }[] {
  const { tokens } = live.read;
  const found: { query: number; key: number; weight: number }[] = [];
  for (let query = 0; query < live.count; query++) {
    if (tokens[query]?.special) continue;
    live.row(head, query).forEach((weight, key) => {
      if (key !== query && weight >= least) found.push({ query, key, weight });
    });
  }
  return found.sort((one, other) => other.weight - one.weight).slice(0, most);
}
