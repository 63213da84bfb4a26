/** Two texts side by side, word by word. */

import { type Arrays, floatsOf } from '../api/binary';
import type { TextChangeMeta, TextRead, Word, WordPair } from '../api/types';

export interface Reads {
  before: TextRead;
  after: TextRead;
}

/** The tokens of the other text that stand for a token: those of the word aligned with its own. */
export function acrossTexts(
  pairs: readonly WordPair[],
  reads: Reads,
  token: number,
  from: 'before' | 'after',
): number[] {
  const to = from === 'before' ? 'after' : 'before';
  const word = reads[from].words.findIndex(({ first, stop }) => first <= token && token < stop);
  const there = word < 0 ? null : (pairs.find((pair) => pair[from] === word)?.[to] ?? null);
  const found = there === null ? undefined : reads[to].words[there];
  return found ? Array.from({ length: found.stop - found.first }, (_, at) => found.first + at) : [];
}

/** How a word is written, a special token by its piece. */
export function wordName(read: TextRead, word: Word): string {
  return word.surface.trim() === '' ? (read.tokens[word.first]?.piece ?? '') : word.surface.trim();
}

/** A word of both texts as one name: bank, bank → shore, + big, − old. */
export function pairName({ before, after }: WordPair, reads: Reads): string {
  const name = (side: keyof Reads, word: number | null) => {
    const found = word === null ? undefined : reads[side].words[word];
    return found ? wordName(reads[side], found) : null;
  };
  const [old, now] = [name('before', before), name('after', after)];
  if (old === null) return `+ ${now}`;
  if (now === null) return `− ${old}`;
  return old === now ? now : `${old} → ${now}`;
}

/** One text's map over the words of both, (U, U) row after row; NaN where it has no such word. */
export function spread(
  values: Float32Array,
  side: number,
  pairs: readonly WordPair[],
  which: keyof Reads,
): Float32Array {
  const count = pairs.length;
  const found = new Float32Array(count * count).fill(NaN);
  pairs.forEach((row, at) => {
    const query = row[which];
    if (query === null) return;
    pairs.forEach((column, next) => {
      const key = column[which];
      if (key !== null) found[at * count + next] = values[query * side + key] as number;
    });
  });
  return found;
}

/** Whether both texts have the same words at the same tokens, but for words of as many tokens: maps can be subtracted. */
export function sameTokens(pairs: readonly WordPair[], reads: { before: TextRead; after: TextRead }): boolean {
  return (
    reads.before.tokens.length === reads.after.tokens.length &&
    pairs.every(({ before, after }) => {
      const [old, now] = [reads.before.words[before ?? -1], reads.after.words[after ?? -1]];
      return old !== undefined && old.first === now?.first && old.stop === now.stop;
    })
  );
}

/** One cell of two maps. */
export interface ChangedCell {
  row: number;
  column: number;
  before: number;
  after: number;
}

/** The cells that both maps have and that differ most, largest first. */
export function largestChanges(before: Float32Array, after: Float32Array, count: number, most: number): ChangedCell[] {
  const found: { cell: number; size: number }[] = [];
  let least = 0;
  for (let cell = 0; cell < before.length; cell++) {
    const size = Math.abs((after[cell] as number) - (before[cell] as number));
    if (!(size > least)) continue;
    found.push({ cell, size });
    if (found.length < 4 * most) continue;
    found.sort((one, other) => other.size - one.size).length = most;
    least = (found.at(-1) as { size: number }).size;
  }
  return found
    .sort((one, other) => other.size - one.size)
    .slice(0, most)
    .map(({ cell }) => ({
      row: Math.floor(cell / count),
      column: cell % count,
      before: before[cell] as number,
      after: after[cell] as number,
    }));
}

/**
 * Of each word of both texts, the share of its attention that goes elsewhere than before (total variation
 * distance, words of one text alone included); NaN for a word of one text alone.
 */
export function movedShares(before: Float32Array, after: Float32Array, count: number): Float32Array {
  const moved = new Float32Array(count);
  for (let row = 0; row < count; row++) {
    let [sum, seen, held] = [0, 0, 0];
    for (let column = 0; column < count; column++) {
      const [old, now] = [before[row * count + column] as number, after[row * count + column] as number];
      if (!Number.isNaN(old)) seen += old;
      if (!Number.isNaN(now)) held += now;
      sum += Math.abs((Number.isNaN(now) ? 0 : now) - (Number.isNaN(old) ? 0 : old));
    }
    moved[row] = seen > 0 && held > 0 ? sum / 2 : NaN;
  }
  return moved;
}

/** 1 − cosine of the state of each token's word in both texts at a level; 0 for words that were inserted. */
export function stateShift(answer: Arrays<TextChangeMeta>, read: TextRead, level: number): Float32Array {
  const { shape, data } = floatsOf(answer, 'cosine');
  const shifts = new Float32Array(read.tokens.length);
  const aligned = answer.meta.pairs.filter(({ before, after }) => before !== null && after !== null);
  aligned.forEach(({ after }, at) => {
    const word = read.words[after as number];
    const row = Math.min(level, (shape[0] ?? 1) - 1);
    if (word) shifts.fill(1 - (data[row * aligned.length + at] as number), word.first, word.stop);
  });
  return shifts;
}

/** A square map in blocks of `cell` words a side, each with its value of the largest size; NaN where it has none. */
export function pooledLargest(values: Float32Array, count: number, cell: number): Float32Array {
  const side = Math.ceil(count / cell);
  const found = new Float32Array(side * side).fill(NaN);
  for (let row = 0; row < count; row++) {
    const start = Math.floor(row / cell) * side;
    for (let column = 0; column < count; column++) {
      const value = values[row * count + column] as number;
      const at = start + Math.floor(column / cell);
      const held = found[at] as number;
      if (Number.isNaN(held) || Math.abs(value) > Math.abs(held)) found[at] = value;
    }
  }
  return found;
}
