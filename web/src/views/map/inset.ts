/** The whole map as one tile, for the inset and as a stand-in until finer tiles are here. */

import { coarsestLevel } from '../../draw/layout';
import type { Place } from '../../draw/tiles';

/** The finest level at which a map is a single tile. */
export function coarsest(count: number): Place {
  return { level: coarsestLevel(count), y: 0, x: 0 };
}
