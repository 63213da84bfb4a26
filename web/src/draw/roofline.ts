/** The roofline of attention (Williams, Waterman & Patterson 2009): operations for each byte, and what they allow. */

import type { Roofline } from '../api/types';
import type { Point } from './chart';

/** The most that work with so many operations for each byte can reach, in 10⁹ operations a second. */
export function attainable({ gflop_per_second, gbytes_per_second }: Roofline, intensity: number): number {
  return Math.min(gflop_per_second, gbytes_per_second * intensity);
}

/** The roof from an eighth of its ridge on, where bandwidth and peak meet, beyond the last length. */
export function roofOf(roofline: Roofline): { ridge: number; points: Point[] } {
  const ridge = roofline.gflop_per_second / roofline.gbytes_per_second;
  const ends = rows(roofline).flatMap(({ tiled, stored }) => [tiled, stored]);
  const stops = [Math.min(ridge / 8, ...ends), ridge, Math.max(ridge * 8, ...ends)];
  return { ridge, points: stops.map((x) => ({ x, y: attainable(roofline, x) })) };
}

/** The lengths with their operations for each byte, in tiles and with stored scores, and the rate that was measured. */
export function rows({ costs }: Roofline) {
  return costs.map((cost) => ({
    ...cost,
    tiled: cost.operations / cost.tiled_bytes,
    stored: cost.operations / cost.stored_bytes,
    rate: cost.seconds === null ? null : cost.operations / cost.seconds / 1e9,
  }));
}
