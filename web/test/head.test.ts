import { describe, expect, it } from 'vitest';
import type { Arrays, NumberArray } from '../src/api/binary';
import type { CompareMeta } from '../src/api/types';
import { alikeBeside, alikeHeads, kindWords, markedText, PATTERNS, patternOf, surfaceOf } from '../src/draw/head';

describe('an example', () => {
  it('marks its query and its key by code points', () => {
    const text = '🙂 the river';
    const parts = markedText({ text, query: [6, 11], key: [2, 5] });
    expect(parts).toEqual([
      { text: '🙂 ', mark: null },
      { text: 'the', mark: 'key' },
      { text: ' ', mark: null },
      { text: 'river', mark: 'query' },
    ]);
    expect(parts.map((part) => part.text).join('')).toBe(text);
    expect(surfaceOf(text, [6, 11])).toBe('river');
  });

  it('marks a token that attends to itself as both', () => {
    expect(markedText({ text: 'a b', query: [2, 3], key: [2, 3] })).toEqual([
      { text: 'a ', mark: null },
      { text: 'b', mark: 'both' },
    ]);
  });

  it('marks no key where that is a special token', () => {
    expect(markedText({ text: 'a b', query: [0, 1], key: [0, 0] }).map(({ mark }) => mark)).toEqual(['query', null]);
  });
});

describe('similar heads', () => {
  const heads = [2, 1];
  // 0.0, 0.1, 1.0
  const distance = Float32Array.from([0, 0.5, 0.25, 0.5, 0, 0.125, 0.25, 0.125, 0]);

  it('are the nearest of the same model, without the head itself', () => {
    expect(alikeHeads(distance, heads, { layer: 0, head: 1 }, 5)).toEqual([
      { layer: 1, head: 0, name: '1.0', jsd: 0.125 },
      { layer: 0, head: 0, name: '0.0', jsd: 0.5 },
    ]);
    expect(alikeHeads(distance, heads, { layer: 1, head: 0 }, 1)).toHaveLength(1);
  });

  it('are found in a second model by its own heads', () => {
    const values: NumberArray<Float32Array> = { shape: [3, 2], data: Float32Array.from([0.5, 0.25, 0.5, 0.125, 0.25, 0.5]) };
    const answer = { arrays: new Map([['distance', values]]), meta: {} } as unknown as Arrays<CompareMeta>;
    expect(alikeBeside(answer, heads, [1, 1], { layer: 1, head: 0 }, 1)).toEqual([{ layer: 0, head: 0, name: '0.0', jsd: 0.25 }]);
    const none = { arrays: new Map(), meta: {} } as unknown as Arrays<CompareMeta>;
    expect(alikeBeside(none, heads, [1, 1], { layer: 1, head: 0 }, 1)).toEqual([]);
  });
});

describe('kinds', () => {
  it('have words, and the examples that show them', () => {
    expect(kindWords('first', '[CLS]')).toBe('attends to [CLS]');
    expect(kindWords('previous')).toBe('attends to the previous token');
    expect(kindWords('repeat')).toBe('attends to the same token elsewhere');
    expect(patternOf('previous')).toBe('previous');
    expect(patternOf('mixed')).toBe('edge');
    expect(new Set(PATTERNS.map(({ id }) => id)).size).toBe(PATTERNS.length);
  });
});
