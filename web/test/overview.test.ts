import { describe, expect, it } from 'vitest';
import type { Finding } from '../src/api/types';
import { arcsOf, barWords, type Line, lineOf, opened, pictureKind, sentenceOf, surpriseOf, titleOf } from '../src/draw/overview';
import source from '../../unmask/interpret/overview/finding.py?raw';

/** All kinds that Python makes. */
const KINDS = [...(/Kind = Literal\[([^\]]*)\]/.exec(source)?.[1] ?? '').matchAll(/"(\w+)"/g)].map(([, kind]) => kind as string);

const finding = (part: Partial<Finding>): Finding => ({
  kind: 'previous', sentence: '', value: 0, baseline: null, layer: null, head: null, query: null, key: null,
  tokens: [], bars: [], matrix: [], edges: [], window: [0, 0], surprise: null, compared: 0, ...part,
});

const written = (name: string, apart = true, special = false) => ({ name, apart, special });

describe('a finding', () => {
  it('keeps percent signs with their numbers, and words from right to left by themselves', () => {
    expect(sentenceOf(finding({ sentence: '“a” gives “b” 7 %.' }))).toBe('“a” gives “b” 7\u00a0%.');
    expect(sentenceOf(finding({ sentence: '“ماء” gives “b” 7 %.' }))).toBe('\u2068“ماء”\u2069 gives “b” 7\u00a0%.');
  });

  it('opens its view at its head and token, and deselects what it is not about', () => {
    expect(opened(finding({ layer: 2, head: 3 }))).toEqual({ layer: 2, head: 3, query: null, key: null, view: 'map' });
    expect(opened(finding({ kind: 'edge', layer: 1, head: 6, query: 12, key: 9 }))).toEqual({
      layer: 1, head: 6, query: 12, key: 9, view: 'flow',
    });
    // No head: the one that is looked at stays.
    expect(opened(finding({ kind: 'sink', key: 0 }))).toEqual({ query: null, key: null, view: 'sinks' });
    expect(opened(finding({ kind: 'states', layer: 5 }))).toEqual({ query: null, key: null, view: 'heads' });
    // Of two occurrences, the later one has the context.
    expect(opened(finding({ kind: 'sense', layer: 3, query: 3, key: 14 }))).toMatchObject({ query: 14, key: null });
  });

  it('has a title and a picture of its own, whatever its kind', () => {
    expect(KINDS.length).toBeGreaterThan(12);
    for (const kind of KINDS) expect(titleOf(finding({ kind })), kind).not.toBe(kind);
    expect(pictureKind(finding({ kind: 'cka' }))).toBe('matrix');
    expect(pictureKind(finding({ kind: 'focused' }))).toBe('map');
  });

  it('says how rare it is, where it was compared', () => {
    expect(surpriseOf(finding({ surprise: 0.9799, compared: 1920 }))).toBe('more than in 97\u00a0% of 1,920 texts');
    expect([surpriseOf(finding({ surprise: null })), surpriseOf(finding({ surprise: 0.5, compared: 0 }))]).toEqual(['', '']);
  });

  it('writes numbers in its unit', () => {
    expect(barWords(finding({ kind: 'sink' }), 0.0512)).toBe('5.1 %');
    expect(barWords(finding({ kind: 'layers' }), 0.748)).toBe('75 %');
    expect(barWords(finding({ kind: 'labels' }), 26)).toBe('26');
    expect(barWords(finding({ kind: 'effect' }), 0.0731)).toBe('0.07');
  });
});

describe('arcs', () => {
  const line = (): Line => lineOf([written('a'), written('bb'), written('c', false)], 4, ({ name }) => 10 * name.length, 5);

  it('lays tokens side by side, apart where white space stands', () => {
    expect(line().tokens.map(({ token, x }) => [token, x])).toEqual([[4, 5], [5, 25], [6, 41]]);
    expect(line().width).toBe(46);
  });

  it('goes from the query over the middle to the key, the weakest first', () => {
    const arcs = arcsOf([{ query: 6, key: 4, weight: 0.9 }, { query: 5, key: 6, weight: 0.2 }], line(), 100, 190);
    expect(arcs.map(({ weight }) => weight)).toEqual([0.2, 0.9]);
    const [, far] = arcs;
    expect(far?.from.startsWith('M41,100C')).toBe(true);
    expect(far?.from.endsWith(`23,${100 - (far?.height ?? 0)}`)).toBe(true);
    expect(far?.to.startsWith(`M23,${100 - (far?.height ?? 0)}C`)).toBe(true);
    expect(far?.to.endsWith('5,100')).toBe(true);
  });

  it('leaves out edges of a token to itself and beyond the line, and rises no higher than is given', () => {
    const edges = [{ query: 4, key: 4, weight: 1 }, { query: 4, key: 9, weight: 1 }, { query: 4, key: 6, weight: 1 }];
    const arcs = arcsOf(edges, line(), 100, 20);
    expect(arcs.map(({ key }) => key)).toEqual([6]);
    expect(arcs[0]?.height).toBe(20);
  });
});
