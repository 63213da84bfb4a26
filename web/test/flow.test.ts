import { describe, expect, it } from 'vitest';
import type { Arrays } from '../src/api/binary';
import {
  allOn, allWritten, headsOn, headsWritten, isolated, layerColor, LayerEdges, largest, linesMet, linesOf, STRENGTHS, strengthOf, strokeOf, toggled,
} from '../src/draw/flow';

/** Two heads, three tokens, two keys each; token 0 is special and left out by head 1's queries. */
function answer(): Arrays<unknown> {
  const keys = Int32Array.of(0, 1, 2, 1, 1, 0, -1, -1, 2, 1, 1, 2);
  const values = Float32Array.of(0.6, 0.3, 0.9, 0.1, 0.5, 0.4, 0, 0, 0.7, 0.3, 0.8, 0.2);
  const left = Float32Array.of(0, 0, 0, 0.9, 0.5, 0.3);
  return {
    meta: null,
    arrays: new Map([
      ['keys', { shape: [2, 3, 2], data: keys }],
      ['values', { shape: [2, 3, 2], data: values }],
      ['left_out', { shape: [2, 3], data: left }],
    ]),
  };
}

describe('largest values', () => {
  it('are taken with ties in order', () => {
    const values = Float32Array.of(0.1, 0.5, 0.1, 0.3, 0.5);
    expect(largest(values, 3).map((edge) => edge.token)).toEqual([1, 4, 3]);
    expect(largest(values, 4).map((edge) => edge.token)).toEqual([1, 4, 3, 0]);
    expect(largest(values, 9)).toHaveLength(5);
  });
});

describe('lines of tokens', () => {
  const edge = (key: number, share: number) => ({ layer: 0, head: 0, query: 4, key, share });

  it('are those that the token reads most, and its own', () => {
    const edges = [edge(9, 0.3), edge(4, 0.9), edge(1, 0.2), edge(1, 0.2), edge(7, 0.3), edge(2, 0.1)];
    expect(linesMet(4, edges)).toEqual([1, 2, 4, 7, 9]);
    expect(linesMet(4, edges, 3)).toEqual([1, 4, 7]);
    expect(linesMet(4, [])).toEqual([4]);
  });
});

describe('edges of a layer', () => {
  const edges = LayerEdges.of(answer(), 4);
  const written = (found: { head: number; query: number; key: number }[]) => found.map(({ head, query, key }) => `${head}:${query}>${key}`);

  it('are those of the heads, rows and strengths that are asked for', () => {
    expect(written(edges.list([0, 1], [0, 3], 1, 0))).toEqual(['0:0>0', '0:1>2', '0:2>1', '1:1>2', '1:2>1']);
    expect(written(edges.list([1], [0, 3], 2, 0))).toEqual(['1:1>2', '1:1>1', '1:2>1', '1:2>2']);
    expect(written(edges.list([0], [1, 2], 2, 0.5))).toEqual(['0:1>2']);
    expect(edges.list([7], [0, 3], 2, 0)).toEqual([]);
  });

  it('of one query are the strongest over all heads', () => {
    expect(written(edges.ofQuery([0, 1], 2, 3, 0))).toEqual(['1:2>1', '0:2>1', '0:2>0']);
  });

  it('say what is left out, over the queries that are kept', () => {
    const kept = (query: number) => query > 0;
    expect(edges.leftOut([1], kept)).toBeCloseTo(0.4);
    expect(edges.leftOut([0, 1], kept)).toBeCloseTo(0.2);
    expect(edges.leftOut([], kept)).toBe(0);
  });
});

describe('heads in the address', () => {
  it('are all of them unless some are named', () => {
    expect(headsOn('', 3)).toEqual([0, 1, 2]);
    expect(headsOn('2,0,9', 3)).toEqual([0, 2]);
    expect(headsOn('none', 3)).toEqual([]);
    // Addresses of earlier versions name a head for each layer.
    expect(headsOn('3.1,2.0', 3)).toEqual([0, 1, 2]);
    for (const heads of [[], [1], [0, 2], [0, 1, 2]]) expect(headsOn(headsWritten(heads, 3), 3)).toEqual(heads);
    expect(headsWritten([0, 1, 2], 3)).toBe('');
  });

  it('of every layer are named by layer and head', () => {
    const counts = [2, 3];
    expect(allOn('', counts)).toEqual([[0, 1], [0, 1, 2]]);
    expect(allOn('1', counts)).toEqual([[], [0, 1, 2]]);
    expect(allOn('0.1,1.2,1.9,7', counts)).toEqual([[1], [2]]);
    expect(allOn('rubbish', counts)).toEqual([[0, 1], [0, 1, 2]]);
    for (const on of [[[], []], [[0, 1], [2]], [[1], []], [[0, 1], [0, 1, 2]]]) expect(allOn(allWritten(on, counts), counts)).toEqual(on);
    expect(allWritten([[0, 1], [2]], counts)).toBe('0,1.2');
  });

  it('are switched, and shown alone and all again', () => {
    const counts = [3, 2];
    const all = [[0, 1, 2], [0, 1]];
    expect(toggled(all, counts, 0, 1)).toEqual([[0, 2], [0, 1]]);
    expect(toggled([[0], []], counts, 0, 1)).toEqual([[0, 1], []]);
    expect(toggled(all, counts, 1, null)).toEqual([[0, 1, 2], []]);
    expect(toggled([[0], []], counts, 0, null)).toEqual([[0, 1, 2], []]);
    expect(isolated(all, counts, 0, 1)).toEqual([[1], []]);
    expect(isolated([[1], []], counts, 0, 1)).toEqual(all);
    expect(isolated(all, counts, 1, null)).toEqual([[], [0, 1]]);
    // A double click is two clicks first.
    const twice = toggled(toggled(all, counts, 1, 1), counts, 1, 1);
    expect(isolated(twice, counts, 1, 1)).toEqual([[], [1]]);
  });
});

describe('edges between the texts of a pair', () => {
  /** One head, four tokens: a special one, two of the first text, one of the second; one key of each query in each text. */
  const pair: Arrays<unknown> = {
    meta: null,
    arrays: new Map([
      ['keys', { shape: [2, 1, 4, 1], data: Int32Array.of(-1, 1, 1, 2, -1, 3, 3, 3) }],
      ['values', { shape: [2, 1, 4, 1], data: Float32Array.of(0, 0.75, 0.5, 0.8, 0, 1, 1, 1) }],
      ['kept', { shape: [2, 1, 4], data: Float32Array.of(0, 0.4, 0.2, 0.25, 0, 0.1, 0.6, 0.5) }],
    ]),
  };
  const texts = Uint8Array.of(2, 0, 0, 1);
  const of = (edges: 'ab' | 'ba' | 'aa', rows: 'show' | 'hide' | 'renormalized') => {
    const found = LayerEdges.between(pair, 0, texts, edges, rows);
    return found.list([0], [0, 4], 1, 0).map(({ query, key, share }) => [query, key, Number(share.toFixed(4))]);
  };

  it('are of the queries of one text and the keys of one', () => {
    expect(of('ab', 'show')).toEqual([[1, 3, 0.1], [2, 3, 0.6]]);
    expect(of('ba', 'show')).toEqual([[3, 2, 0.2]]);
    expect(of('aa', 'show')).toEqual([[1, 1, 0.3], [2, 1, 0.1]]);
  });

  it('are divided by the sum without special tokens, or by their own', () => {
    expect(of('ab', 'hide')).toEqual([[1, 3, 0.2], [2, 3, 0.75]]);
    expect(of('aa', 'renormalized')).toEqual([[1, 1, 0.75], [2, 1, 0.5]]);
    const found = LayerEdges.between(pair, 0, texts, 'ab', 'show');
    expect(found.leftOut([0], (query) => texts[query] === 0)).toBeCloseTo(1 - 0.35);
  });
});

describe('lines', () => {
  it('have the strongest last, and end where they are told', () => {
    const edge = (query: number, key: number, share: number) => ({ layer: 1, head: 0, query, key, share });
    const lines = linesOf([edge(0, 1, 0.9), edge(2, 0, 0.1)], (token) => 10 * token, ({ query }) => query, 2);
    expect([...lines.from]).toEqual([40, 0]);
    expect([...lines.to]).toEqual([0, 20]);
    expect([...lines.color]).toEqual([2, 0]);
    expect(lines.width[1]).toBeGreaterThan(lines.width[0] as number);
  });

  it('of layers have colors through the spectrum, its ends included', () => {
    const first = layerColor(0, 12);
    const last = layerColor(11, 12);
    expect(first.part).toBe(0);
    expect(last.part).toBe(1);
    expect(layerColor(0, 1).part).toBe(0);
    expect(new Set(Array.from({ length: 12 }, (_, layer) => JSON.stringify(layerColor(layer, 12)))).size).toBe(12);
  });
});

describe('strength', () => {
  it('rises with the share, and so do width and opacity', () => {
    expect(strengthOf(0)).toBe(0);
    expect(strengthOf(1)).toBe(STRENGTHS - 1);
    for (let one = 1; one < STRENGTHS; one++) {
      expect(strokeOf(one).width).toBeGreaterThan(strokeOf(one - 1).width);
      expect(strokeOf(one).opacity).toBeGreaterThan(strokeOf(one - 1).opacity);
    }
    expect(strokeOf(STRENGTHS - 1).opacity).toBeLessThanOrEqual(1);
  });
});
