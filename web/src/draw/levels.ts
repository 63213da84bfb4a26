/**
 * How states between the layers are called: level 0 is the embeddings, level i + 1 the output of layer i. The page
 * counts layers from 0 everywhere, so no level is ever shown by its number.
 */

import type { AxisOptions } from './axes';

/** "embeddings", "layer 0", "layer 1". */
export function levelName(level: number): string {
  return level === 0 ? 'embeddings' : `layer ${level - 1}`;
}

/** "the embeddings", "the output of layer 0": in a sentence. */
export function levelPhrase(level: number): string {
  return level === 0 ? 'the embeddings' : `the output of layer ${level - 1}`;
}

/** "emb.", "0", "1": on an axis. */
export function levelShort(level: number): string {
  return level === 0 ? 'emb.' : String(level - 1);
}

/** The title of an axis of levels, and the axis. */
export const LEVEL_TITLE = 'output of layer (emb. = embeddings)';
export const LEVEL_AXIS: AxisOptions = {
  whole: true,
  words: levelShort,
  name: levelName,
};
