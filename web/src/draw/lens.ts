/** The logit lens: what the model would predict after each layer, as a line and as a table of words. */

import type { Lens } from '../api/types';
import type { Series } from './chart';

/** Probability of the actual word (`name`) by level; without one, of the final prediction. */
export function lensSeries(lens: Lens, name: string): Series[] {
  if (lens.levels.some(({ own }) => own !== null)) {
    const points = lens.levels.map(({ level, own }) => ({ x: level, y: own?.probability ?? null }));
    return [{ name: `“${name}”, the actual word`, points }, ...winner(lens)];
  }
  return winner(lens);
}

/** The final prediction, at the levels where it is among the listed words. */
function winner(lens: Lens): Series[] {
  const last = lens.levels.at(-1);
  const best = last?.predictions[0];
  if (!best || best.id === last?.own?.id) return [];
  const points = lens.levels.map(({ level, predictions }) => ({
    x: level,
    y: predictions.find(({ id }) => id === best.id)?.probability ?? null,
  }));
  return [{ name: `“${best.text.trim() || best.piece}”, the final prediction (where listed)`, points }];
}

/** The first level from which the final prediction ranks first. */
export function settled(lens: Lens): number | null {
  const best = lens.levels.at(-1)?.predictions[0]?.id;
  if (best === undefined) return null;
  let from: number | null = null;
  for (const { level, predictions } of lens.levels) {
    if (predictions[0]?.id !== best) from = null;
    else from ??= level;
  }
  return from;
}
