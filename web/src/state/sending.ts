/** Texts as their models read them: sent to the server, or unpacked from a saved page. */

import type { SavedSource } from '../api/saved';
import { accepted, jsonOf } from '../api/source';
import type { ModelInfo, TextRead } from '../api/types';
import type { Answers, Sent } from './answers.svelte';
import { Reading, type Side } from './reading.svelte';

type Wanted = Omit<Sent, 'model'>;
export type Sides = Record<Side, Reading | null>;

/** The text as both models read it; a reading that is held already, and is of the same text, is kept. */
export async function sendBoth(
  answers: Answers,
  wanted: Wanted,
  models: Record<Side, ModelInfo | null>,
  held: Sides,
  signal: AbortSignal,
): Promise<Sides> {
  const one = async (side: Side): Promise<Reading | null> => {
    const model = models[side];
    if (side === 'b' && model === null) return null;
    const index = model?.index ?? 0;
    const old = held[side];
    const same = old?.text === wanted.text && old.pair === wanted.pair && old.cut === wanted.cut;
    if (old && same && old.read.model_index === index) return old;
    const read = await answers.send({ ...wanted, model: index }, signal);
    return new Reading(side, read, wanted.text, wanted.pair, wanted.cut);
  };
  const [a, b] = await Promise.all([one('a'), one('b')]);
  return { a, b };
}

/** The texts that a saved page holds; the one of the named model is looked at. */
export async function unpackBoth(source: SavedSource, model: string, cut: boolean): Promise<Sides> {
  const reads = await Promise.all(
    source.texts.map(async (path) => jsonOf<TextRead>(accepted(await source.get(path)))),
  );
  const first = reads.find((read) => read.model === model) ?? reads[0];
  const other = reads.find((read) => read !== first);
  return {
    a: first ? new Reading('a', first, first.text, first.pair ?? '', cut) : null,
    b: other ? new Reading('b', other, other.text, other.pair ?? '', cut) : null,
  };
}
