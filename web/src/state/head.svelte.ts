/** Tiles and exact lines of the head that is looked at, by tokens or by words. */

import { bytesOf, floatsOf } from '../api/binary';
import type { Asked } from '../api/request';
import * as requests from '../api/requests';
import { codeOf } from '../draw/scale';
import { type Place, TILE, type Tile } from '../draw/tiles';
import type { Reading } from './reading.svelte';
import { AT_ONCE, Lines } from './rows.svelte';
import { Tiles } from './tiles.svelte';
import { overOf, type Over, type Pool, type Special, type ViewState, type Weight } from './url';

export interface HeadPlace {
  layer: number;
  head: number;
  weight: Weight;
  special?: Special;
  over?: Over | null;
}

/** What is on the map; whatever the choice of a head does not change has head 0. */
export function placeOf(state: ViewState): HeadPlace {
  const { layer, head, weight, special } = state;
  const over = overOf(state);
  return { layer: over?.startsWith('a') ? 0 : layer, head: over ? 0 : head, weight, special, over };
}

export function keyOf(reading: Reading, at: HeadPlace): string {
  return `${reading.id}/${at.layer}/${at.head}/${at.weight}/${at.special}/${at.over}`;
}

/** Tiles of the map over tokens. */
export function tokenTiles(explorer: Asked, reading: Reading, at: HeadPlace, pool: Pool): Tiles {
  return new Tiles(`${keyOf(reading, at)}/${pool}`, (place) => tileOf(explorer, reading, at, pool, place));
}

/** A tile of the map over tokens; single cells are the same in either way of pooling. */
export function tileRequest(text: string, at: HeadPlace, pool: Pool, { level, y, x }: Place) {
  return requests.tile({ text, ...at, level, y, x, pool: level > 0 && !at.over ? pool : 'max' });
}

/** One tile of the map over tokens. */
export async function tileOf(explorer: Asked, reading: Reading, at: HeadPlace, pool: Pool, place: Place): Promise<Tile> {
  const request = tileRequest(reading.id, at, pool, place);
  const { shape, data } = bytesOf(await explorer.fetch(request), 'codes');
  return { ...place, rows: shape[0] ?? 0, columns: shape[1] ?? 0, codes: data };
}

/** Exact rows: where each query looks. */
export function tokenRows(explorer: Asked, reading: Reading, at: HeadPlace): Lines {
  return new Lines(`rows ${keyOf(reading, at)}`, reading.count, (start, stop) =>
    rectangle(explorer, reading, at, [start, stop], [0, reading.count]),
  );
}

/** Exact columns: who looks at each key. Of a long text one at a time: they lie apart in the server's rows. */
export function tokenColumn(explorer: Asked, reading: Reading, at: HeadPlace, key: number): Promise<Float32Array> {
  const { count } = reading;
  if (count * count > AT_ONCE) return rectangle(explorer, reading, at, [0, count], [key, key + 1]);
  const all = rectangle(explorer, reading, at, [0, count], [0, count]);
  return all.then((data) => Float32Array.from({ length: count }, (_, query) => data[query * count + key] ?? 0));
}

/** Exact values of a range of queries and a range of keys, both half open. */
async function rectangle(
  explorer: Asked,
  reading: Reading,
  at: HeadPlace,
  rows: [number, number],
  columns: [number, number],
): Promise<Float32Array> {
  const request = requests.values({ text: reading.id, ...at, rows, columns });
  return floatsOf(await explorer.fetch(request), 'values').data;
}

/** The whole map over tokens, (N, N); of texts that one answer holds. */
export function wholeValues(explorer: Asked, reading: Reading, at: HeadPlace): Promise<Float32Array> {
  return rectangle(explorer, reading, at, [0, reading.count], [0, reading.count]);
}

/** The whole map over words, (W, W). */
export async function wordValues(explorer: Asked, reading: Reading, at: HeadPlace): Promise<Float32Array> {
  return floatsOf(await explorer.fetch(requests.wordMap({ text: reading.id, ...at })), 'values').data;
}

/** Tiles of a map whose values are all here. */
export function heldTiles(key: string, count: number, values: Float32Array, pool: Pool): Tiles {
  return new Tiles(`${key}/${pool}`, async (place) => cutTile(values, count, place, pool));
}

/** One tile of codes, pooled from exact values. */
export function cutTile(values: Float32Array, count: number, place: Place, pool: Pool): Tile {
  const cell = 2 ** place.level;
  const cells = Math.ceil(count / cell);
  const [top, left] = [place.y * TILE, place.x * TILE];
  const rows = Math.min(TILE, cells - top);
  const columns = Math.min(TILE, cells - left);
  const codes = new Uint8Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      codes[row * columns + column] = codeOf(pooled(values, count, (top + row) * cell, (left + column) * cell, cell, pool));
    }
  }
  return { ...place, rows, columns, codes };
}

function pooled(values: Float32Array, count: number, top: number, left: number, cell: number, pool: Pool): number {
  let [most, sum, n] = [0, 0, 0];
  for (let row = top; row < Math.min(count, top + cell); row++) {
    for (let column = left; column < Math.min(count, left + cell); column++) {
      const value = values[row * count + column] as number;
      most = Math.max(most, value);
      sum += value;
      n++;
    }
  }
  return pool === 'max' ? most : sum / n;
}
