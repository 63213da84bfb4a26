import { describe, expect, it } from 'vitest';
import type { Arrays, NumberArray } from '../src/api/binary';
import type { LiveMeta, TextRead, Token, Word } from '../src/api/types';
import { codeOf } from '../src/draw/scale';
import { DARES } from '../src/live/dares';
import { LiveText } from '../src/live/reading';
import { attentionOf, cosine, cosinesOf, headName, linksOf, placeOf, senseSentence, wordNamed, wordsOf } from '../src/live/senses';
import { edgesOf, paintMap, rowAsMap, strongest } from '../src/live/thumbs';

/** A text of one token a word between [CLS] and [SEP]; `state` and `row` say what the model computes. */
function liveOf(
  text: string,
  { layers = 2, heads = 2, state, row, norm }: {
    layers?: number;
    heads?: number;
    state: (level: number, token: number) => number[];
    row: (head: number, query: number, count: number) => number[];
    norm?: (head: number, key: number) => number;
  },
): LiveText {
  const surfaces = ['', ...text.split(' '), ''];
  const tokens: Token[] = [];
  const words: Word[] = [];
  let start = 0;
  surfaces.forEach((surface, at) => {
    const special = surface === '';
    const category = special ? 'special' : /\w/.test(surface) ? 'word' : 'punctuation';
    tokens.push({ id: at, piece: special ? (at === 0 ? '[CLS]' : '[SEP]') : surface, surface, start: special ? 0 : start, end: special ? 0 : start + surface.length, special, in_pair: false, word: at, category });
    words.push({ surface, start, end: start + surface.length, in_pair: false, first: at, stop: at + 1 });
    if (!special) start += surface.length + 1;
  });
  const count = tokens.length;
  const range = (length: number) => Array.from({ length }, (_, at) => at);
  const states = range(layers + 1).flatMap((level) => range(count).flatMap((token) => state(level, token)));
  const attention = range(layers * heads).flatMap((head) => range(count).flatMap((query) => row(head, query, count)));
  const norms = range(layers * heads).flatMap((head) => range(count).map((key) => norm?.(head, key) ?? 1));
  const array = (shape: number[], data: number[]): NumberArray => ({ shape, data: Float32Array.from(data) });
  const read = { text, tokens, words, layers, heads: range(layers).map(() => heads) } as unknown as TextRead;
  const answer: Arrays<LiveMeta> = {
    meta: { read },
    arrays: new Map([
      ['states', array([layers + 1, count, states.length / ((layers + 1) * count)], states)],
      ['attention', array([layers * heads, count, count], attention)],
      ['norms', array([layers * heads, count], norms)],
    ]),
  };
  return new LiveText(answer);
}

const even = (_: number, __: number, count: number) => Array<number>(count).fill(1 / count);
/** All attention to one key. */
const to = (key: number) => (_: number, __: number, count: number) => Array.from({ length: count }, (_, at) => (at === key ? 1 : 0));

describe('a word in two sentences', () => {
  const turned = (angle: number) => [Math.cos(angle), Math.sin(angle)];
  const one = liveOf('river bank', { state: () => turned(0), row: to(1) });
  const other = liveOf('money bank', { state: (level) => turned([0, 0.8, 0.3][level] as number), row: to(1) });
  const places = [placeOf(one, 2), placeOf(other, 2)] as const;
  const [left, right] = places;

  it('has the cosine of its states at every level', () => {
    expect(cosine(Float32Array.of(1, 0), Float32Array.of(1, 1))).toBeCloseTo(Math.SQRT1_2, 6);
    expect(cosinesOf(left as never, right as never)).toEqual([1, 0.8, 0.3].map((value, at) => expect.closeTo(at === 0 ? 1 : Math.cos(value), 6)));
  });

  it('is told apart at the level of the lowest cosine, with what it reads there', () => {
    const { sentence, widest } = senseSentence(left as never, right as never, [1, 0.7, 0.95]);
    expect(widest).toBe(1);
    expect(sentence).toBe('The two “bank” start as the same vector and are farthest apart after layer 0 (0.700); then they come back to 0.950. There the first one reads “river” most and the second one “money”.');
  });

  it('says so where nothing moves, and where the words differ', () => {
    expect(senseSentence(left as never, right as never, [1, 0.99, 0.99]).sentence).toContain('stay together');
    const shore = placeOf(liveOf('river shore', { state: () => [1, 0], row: even }), 2);
    expect(senseSentence(shore as never, right as never, [0.4, 0.8, 0.6]).sentence).toBe('“shore” and “bank” start with cosine 0.400 and are closest after layer 0 (0.800); they leave the last layer with 0.600.');
  });

  it('reads other words, not itself, not special tokens, not punctuation, weighed by value norms', () => {
    const live = liveOf('a b . c', { state: () => [1], row: (head, _, count) => (head === 0 ? Array<number>(count).fill(1 / count) : to(4)(head, 0, count)), norm: (_, key) => (key === 0 ? 0 : 1) });
    const place = placeOf(live, 1);
    // Five of six keys have a norm: each gets a fifth of what is weighed.
    expect(attentionOf(place as never, 0, true)[2]).toBeCloseTo(0.2, 6);
    expect(attentionOf(place as never, 0)[2]).toBeCloseTo(1 / 6, 6);
    expect(linksOf(place as never, 0).map(({ word, head }) => [word, head])).toEqual([[4, 1], [2, 0]]);
    expect(wordsOf(live)).toEqual([1, 2, 4]);
    expect([wordNamed(live, 'C'), wordNamed(live, 'x')]).toEqual([4, -1]);
    expect(headName(live, 3)).toBe('1.1');
  });
});

describe('guesses', () => {
  const [trophy, order, not] = DARES as unknown as [(typeof DARES)[number], (typeof DARES)[number], (typeof DARES)[number]];
  const words = (text: string) => text.replace('.', ' .');
  /** Attention from "it" to a word, in head 0; the other heads prefer the trophy. */
  const reading = (text: string, prefers: string) => {
    const tokens = ['', ...words(text).split(' '), ''];
    const key = tokens.indexOf(prefers);
    const usual = tokens.indexOf('trophy');
    return liveOf(words(text), { state: () => [1, 0], row: (head, _, count) => to(head === 0 ? key : usual)(head, 0, count) });
  };

  it('count the heads whose preference changes', () => {
    const [big, small] = trophy.texts as [string, string];
    const moved = trophy.outcome([reading(big, 'trophy'), reading(small, 'suitcase')]);
    expect(moved).toMatchObject({ right: 2, sentence: expect.stringContaining('in 1 of 4 heads. In head 0.0, the strongest of them, “trophy” gets 100\u00a0% with “big” and 0\u00a0% with “small”') });
    const still = trophy.outcome([reading(big, 'trophy'), reading(small, 'trophy')]);
    expect(still).toMatchObject({ right: 0, sentence: expect.stringContaining('attention does not follow the meaning') });
    expect(trophy.outcome([liveOf('a b', { state: () => [1], row: even }), reading(small, 'trophy')])).toBe('this model does not read “it”, “trophy” and “suitcase” as words');
  });

  it('compare vectors of sentences', () => {
    const live = (angle: number) => liveOf('a b', { state: () => [Math.cos(angle), Math.sin(angle)], row: even });
    expect(order.outcome([live(0), live(0.1), live(1.5)])).toMatchObject({ right: 2, sentence: 'The cosine of the first two is 1.00: the vector says which words there are, and hardly their order. The first and the third have 0.07.' });
    expect(order.outcome([live(0), live(1.4), live(0)])).toMatchObject({ right: 0 });
    expect(order.outcome([live(0), live(0.7), live(0)])).toMatchObject({ right: 1 });
    expect(not.outcome([live(0), live(0.2), live(0.5)])).toMatchObject({ right: 0 });
    expect(not.outcome([live(0), live(0.5), live(0.2)])).toMatchObject({ right: 1 });
  });
});

describe('thumbnails', () => {
  it('paint the nearest cell of a map', () => {
    const image = new Uint32Array(16);
    paintMap(image, 4, 2, 1, 1, { codes: Uint8Array.of(0, 1, 2, 3), side: 2 }, Uint32Array.of(10, 11, 12, 13));
    expect([...image]).toEqual([0, 0, 0, 0, 0, 10, 11, 0, 0, 12, 13, 0, 0, 0, 0, 0]);
  });

  it('show the row of a token as columns', () => {
    expect([...rowAsMap([0, 1]).codes]).toEqual([0, codeOf(1), 0, codeOf(1)]);
  });

  it('name the heads that attend most to one other word, and give the edges of a head', () => {
    const live = liveOf('a b c', { layers: 2, heads: 2, state: () => [1], row: (head, _, count) => to([0, 1, 2, 3][head] as number)(head, 0, count) });
    // Of word a (token 1): head 0 attends to [CLS], head 1 to itself.
    expect(strongest(live, 1, 2)).toEqual([2, 3]);
    expect(edgesOf(live, 2)).toEqual([
      { query: 1, key: 2, weight: 1 },
      { query: 3, key: 2, weight: 1 },
    ]);
  });
});
