import { describe, expect, it } from 'vitest';
import type { TextRead, WordPair } from '../src/api/types';
import { acrossTexts, largestChanges, movedShares, pairName, pooledLargest, sameTokens, spread } from '../src/draw/edits';
import { onlyEdges, textsOf } from '../src/draw/segments';
import { wordAt, withWord } from '../src/state/editing';

/** A text of one token a word; `split` names words of two tokens. */
function readOf(surfaces: readonly string[], text: string, split: readonly string[] = []): TextRead {
  const words: TextRead['words'][number][] = [];
  const tokens: TextRead['tokens'][number][] = [];
  let from = 0;
  surfaces.forEach((surface, word) => {
    const special = surface.startsWith('[');
    const start = special ? 0 : [...text.slice(0, text.indexOf(surface, from))].length;
    const end = special ? 0 : start + [...surface].length;
    if (!special) from = text.indexOf(surface, from) + surface.length;
    const first = tokens.length;
    for (let piece = 0; piece < (split.includes(surface) ? 2 : 1); piece++) {
      tokens.push({ id: 0, piece: surface, surface: special ? '' : surface, start, end, special, in_pair: false, word, category: special ? 'special' : 'word' });
    }
    words.push({ surface: special ? '' : surface, start, end, in_pair: false, first, stop: tokens.length });
  });
  return { words, tokens } as unknown as TextRead;
}

const TEXT = 'a 🙂 muddy bank, b';
const read = readOf(['[CLS]', 'a', '🙂', 'muddy', 'bank', ',', 'b'], TEXT, ['muddy']);

describe('replacing a word', () => {
  it('replaces its characters, counted in code points', () => {
    const word = wordAt(read, 3);
    expect(word).toMatchObject({ surface: 'muddy', first: 3, tokens: 2 });
    expect(withWord({ text: TEXT, pair: '' }, word as never, 'dry')).toEqual({ text: 'a 🙂 dry bank, b', pair: '' });
    const second = wordAt(read, 4);
    expect(second).toEqual(word);
  });

  it('has no word in white space', () => {
    const broken = readOf(['a', '\n', 'b'], 'a\nb');
    expect([0, 1, 2].map((token) => wordAt(broken, token)?.surface)).toEqual(['a', undefined, 'b']);
  });

  it('deletes a word with one space', () => {
    expect(withWord({ text: TEXT, pair: '' }, wordAt(read, 5) as never, '').text).toBe('a 🙂 muddy, b');
    expect(withWord({ text: TEXT, pair: '' }, wordAt(read, 1) as never, '').text).toBe('🙂 muddy bank, b');
  });

  it('replaces in the second text of a pair', () => {
    const word = { ...(wordAt(read, 5) as object), in_pair: true };
    expect(withWord({ text: 'x', pair: TEXT }, word as never, 'road')).toEqual({ text: 'x', pair: 'a 🙂 muddy road, b' });
  });

  it('has no word for a special token', () => {
    expect(wordAt(read, 0)).toBeNull();
    expect(wordAt(read, null)).toBeNull();
    expect(wordAt(read, 99)).toBeNull();
  });
});

const pairs: WordPair[] = [
  { change: 'kept', before: 0, after: 0 },
  { change: 'removed', before: 1, after: null },
  { change: 'inserted', before: null, after: 1 },
  { change: 'replaced', before: 2, after: 2 },
];
const reads = { before: readOf(['x', 'old', 'bank'], 'x old bank'), after: readOf(['x', 'new', 'shore'], 'x new shore', ['shore']) };

describe('two texts side by side', () => {
  it('links tokens of aligned words', () => {
    expect(acrossTexts(pairs, reads, 2, 'before')).toEqual([2, 3]);
    expect(acrossTexts(pairs, reads, 3, 'after')).toEqual([2]);
    expect(acrossTexts(pairs, reads, 1, 'before')).toEqual([]);
  });

  it('names what became of a word', () => {
    expect(pairs.map((pair) => pairName(pair, reads))).toEqual(['x', '− old', '+ new', 'bank → shore']);
  });

  const before = spread(Float32Array.of(0.5, 0.25, 0.25, 1, 0, 0, 0.5, 0, 0.5), 3, pairs, 'before');
  const after = spread(Float32Array.of(0.125, 0.5, 0.375, 0, 1, 0, 0.5, 0, 0.5), 3, pairs, 'after');

  it('lays a map over the words of both', () => {
    expect([...before]).toEqual([0.5, 0.25, NaN, 0.25, 1, 0, NaN, 0, NaN, NaN, NaN, NaN, 0.5, 0, NaN, 0.5]);
  });

  it('says how much attention moved, words of one text alone included', () => {
    // x: 0.5 → 0.125 to itself, 0.25 → 0 to old, 0 → 0.5 to new, 0.25 → 0.375 to bank → shore.
    expect([...movedShares(before, after, 4)]).toEqual([(0.375 + 0.25 + 0.5 + 0.125) / 2, NaN, NaN, 0]);
  });

  it('finds the largest differences of cells that both have', () => {
    const found = largestChanges(before, after, 4, 2);
    expect(found).toEqual([
      { row: 0, column: 0, before: 0.5, after: 0.125 },
      { row: 0, column: 3, before: 0.25, after: 0.375 },
    ]);
    const many = Float32Array.from({ length: 900 }, (_, at) => ((at * 7919) % 901) / 901);
    const expected = [...many].sort((one, other) => other - one).slice(0, 5);
    expect(largestChanges(new Float32Array(900), many, 30, 5).map(({ after: value }) => value)).toEqual(expected);
  });

  it('pools to the value of the largest size', () => {
    const values = Float32Array.of(1, -3, NaN, 0, 2, NaN, NaN, NaN, NaN);
    expect([...pooledLargest(values, 3, 2)]).toEqual([-3, NaN, NaN, NaN]);
  });
});

describe('attention between the texts of a pair', () => {
  const texts = Uint8Array.of(2, 0, 0, 1);
  const map = Float32Array.of(1, 0, 0, 0, 0.5, 0.25, 0, 0.25, 0, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25, 0);

  it('keeps the cells asked for, and says what share of the rows that is', () => {
    const found = onlyEdges(map, texts, 'ab', false);
    expect([...found.values]).toEqual([0, 0, 0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0.25, 0, 0, 0, 0]);
    expect(found.kept).toBe(0.25);
    expect([...onlyEdges(map, texts, 'ba', false).values].slice(12)).toEqual([0, 0.25, 0.25, 0]);
  });

  it('makes what is left of a row sum to 1, and leaves an empty row empty', () => {
    expect([...onlyEdges(map, texts, 'aa', true).values]).toEqual([0, 0, 0, 0, 0, 1, 0, 0, 0, expect.closeTo(1 / 3), expect.closeTo(2 / 3), 0, 0, 0, 0, 0]);
    expect([...onlyEdges(map, texts, 'bb', true).values].every((value) => value === 0)).toBe(true);
  });

  it('counts special tokens to neither text', () => {
    const tokens = [{ special: true, in_pair: true }, { special: false, in_pair: false }, { special: false, in_pair: true }];
    const read = { tokens, words: [{ first: 0 }, { first: 2 }] } as unknown as TextRead;
    expect([...textsOf(read, false)]).toEqual([2, 0, 1]);
    expect([...textsOf(read, true)]).toEqual([2, 1]);
  });
});

describe('maps that can be subtracted', () => {
  const before = readOf(['[CLS]', 'a', 'bank'], 'a bank');
  const kept = (place: number): WordPair => ({ before: place, after: place, change: 'kept' }) as WordPair;
  const pairs = [0, 1, 2].map(kept);

  it('have the same words at the same tokens, but for replaced ones', () => {
    expect(sameTokens(pairs, { before, after: readOf(['[CLS]', 'a', 'text'], 'a text') })).toBe(true);
  });

  it('have as many tokens for every word', () => {
    expect(sameTokens(pairs, { before, after: readOf(['[CLS]', 'a', 'muddy'], 'a muddy', ['muddy']) })).toBe(false);
    const other = readOf(['[CLS]', 'muddy', 'bank'], 'muddy bank', ['muddy']);
    expect(sameTokens(pairs, { before: readOf(['[CLS]', 'a', 'bank'], 'a bank', ['bank']), after: other })).toBe(false);
  });

  it('have no word that was inserted', () => {
    expect(sameTokens([...pairs.slice(0, 2), { ...kept(2), before: null }], { before, after: before })).toBe(false);
  });
});
