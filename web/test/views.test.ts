import { describe, expect, it } from 'vitest';
import type { Ablation, Estimate, Geometry, LayerGeometry, Lens, Roofline, SenseLayer, SenseReport, TextRead, Token, Word } from '../src/api/types';
import * as compare from '../src/draw/compare';
import { courses, levelWords, questionToken, rowOf, shares } from '../src/draw/contribution';
import { agreement, headGrid, strongest } from '../src/draw/effects';
import { accuracySeries, equalPhrase, panelSeries, PANELS, peakLevel, refusals, samplePhrase, scaleCurve } from '../src/draw/geometry';
import { lensSeries, settled } from '../src/draw/lens';
import { attainable, roofOf, rows } from '../src/draw/roofline';

const token = (piece: string, special = false): Token => ({
  id: 0, piece, surface: piece, start: 0, end: 0, special, in_pair: false, word: null, category: 'word',
});
const word = (surface: string, start: number, end: number, first: number, stop: number): Word => ({
  surface, start, end, in_pair: false, first, stop,
});

describe('what a token is made of', () => {
  it('asks about the mask, else about the first token', () => {
    const text = [token('[CLS]', true), token('masked'), token('[MASK]', true)];
    expect(questionToken(text)).toBe(2);
    expect(questionToken([token('<s>', true), token('x'), token('<mask>', true)])).toBe(2);
    expect(questionToken(text.slice(0, 2))).toBe(0);
  });

  it('has shares that sum to one, whatever the units', () => {
    expect([...shares(Float32Array.of(3, 1, -2))]).toEqual([0.75, 0.25, 0]);
    expect([...shares(Float32Array.of(0, 0))]).toEqual([0, 0]);
  });

  it('follows the largest through the levels', () => {
    const values = { shape: [2, 3], data: Float32Array.of(0.25, 0.5, 0.25, 0, 0, 1) };
    expect([...rowOf(values, 1)]).toEqual([0, 0, 1]);
    const lines = courses(values, rowOf(values, 0), ['a', 'b', 'c'], 2);
    expect(lines.map(({ name }) => name)).toEqual(['1 b', '0 a']);
    expect(lines[0]?.points).toEqual([{ x: 0, y: 0.5 }, { x: 1, y: 0 }]);
    expect(courses(values, rowOf(values, 1), ['a', 'b', 'c'], 3)).toHaveLength(1);
    expect(levelWords(0, 7)).toContain('embeddings');
    expect(levelWords(2, 7)).toBe('down to the output of layer 1');
    expect(levelWords(6, 7)).toContain('top');
  });
});

describe('lens', () => {
  const guess = (id: number, probability: number) => ({ id, probability, piece: `p${id}`, text: `w${id}` });
  const lens: Lens = {
    token: 1, masked: true, note: null,
    levels: [
      { level: 0, own: null, predictions: [guess(7, 0.2)] },
      { level: 1, own: null, predictions: [guess(5, 0.3), guess(7, 0.1)] },
      { level: 2, own: null, predictions: [guess(7, 0.6)] },
      { level: 3, own: null, predictions: [guess(7, 0.9)] },
    ],
  };

  it('says from where on the final guess stays on top', () => {
    expect(settled(lens)).toBe(2);
    expect(settled({ ...lens, levels: [] })).toBeNull();
  });

  it('draws the own word, and the winner where it is another', () => {
    expect(lensSeries(lens, 'own').map(({ points }) => points.map(({ y }) => y))).toEqual([[0.2, 0.1, 0.6, 0.9]]);
    const own = (probability: number) => ({ piece: 'x', id: 5, probability, rank: 2 });
    const both = { ...lens, levels: lens.levels.map((one) => ({ ...one, own: own(0.1) })) };
    expect(lensSeries(both, 'own')).toHaveLength(2);
    const same = { ...lens, levels: lens.levels.map((one) => ({ ...one, own: { ...own(0.1), id: 7 } })) };
    expect(lensSeries(same, 'own')).toHaveLength(1);
  });
});

describe('effects of heads', () => {
  it('leave cells of absent heads empty, and order by size', () => {
    const grid = headGrid({ shape: [2, 3], data: Float32Array.of(1, -4, 0, 2, 9, 9) }, [3, 1]);
    expect([...grid]).toEqual([1, -4, 0, 2, Number.NaN, Number.NaN]);
    expect(strongest(grid, 3, 2)).toEqual([[0, 1], [1, 0]]);
  });

  it('agree as Pearson says, or not at all for too few', () => {
    const pair = (estimate: number | null, effect: number) => ({ estimate, effect }) as Ablation;
    expect(agreement([pair(1, 2), pair(2, 4), pair(3, 6)])).toBeCloseTo(1);
    expect(agreement([pair(1, 1), pair(2, 0), pair(3, 1), pair(4, 0)])).toBeCloseTo(-0.4472136);
    expect(agreement([pair(1, 2), pair(null, 4), pair(3, 6)])).toBeNull();
    expect(agreement([pair(1, 2), pair(1, 4), pair(1, 6)])).toBeNull();
  });
});

describe('two models', () => {
  const a = [word('[CLS]', 0, 0, 0, 1), word('the', 0, 3, 1, 2), word('bank', 4, 8, 2, 4), word('[SEP]', 0, 0, 4, 5)];
  const b = [word('the bank', 0, 8, 0, 1), word('the', 0, 3, 1, 2), word('bank', 4, 8, 2, 3), word('[SEP]', 0, 0, 3, 4)];

  it('share the words of the same characters', () => {
    expect(compare.commonWords(a, b)).toEqual({ names: ['the', 'bank', '[SEP]'], a: [1, 2, 3], b: [1, 2, 3] });
    const all = compare.commonWords(a, a);
    expect(all.a).toEqual([0, 1, 2, 3]);
    expect(all.b).toEqual(all.a);
  });

  it('have no difference where they are one', () => {
    const map = Float32Array.from({ length: 16 }, (_, cell) => cell / 16);
    const part = compare.submap(map, 4, [1, 3]);
    expect([...part]).toEqual([5 / 16, 7 / 16, 13 / 16, 15 / 16]);
    expect([...compare.difference(part, part)]).toEqual([0, 0, 0, 0]);
  });

  it('name heads and find them again', () => {
    const heads = [2, 3];
    const names = compare.headNames(heads);
    expect(names).toEqual(['0.0', '0.1', '1.0', '1.1', '1.2']);
    names.forEach((name, place) => {
      const { layer, head } = compare.headAt(heads, place);
      expect(`${layer}.${head}`).toBe(name);
    });
    const match = { a: [1, 2] as [number, number], b: [0, 4] as [number, number], divergence: 0.1 };
    expect(compare.matchOf([match], { layer: 1, head: 2 })).toEqual({ layer: 0, head: 4 });
    expect(compare.matchOf([match], { layer: 1, head: 1 })).toBeNull();
    expect(compare.matchRows([match])[0]).toMatchObject({ a: '1.2', b: '0.4' });
  });

  it('spread the row of a word over tokens', () => {
    const read = { words: a, tokens: Array.from({ length: 5 }, () => token('x')) } as unknown as TextRead;
    const map = new Float32Array(16);
    map.set([0.1, 0.2, 0.3, 0.4], 8);
    const row = compare.wordRow(map, 4, read, 3);
    expect([...(row ?? [])]).toEqual([...Float32Array.of(0.1, 0.2, 0.3, 0.3, 0.4)]);
    expect(compare.wordRow(map, 4, { ...read, words: [] }, 3)).toBeNull();
  });
});

describe('senses', () => {
  const layer = (number: number, value: number | null) => ({ layer: number, accuracy: { value, low: null, high: null, n: 8, reason: null }, accuracy_null: { mean: 0.4, high: 0.7, p: 0.1 } }) as SenseLayer;
  const report = (context: SenseLayer | null) => ({ layers: [layer(0, null), layer(1, 0.9)], random: null, static: { word: layer(0, null), context } }) as SenseReport;
  const named = (from: SenseReport) => accuracySeries(from).find(({ name }) => name === 'static vectors of the context');

  it('stand beside the static vectors of the context, at every level', () => {
    expect(named(report(layer(0, 0.8)))?.points).toEqual([{ x: 0, y: 0.8 }, { x: 1, y: 0.8 }]);
    expect(named(report(layer(0, 0.8)))?.baseline).toBe(true);
    expect(accuracySeries(report(layer(0, 0.8)))[0]?.points.map(({ y }) => y)).toEqual([null, 0.9]);
  });

  it('have no such line where a sentence has no other word', () => {
    expect(named(report(null))).toBeUndefined();
  });
});

describe('geometry', () => {
  const known = (value: number): Estimate => ({ value, low: value - 1, high: value + 1, n: 200, reason: null });
  const refused: Estimate = { value: null, low: null, high: null, n: 20, reason: 'too few' };
  const level = (layer: number, two_nn: Estimate): LayerGeometry => ({
    layer, n: 200, tokens: 210, distinct: layer === 0 ? 90 : 200, width: 64, two_nn, two_nn_slope: two_nn,
    gride: [{ k: 1, radius: 1, dimension: known(3) }, { k: 2, radius: 2, dimension: refused }],
    mle: refused, mle_band: null, participation_ratio: known(9), iso_score: known(0.1), effective_rank: known(20),
    anisotropy: known(0.4), anisotropy_without: [{ k: 1, anisotropy: known(0.1) }], top_coordinate: null,
    top_coordinate_share: null, residual: known(0.8), norm: known(12),
    shuffled: { two_nn: known(40), participation_ratio: known(30), effective_rank: known(60), anisotropy: known(0.3) },
  });
  const given: Geometry = { tokens: 212, levels: [level(0, refused), level(1, known(5))], random: null, problem: null };
  const panel = (id: string) => PANELS.find((one) => one.id === id) as (typeof PANELS)[number];

  it('draws what was measured, with its interval and baselines', () => {
    const series = panelSeries(given, panel('dimension'));
    expect(series.map(({ name, baseline }) => [name, baseline])).toEqual([
      ['TwoNN (Facco et al. 2017)', false],
      ['TwoNN, coordinates shuffled', true],
    ]);
    expect(series[0]?.points).toEqual([
      { x: 0, y: null, low: null, high: null },
      { x: 1, y: 5, low: 4, high: 6 },
    ]);
    expect(peakLevel(series[0])).toBe(1);
    const random = { ...given, random: given.levels };
    expect(panelSeries(random, panel('spread')).map(({ name }) => name)).toContain('participation ratio, random weights');
  });

  it('says every reason once, with its levels where some have values', () => {
    expect(refusals(given, panel('dimension'))).toEqual([
      'TwoNN (Facco et al. 2017): too few (embeddings)',
      'Levina and Bickel 2004, k = 10 to 20: too few',
    ]);
    expect(refusals(given, panel('norm'))).toEqual([]);
  });

  it('says n, what was left out and what was equal', () => {
    expect(samplePhrase(given)).toBe('n = 200 tokens drawn from 210 in 64 dimensions; 2 special tokens are left out');
    expect(equalPhrase(given)).toContain('In the embeddings only 90');
    expect(scaleCurve(given.levels[1] as LayerGeometry)[0]?.points.map(({ y }) => y)).toEqual([3, null]);
    expect(PANELS.every((one) => panelSeries(given, one).length > 0)).toBe(true);
  });
});

describe('roofline', () => {
  const machine: Roofline = {
    processor: 'a processor', threads: 2, dtype: 'float32', gflop_per_second: 80, gbytes_per_second: 10,
    costs: [{ tokens: 64, operations: 4e9, tiled_bytes: 2.5e8, stored_bytes: 1e9, seconds: 0.1 }],
  };

  it('is slanted up to the ridge and flat beyond it', () => {
    expect([4, 8, 16].map((intensity) => attainable(machine, intensity))).toEqual([40, 80, 80]);
    expect(roofOf(machine)).toEqual({ ridge: 8, points: [{ x: 1, y: 10 }, { x: 8, y: 80 }, { x: 64, y: 80 }] });
  });

  it('divides operations by bytes and by seconds', () => {
    expect(rows(machine)[0]).toMatchObject({ tiled: 16, stored: 4, rate: 40 });
    expect(rows({ ...machine, costs: [{ ...machine.costs[0], seconds: null } as Roofline['costs'][0]] })[0]?.rate).toBeNull();
  });
});
