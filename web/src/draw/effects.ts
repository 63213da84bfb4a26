/** Head effects: a grid of estimates, and measured ablations. */

import type { Ablation } from '../api/types';
import type { NumberArray } from '../api/binary';

/** "3.7": layer 3, head 7. */
export function headName(layer: number, head: number): string {
  return `${layer}.${head}`;
}

/** Values (L, H) where a layer may have fewer heads than H: cells of absent heads hold no value. */
export function headGrid({ shape, data }: NumberArray<Float32Array>, heads: readonly number[]): Float32Array {
  const width = shape[1] ?? 0;
  return data.map((value, cell) => (cell % width < (heads[Math.floor(cell / width)] ?? width) ? value : Number.NaN));
}

/** The heads with the largest estimates by size, largest first, as [layer, head]. */
export function strongest(grid: Float32Array, width: number, most: number): [number, number][] {
  return [...grid.keys()]
    .filter((cell) => Number.isFinite(grid[cell]))
    .sort((a, b) => Math.abs(grid[b] ?? 0) - Math.abs(grid[a] ?? 0))
    .slice(0, most)
    .map((cell) => [Math.floor(cell / width), cell % width]);
}

/** Pearson's correlation of estimate and effect, or null for fewer than three or equal values. */
export function agreement(measured: readonly Pick<Ablation, 'estimate' | 'effect'>[]): number | null {
  const pairs = measured.filter(({ estimate }) => estimate !== null) as { estimate: number; effect: number }[];
  if (pairs.length < 3) return null;
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const a = mean(pairs.map(({ estimate }) => estimate));
  const b = mean(pairs.map(({ effect }) => effect));
  let [ab, aa, bb] = [0, 0, 0];
  for (const { estimate, effect } of pairs) {
    ab += (estimate - a) * (effect - b);
    aa += (estimate - a) ** 2;
    bb += (effect - b) ** 2;
  }
  return aa > 0 && bb > 0 ? ab / Math.sqrt(aa * bb) : null;
}
