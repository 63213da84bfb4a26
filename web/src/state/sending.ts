/** Texts as their models read them: sent to the server, or unpacked from a saved page. */

import type { SavedSource } from '../api/saved';
import { accepted, jsonOf, Refused } from '../api/source';
import type { ModelInfo, TextRead } from '../api/types';
import type { Answers } from './answers.svelte';
import { againstOf, type TextPair } from './editing';
import { Reading, type Sent, type Side } from './reading.svelte';
import type { ViewState } from './url';

type Wanted = Omit<Sent, 'model'> & Pick<ViewState, 'against' | 'againstPair' | 'global'>;
export type Sides = Record<Side, Reading | null>;

/**
 * The text as both models read it, and the text compared with as the first does; a reading that is held already,
 * and is of the same text, is kept.
 */
export async function sendBoth(
  answers: Answers,
  wanted: Wanted,
  models: Record<'a' | 'b', ModelInfo | null>,
  held: Sides,
  signal: AbortSignal,
): Promise<Sides> {
  const one = async (side: Side): Promise<Reading | null> => {
    const model = models[side === 'b' ? 'b' : 'a'];
    const global = model?.has_global_tokens ? wanted.global : '';
    // With other global tokens, the text is compared with itself as the model was trained.
    const texts: TextPair | null = side === 'before' ? (againstOf(wanted) ?? (global === '' ? null : wanted)) : wanted;
    if ((side === 'b' && model === null) || texts === null) return null;
    const sent = { text: texts.text, pair: texts.pair, cut: wanted.cut, model: model?.index ?? 0, global: side === 'before' ? '' : global };
    const old = [held[side], held.a, held.b, held.before].find((reading) => reading !== null && isOf(reading, sent));
    // What was looked at becomes what is compared with, and the other way round: nothing is sent for that.
    if (old) return old.side === side ? old : old.as(side);
    return new Reading(side, await answers.send(sent, signal), sent.text, sent.pair, sent.cut, sent.global);
  };
  const [a, b, before] = await Promise.all([one('a'), one('b'), one('before')]);
  return { a, b, before };
}

function isOf({ sent }: Reading, wanted: Sent): boolean {
  return (['text', 'pair', 'cut', 'model', 'global'] as const).every((name) => sent[name] === wanted[name]);
}

/** What `send` gives; it is sent again while the server says that a model is still being loaded. */
export async function loadedFirst<T>(send: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof Refused && error.problem.kind === 'ModelLoading')) throw error;
    }
  }
}

/** The texts that a saved page holds; the one of the named model is looked at. */
export async function unpackBoth(source: SavedSource, view: ViewState): Promise<Sides> {
  const reads = await Promise.all(
    source.texts.map(async (path) => jsonOf<TextRead>(accepted(await source.get(path)))),
  );
  const against = againstOf(view);
  const earlier = ({ text, pair, model, global_spans }: TextRead) =>
    against
      ? text === against.text && (pair ?? '') === against.pair
      : global_spans.length === 0 && reads.some((read) => read.model === model && read.global_spans.length > 0);
  const own = reads.filter((read) => !earlier(read));
  const first = own.find((read) => read.model === view.model) ?? own[0];
  const as = (side: Side, read: TextRead | undefined) =>
    read ? new Reading(side, read, read.text, read.pair ?? '', view.cut) : null;
  return {
    a: as('a', first),
    // A model beside itself is held once.
    b: as('b', own.find((read) => read !== first) ?? (view.beside === first?.model ? first : undefined)),
    before: as('before', reads.find((read) => earlier(read) && read.model === first?.model)),
  };
}
