/** One head in words: what kind it is, its examples with their marks, its likes. */

import type { CompareMeta, Example } from '../api/types';
import { type Arrays, floatsOf } from '../api/binary';
import { type HeadAt, headAt, headNames } from './compare';
import { utf16Offsets } from './words';

/** What a head with a label does, as the end of a sentence that begins with the head. */
export function kindWords(label: string, first = 'the first token'): string {
  const words: Record<string, string> = {
    self: 'attends to the token itself',
    previous: 'attends to the previous token',
    next: 'attends to the next token',
    offset: 'attends at a fixed distance',
    first: `attends to ${first}`,
    special: 'attends to special tokens',
    punctuation: 'attends to punctuation',
    repeat: 'attends to the same token elsewhere',
    diffuse: 'attends to everything evenly',
    mixed: 'has no single pattern',
  };
  return words[label] ?? label;
}

/** What the examples of a pattern show: a name, and the rule that ranks them. */
export const PATTERNS: readonly { id: string; label: string; rule: string }[] = [
  { id: 'edge', label: 'strongest edges', rule: 'the largest attention weight between two tokens of the text' },
  { id: 'previous', label: 'previous token', rule: 'mean attention to the token before' },
  { id: 'next', label: 'next token', rule: 'mean attention to the token after' },
  { id: 'self', label: 'itself', rule: 'mean attention of a token to itself' },
  { id: 'word', label: 'same word', rule: 'mean attention to the other tokens of the same word' },
  { id: 'repeat', label: 'repeated token', rule: 'mean attention to the same token elsewhere in the text' },
  { id: 'punctuation', label: 'punctuation', rule: 'mean attention to punctuation' },
  { id: 'distant', label: 'far away', rule: 'mean attention to tokens at least 8 tokens away' },
  { id: 'first', label: 'first token', rule: 'mean attention to the first token of the sequence, such as [CLS]' },
  { id: 'special', label: 'other special', rule: 'mean attention to special tokens other than the first' },
];

/** The pattern of which a head's own kind is an example. */
export function patternOf(label: string): string {
  return PATTERNS.some(({ id }) => id === label) ? label : 'edge';
}

export interface Marked {
  text: string;
  mark: 'query' | 'key' | 'both' | null;
}

/** The text of an example in stretches: the query and the key are marked; spans count code points. */
export function markedText({ text, query, key }: Pick<Example, 'text' | 'query' | 'key'>): Marked[] {
  const offsets = utf16Offsets(text);
  const borders = [...new Set([0, ...query, ...key, offsets.length - 1])].sort((a, b) => a - b);
  const inside = ([start, end]: readonly number[], at: number) => (start ?? 0) <= at && at < (end ?? 0);
  return borders.slice(0, -1).map((start, number) => {
    const [asks, asked] = [inside(query, start), inside(key, start)];
    return {
      text: text.slice(offsets[start], offsets[borders[number + 1] ?? start]),
      mark: asks && asked ? 'both' : asks ? 'query' : asked ? 'key' : null,
    };
  });
}

/** What a span covers. */
export function surfaceOf(text: string, [start, end]: readonly [number, number]): string {
  return [...text].slice(start, end).join('');
}

export interface Alike extends HeadAt {
  name: string;
  jsd: number;
}

/** The heads most like one of the same model, from the divergence of all pairs. */
export function alikeHeads(distance: Float32Array, heads: readonly number[], { layer, head }: HeadAt, most: number): Alike[] {
  const names = headNames(heads);
  const own = names.indexOf(`${layer}.${head}`);
  return names
    .map((name, place) => ({ ...headAt(heads, place), name, jsd: distance[own * names.length + place] ?? 0 }))
    .filter((_, place) => place !== own)
    .sort((a, b) => a.jsd - b.jsd)
    .slice(0, most);
}

/** The heads of a second model most like one of the first. */
export function alikeBeside(
  answer: Arrays<CompareMeta>,
  heads: readonly number[],
  others: readonly number[],
  { layer, head }: HeadAt,
  most: number,
): Alike[] {
  if (!answer.arrays.has('distance')) return [];
  const { data } = floatsOf(answer, 'distance');
  const [own, names] = [headNames(heads).indexOf(`${layer}.${head}`), headNames(others)];
  return names
    .map((name, place) => ({ ...headAt(others, place), name, jsd: data[own * names.length + place] ?? 0 }))
    .sort((a, b) => a.jsd - b.jsd)
    .slice(0, most);
}
