/** Tiles and exact lines of the head that is looked at, by tokens or by words. */

import { bytesOf, floatsOf } from '../api/binary';
import { codeOf } from '../draw/scale';
import { type Place, TILE, type Tile } from '../draw/tiles';
import type { Explorer } from './explorer.svelte';
import type { Reading } from './reading.svelte';
import { AT_ONCE, Lines } from './rows.svelte';
import { Tiles } from './tiles.svelte';
import type { Pool, Weight } from './url';

export interface HeadPlace {
  layer: number;
  head: number;
  weight: Weight;
}

function keyOf(reading: Reading, at: HeadPlace): string {
  return `${reading.id}/${at.layer}/${at.head}/${at.weight}`;
}

/** Tiles of the map over tokens. */
export function tokenTiles(explorer: Explorer, reading: Reading, at: HeadPlace, pool: Pool): Tiles {
  const base = `texts/${reading.id}/tiles/${at.layer}/${at.head}`;
  return new Tiles(`${keyOf(reading, at)}/${pool}`, async (place) => {
    const path = `${base}/${place.level}/${place.y}/${place.x}?pool=${pool}&weight=${at.weight}`;
    const { shape, data } = bytesOf(await explorer.fetchArrays(path), 'codes');
    return { ...place, rows: shape[0] ?? 0, columns: shape[1] ?? 0, codes: data };
  });
}

/** Exact rows: where each query looks. */
export function tokenRows(explorer: Explorer, reading: Reading, at: HeadPlace): Lines {
  const base = `texts/${reading.id}/values/${at.layer}/${at.head}`;
  return new Lines(`rows ${keyOf(reading, at)}`, reading.count, async (start, stop) => {
    const path = `${base}?rows=${start}:${stop}&columns=0:${reading.count}&weight=${at.weight}`;
    return floatsOf(await explorer.fetchArrays(path), 'values').data;
  });
}

/** Exact columns: who looks at each key. Of a long text one at a time: they lie apart in the server's rows. */
export function tokenColumn(explorer: Explorer, reading: Reading, at: HeadPlace, key: number): Promise<Float32Array> {
  const base = `texts/${reading.id}/values/${at.layer}/${at.head}`;
  const { count } = reading;
  if (count * count <= AT_ONCE) {
    const all = explorer.fetchArrays(`${base}?rows=0:${count}&columns=0:${count}&weight=${at.weight}`);
    return all.then((answer) => {
      const { data } = floatsOf(answer, 'values');
      return Float32Array.from({ length: count }, (_, query) => data[query * count + key] ?? 0);
    });
  }
  const path = `${base}?rows=0:${reading.count}&columns=${key}:${key + 1}&weight=${at.weight}`;
  return explorer.fetchArrays(path).then((answer) => floatsOf(answer, 'values').data);
}

/** The whole map over words, (W, W). */
export async function wordValues(explorer: Explorer, reading: Reading, at: HeadPlace): Promise<Float32Array> {
  const path = `texts/${reading.id}/words/${at.layer}/${at.head}?weight=${at.weight}`;
  return floatsOf(await explorer.fetchArrays(path), 'values').data;
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
