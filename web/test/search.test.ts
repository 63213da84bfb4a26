import { describe, expect, it } from 'vitest';
import type { Explanation, SearchHit, Share } from '../src/api/types';
import { metadataWords, partsOf, placeWords, sharesOf, signedWords, strength, stretches, surfaced, tintScale, withoutSigns } from '../src/draw/passage';

const hit = (text: string, part: Partial<SearchHit> = {}): SearchHit => ({
  document: 'a', page: null, start: 10, end: 10 + [...text].length, score: 1, text, title: '', metadata: {}, matches: [], why: null, ...part,
});
const share = (label: string, value: number, ...spans: [number, number][]): Share => ({ label, share: value, spans });
const dense = (shares: Share[], special = 0): Explanation => ({ view: 'dense', score: 1, rank: 1, shares, special, attribution: [], uncompressed_score: null, first_score: null });

describe('stretches', () => {
  it('are the whole text, and their numbers are code points of the document', () => {
    const shares = [share('b', 0.5, [12, 13]), share('e', -0.25, [15, 16])];
    const found = stretches(hit('a🙂b c e', { matches: [[12, 13]] }), shares, partsOf(shares).places);
    expect(found.map(({ text }) => text).join('')).toBe('a🙂b c e');
    for (const { text, start, end } of found) expect([...'a🙂b c e'].slice(start - 10, end - 10).join('')).toBe(text);
    expect(found.find(({ start }) => start === 12)).toMatchObject({ text: 'b', share: 0.5, term: true });
    expect(found.filter(({ share: value }) => value !== null)).toHaveLength(2);
  });

  it('add up where two shares have the same characters', () => {
    const shares = [share('x', 0.5, [10, 14]), share('y', 0.25, [12, 16])];
    const found = stretches(hit('abcdefgh'), shares, partsOf(shares).places);
    expect(found.map(({ text, share: value, parts }) => [text, value, parts])).toEqual([
      ['ab', 0.5, [0]], ['cd', 0.75, [0, 1]], ['ef', 0.25, [1]], ['gh', null, []],
    ]);
  });

  it('leave out characters outside the passage', () => {
    const shares = [share('x', 1, [0, 12], [17, 99])];
    expect(stretches(hit('abcdefgh'), shares, [0]).map(({ text, share: value }) => [text, value])).toEqual([
      ['ab', 1], ['cdefg', null], ['h', 1],
    ]);
  });

  it('show a line break inside a paragraph as a space, and no other', () => {
    const long = 'word '.repeat(13).trim();
    const wraps = (text: string) => stretches(hit(text), [], []).filter(({ wrap }) => wrap).map(({ text: broken }) => broken);
    expect(wraps(`🙂 ${long}\n  goes on\n\nnew`)).toEqual(['\n  ']);
    for (const other of ['- item', '2. item', '# heading', '    code', '```', '| cell']) expect(wraps(`${long}\n${other}`)).toEqual([]);
    expect(wraps('short\nline')).toEqual([]);
    expect(wraps(`\`\`\`\n${long}\ncode\n\`\`\`\n${long}\ntext`)).toEqual(['\n']);
  });

  it('set Markdown apart without losing a character, in documents of it alone', () => {
    const text = '🙂 **bold `a*b`** and *so* [see](x.md#y)\n## A `title`\n| a |\n|---|\n```py\n# no *title*\n```\nend * of * it';
    const found = stretches(hit(text, { document: 'notes/a.md', matches: [[14, 18]] }), [share('so', 1, [32, 34])], [0]);
    expect(found.map(({ text: part }) => part).join('')).toBe(text);
    for (const { text: part, start, end } of found) expect([...text].slice(start - 10, end - 10).join('')).toBe(part);
    const of = (name: string) => found.filter(({ style }) => style.split(' ').includes(name)).map(({ text: part }) => part).join('~');
    const read = found.filter(({ style, share: value }) => !/sign/.test(style) || value !== null).map(({ text: part }) => part).join('');
    expect(read).toBe('🙂 bold a*b and so see\nA title\n| a |\n# no *title*\nend * of * it');
    expect(of('strong')).toBe('bold~ ~`~a*b~`');
    expect(of('code')).toBe('a*b~title~# no *title*\n');
    expect(of('em')).toBe('so');
    expect(of('heading')).toBe('A ~`~title~`');
    expect(found.find(({ start }) => start === 14)).toMatchObject({ text: 'bold', term: true });
    expect(found.find(({ start }) => start === 32)).toMatchObject({ share: 1 });
    expect(stretches(hit(text), [], []).every(({ style }) => style === '')).toBe(true);
    expect(withoutSigns('Scaling: `unmask scaling`, **fast** * 2 `')).toBe('Scaling: unmask scaling, fast * 2 `');
  });
});

describe('what adds up to a score', () => {
  it('is grouped by spelling, the strongest single share first, and keeps its sum', () => {
    const shares = [share('the', 0.1), share('Bank', 0.2), share(' the', 0.1), share('the', 0.1), share('bank', -0.3)];
    const { parts, places } = partsOf(shares);
    expect(parts.map(({ label, count }) => [label, count])).toEqual([['bank', 2], ['the', 3]]);
    expect(parts[0]?.share).toBeCloseTo(-0.1);
    expect(places).toEqual([1, 0, 1, 1, 0]);
  });

  it('is named as it stands in the passage', () => {
    const given = [share('memori', 1, [12, 18], [19, 20]), share('gone', 1)];
    expect(surfaced(hit('🙂 memory m'), given).map(({ label }) => label)).toEqual(['memory', 'gone']);
  });

  it('is that of the view that is asked for', () => {
    const one = { ...dense([share('a', 1)]), attribution: [share('b', 2)] };
    expect(sharesOf([one], 'dense')?.shares).toBe(one.shares);
    expect(sharesOf([one], 'attribution')?.shares).toBe(one.attribution);
    expect(sharesOf([one], 'bm25')).toBeNull();
    expect(sharesOf(null, 'dense')).toBeNull();
  });

  it('has one scale for all hits, with ends equally far from zero where some are negative', () => {
    const hits = [{ why: [dense([share('a', 0.2, [0, 1])])] }, { why: [dense([share('b', -0.4, [0, 1]), share('c', 9)])] }, { why: null }];
    expect(tintScale(hits, 'dense')).toEqual({ low: -0.4, high: 0.4 });
    expect(tintScale(hits.slice(0, 1), 'dense')).toEqual({ low: 0, high: 0.2 });
    expect(strength(-0.1, 0.4)).toBeCloseTo(0.25);
    expect(strength(1, 0)).toBe(0);
  });

  it('is written with its sign', () => {
    expect([0.0159, -0.002, 3.871, 0, 0.00005].map(signedWords)).toEqual(['+0.016', '−0.0020', '+3.87', '+0.000', '+5.0e−5']);
  });
});

it('the place and the metadata of a hit are one line', () => {
  expect(placeWords(hit('abc', { page: 3, start: 1200, end: 2300 }))).toBe('page 3, characters 1,200–2,300');
  const metadata = { year: 2021, tags: ['a'], text: 'x'.repeat(50), draft: false };
  expect(metadataWords(hit('abc', { metadata }))).toBe('year 2021, draft false');
});
