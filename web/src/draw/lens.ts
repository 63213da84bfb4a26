/** The lens: what the model would say after each layer, as a line and as a grid of words. */

import type { Lens } from '../api/types';
import type { Series } from './chart';

/** "embeddings", "layer 0", "layer 1": the states in the order the text passes them. */
export function levelName(level: number): string {
  return level === 0 ? 'embeddings' : `layer ${level - 1}`;
}

/** Probability of the text's own word (`name`) by level; without one, of the word that wins at the end. */
export function lensSeries(lens: Lens, name: string): Series[] {
  if (lens.levels.some(({ own }) => own !== null)) {
    const points = lens.levels.map(({ level, own }) => ({ x: level, y: own?.probability ?? null }));
    return [{ name: `“${name}”, the text's own`, points }, ...winner(lens)];
  }
  return winner(lens);
}

/** The word that wins at the last level, where it was among the words listed at the others. */
function winner(lens: Lens): Series[] {
  const last = lens.levels.at(-1);
  const best = last?.predictions[0];
  if (!best || best.id === last?.own?.id) return [];
  const points = lens.levels.map(({ level, predictions }) => ({
    x: level,
    y: predictions.find(({ id }) => id === best.id)?.probability ?? null,
  }));
  return [{ name: `“${best.text.trim() || best.piece}”, the final guess (where among the first)`, points }];
}

/** The first level from which the final guess stays on top. */
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
