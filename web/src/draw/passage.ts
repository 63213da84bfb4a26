/** The text of a passage with its highlights, and what adds up to its score. */

import type { Explanation, SearchHit, Share } from '../api/types';
import { utf16Offsets } from './words';

/** What the tint of a passage can show: the shares of a view, or the gradient attribution of the dense one. */
export const TINTS = ['bm25', 'sparse', 'multi_vector', 'dense', 'attribution'] as const;
export type Tint = (typeof TINTS)[number];

export const VIEW_NAMES: Readonly<Record<string, string>> = {
  hybrid: 'Hybrid',
  bm25: 'BM25',
  dense: 'Dense',
  sparse: 'Sparse',
  multi_vector: 'Multi-vector',
};

export const TINT_NAMES: Readonly<Record<Tint, string>> = {
  bm25: 'BM25',
  sparse: 'Sparse',
  multi_vector: 'Multi-vector',
  dense: 'Dense',
  attribution: 'Dense, gradient',
};

/** What a color means, for the legend. */
export const TINT_WORDS: Readonly<Record<Tint, string>> = {
  bm25: 'what each term adds to the BM25 score',
  sparse: 'what each word adds to the sparse score',
  multi_vector: 'what the query token that matched here adds to the multi-vector score',
  dense: 'what each token adds to the cosine',
  attribution: 'gradient attribution of the cosine to each token; it does not add up to the score',
};

/** The parts of a score with one label: a term, or all tokens that are spelled alike. */
export interface Part {
  label: string;
  share: number;
  /** How many shares were added up. */
  count: number;
}

/** A stretch of a passage; `start` and `end` count code points of its document. */
export interface Stretch {
  text: string;
  start: number;
  end: number;
  /** What is added here; null where nothing is. */
  share: number | null;
  /** Places of the parts that stand here. */
  parts: readonly number[];
  /** A term of the query, as BM25 reads it. */
  term: boolean;
  /** A line break of a paragraph that was wrapped by hand; it is shown as a space. */
  wrap: boolean;
  /** How Markdown would set it, as names of styles; `sign` are the characters that say so. */
  style: string;
}

/** The explanation and the shares of a tint; null if that view did not find the passage. */
export function sharesOf(why: readonly Explanation[] | null, tint: Tint): { one: Explanation; shares: readonly Share[] } | null {
  const one = why?.find(({ view }) => view === (tint === 'attribution' ? 'dense' : tint));
  if (!one) return null;
  return { one, shares: tint === 'attribution' ? one.attribution : one.shares };
}

/** BM25's shares under a word as it stands in the passage, instead of under its stem. */
export function surfaced(hit: SearchHit, shares: readonly Share[]): Share[] {
  const text = [...hit.text];
  return shares.map((share) => {
    const [start, end] = share.spans[0] ?? [0, 0];
    const word = text.slice(start - hit.start, end - hit.start).join('');
    return word === '' ? share : { ...share, label: word };
  });
}

/** Shares by label, and the place of each share's part; the label with the strongest single share is first. */
export function partsOf(shares: readonly Share[]): { parts: Part[]; places: number[] } {
  const found = new Map<string, Part & { most: number }>();
  const label = (share: Share) => share.label.trim().toLowerCase() || '␣';
  for (const share of shares) {
    const part = found.get(label(share)) ?? { label: label(share), share: 0, count: 0, most: 0 };
    const most = Math.max(part.most, Math.abs(share.share));
    found.set(part.label, { label: part.label, share: part.share + share.share, count: part.count + 1, most });
  }
  const parts = [...found.values()].sort((a, b) => b.most - a.most);
  const place = new Map(parts.map((part, at) => [part.label, at]));
  return { parts, places: shares.map((share) => place.get(label(share)) as number) };
}

/** The passage in stretches that each have one tint; together they are its whole text. */
export function stretches(hit: SearchHit, shares: readonly Share[], places: readonly number[]): Stretch[] {
  const offsets = utf16Offsets(hit.text);
  const length = offsets.length - 1;
  const within = (at: number) => Math.max(0, Math.min(length, at - hit.start));
  const spans = shares.flatMap((share, at) =>
    share.spans.map(([start, end]) => ({ from: within(start), to: within(end), share: share.share, part: places[at] ?? 0 })),
  );
  const terms = hit.matches.map(([start, end]) => ({ from: within(start), to: within(end) }));
  const wraps = wrapsOf(hit.text, offsets);
  const styles = /\.(md|markdown|mdx|qmd)$/i.test(hit.document) ? markdownOf(hit.text, offsets) : [];
  const borders = [...new Set([0, length, ...[...spans, ...terms, ...wraps, ...styles].flatMap(({ from, to }) => [from, to])])].sort((a, b) => a - b);
  // Both lie in order of their first characters, and none is inside another that is much longer.
  spans.sort((a, b) => a.from - b.from);
  const found: Stretch[] = [];
  let [first, longest] = [0, 0];
  for (const span of spans) longest = Math.max(longest, span.to - span.from);
  for (let at = 0; at + 1 < borders.length; at++) {
    const [from, to] = [borders[at] as number, borders[at + 1] as number];
    while (first < spans.length && (spans[first]?.from ?? 0) + longest <= from) first++;
    const here: typeof spans = [];
    for (let one = first; one < spans.length && (spans[one]?.from ?? 0) < to; one++) {
      const span = spans[one];
      if (span && span.to > from) here.push(span);
    }
    found.push({
      text: hit.text.slice(offsets[from], offsets[to]),
      start: hit.start + from,
      end: hit.start + to,
      share: here.length > 0 ? here.reduce((sum, span) => sum + span.share, 0) : null,
      parts: here.map(({ part }) => part),
      term: terms.some((term) => term.from < to && term.to > from),
      wrap: wraps.some((wrap) => wrap.from < to && wrap.to > from),
      style: styles.filter((one) => one.from < to && one.to > from).map(({ name }) => name).join(' '),
    });
  }
  return found;
}

const WRAP = /(?<=[^\n]{60})\n {0,3}(?=[\p{L}\p{N}("“[`]|\*\*)(?!\d+[.)] |```)/gu;

/** Line breaks between long lines of one paragraph, in code points; those of code between fences stay. */
function wrapsOf(text: string, offsets: Uint32Array): { from: number; to: number }[] {
  const found: { from: number; to: number }[] = [];
  const fences = [...text.matchAll(/^```/gm)].map(({ index }) => index);
  let point = 0;
  for (const { index, 0: wrap } of text.matchAll(WRAP)) {
    if (fences.filter((fence) => fence < index).length % 2 === 1) continue;
    while ((offsets[point] ?? 0) < index) point++;
    found.push({ from: point, to: point + wrap.length });
  }
  return found;
}

/** Code comes first: what looks like a sign inside it is none. */
const CODE = /(^```[^\n]*\n)([^]*?)(^```[ \t]*(?:\n|$(?![^])))|(`)([^`\n]+)(`)/gm;
/** Its signs, with what they set between them: strong, emphasis, link. */
const PROSE: readonly (readonly [RegExp, string])[] = [
  [/(\*\*)(?=\S)([^\n]+?)(\*\*)/g, 'strong'],
  [/(?<![\w*\\])(\*)(?![\s*])([^*\n]+)(\*)(?![\w*])/g, 'em'],
  [/(\[)([^\]\n]+)(\]\([^)\n]*\))/g, 'link'],
  [/^( {0,3}#{1,6} +)([^\n]+)()/gm, 'heading'],
  [/^( {0,3}\|[-:| ]*-[-:| ]*(?:\n|$(?![^])))()()/gm, ''],
];

/** What Markdown sets apart in a text, and the signs that say so, in code points. */
function markdownOf(text: string, offsets: Uint32Array): { from: number; to: number; name: string }[] {
  const found: { from: number; to: number; name: string }[] = [];
  const code: { from: number; to: number }[] = [];
  const add = (index: number, parts: readonly string[], name: string) => {
    let from = index;
    parts.forEach((part, at) => {
      if (part !== '') found.push({ from, to: from + part.length, name: at === 1 ? name : 'sign' });
      from += part.length;
    });
  };
  for (const { index, 0: whole, 1: open, 2: block = '', 3: close = '', 4: tick, 5: inside = '' } of text.matchAll(CODE)) {
    code.push({ from: index, to: index + whole.length });
    add(index, tick ? [tick, inside, tick] : [open ?? '', block, close], 'code');
  }
  for (const [sign, name] of PROSE) {
    for (const { index, 0: whole, 1: open = '', 2: inside = '', 3: close = '' } of text.matchAll(sign)) {
      // A heading may end in code.
      const signs = close === '' ? [index] : [index, index + whole.length - 1];
      if (!code.some(({ from, to }) => signs.some((at) => at >= from && at < to))) add(index, [open, inside, close], name);
    }
  }
  const points = new Map<number, number>();
  offsets.forEach((offset, point) => points.set(offset, point));
  return found.map(({ from, to, name }) => ({ from: points.get(from) ?? 0, to: points.get(to) ?? 0, name }));
}

/** A title without the signs of code and strong words around some of it. */
export function withoutSigns(title: string): string {
  return title.replace(/(`|\*\*)(.+?)\1/g, '$2');
}

/** The largest size of a share in all hits: their colors can be compared. */
export function tintScale(hits: readonly { why: readonly Explanation[] | null }[], tint: Tint): { low: number; high: number } {
  let [low, high] = [0, 0];
  for (const { why } of hits) {
    for (const { share, spans } of sharesOf(why, tint)?.shares ?? []) {
      if (spans.length === 0) continue;
      low = Math.min(low, share);
      high = Math.max(high, share);
    }
  }
  const most = Math.max(-low, high);
  return { low: low < 0 ? -most : 0, high: most };
}

/** The strength of a tint, from 0 to 1. */
export function strength(share: number, most: number): number {
  return most > 0 ? Math.min(1, Math.abs(share) / most) : 0;
}

/** A share with its sign, in as many digits as there is room for. */
export function signedWords(value: number): string {
  const size = Math.abs(value);
  const digits = size >= 100 ? 1 : size >= 1 ? 2 : size >= 0.01 || size === 0 ? 3 : 4;
  const written = size > 0 && size < 0.0005 ? size.toExponential(1).replace('-', '−') : size.toFixed(digits);
  return `${value < 0 ? '−' : '+'}${written}`;
}

/** A score in as many digits as tell results apart. */
export function scoreWords(score: number, mode: string): string {
  return score.toFixed(mode === 'hybrid' ? 5 : score >= 1 ? 3 : 4);
}

/** Where a hit stands in its document. */
export function placeWords(hit: SearchHit): string {
  const place = `characters ${hit.start.toLocaleString('en')}–${hit.end.toLocaleString('en')}`;
  return hit.page === null ? place : `page ${hit.page}, ${place}`;
}

/** Metadata that fit on a line. */
export function metadataWords(hit: SearchHit, most = 4): string {
  return Object.entries(hit.metadata)
    .filter(([, value]) => ['string', 'number', 'boolean'].includes(typeof value) && String(value).length <= 40)
    .slice(0, most)
    .map(([name, value]) => `${name} ${value}`)
    .join(', ');
}
