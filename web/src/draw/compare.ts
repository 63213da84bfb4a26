/** Two models on one text: common words, their maps side by side, their heads. */

import type { NumberArray } from '../api/binary';
import type { HeadMatch, TextRead, Word } from '../api/types';
import type { Reading } from '../state/reading.svelte';
import { headName } from './effects';
import type { Row } from './table';

/** Names of the words that both texts have, with their place in each. */
export interface Common {
  names: string[];
  a: number[];
  b: number[];
}

/** Words of the same characters in both; a special token is known by its spelling and its turn. */
export function commonWords(a: readonly Word[], b: readonly Word[]): Common {
  const there = new Map(keys(b).map((key, place) => [key, place]));
  const common: Common = { names: [], a: [], b: [] };
  keys(a).forEach((key, place) => {
    const found = there.get(key);
    if (found === undefined) return;
    common.names.push(a[place]?.surface ?? '');
    common.a.push(place);
    common.b.push(found);
  });
  return common;
}

function keys(words: readonly Word[]): string[] {
  const turns = new Map<string, number>();
  return words.map(({ start, end, in_pair, surface }) => {
    const key = end > start ? `${in_pair} ${start} ${end}` : `special ${surface}`;
    const turn = turns.get(key) ?? 0;
    turns.set(key, turn + 1);
    return `${key} ${turn}`;
  });
}

/** The part of a square map that lies at the given places, row after row. */
export function submap(values: Float32Array, side: number, places: readonly number[]): Float32Array {
  const part = new Float32Array(places.length ** 2);
  places.forEach((row, at) => {
    places.forEach((column, next) => {
      part[at * places.length + next] = values[row * side + column] as number;
    });
  });
  return part;
}

/** First minus second, cell by cell. */
export function difference(one: Float32Array, other: Float32Array): Float32Array {
  return one.map((value, cell) => value - (other[cell] as number));
}

/** Where a token's word looks, as one value a token: each has that of its own word. */
export function wordRow(values: Float32Array, side: number, read: TextRead, token: number): Float32Array | null {
  const word = read.words.findIndex(({ first, stop }) => first <= token && token < stop);
  if (word < 0) return null;
  const row = new Float32Array(read.tokens.length);
  read.words.forEach(({ first, stop }, other) => row.fill(values[word * side + other] ?? 0, first, stop));
  return row;
}

/** One head of each model as maps between words. */
export interface WordMaps {
  a: Reading;
  b: Reading;
  first: HeadAt;
  second: HeadAt;
  weight: string;
  special: string;
  common: Common;
  one: NumberArray<Float32Array>;
  other: NumberArray<Float32Array>;
}

export interface HeadAt {
  layer: number;
  head: number;
}

/** The head of the second model that is most like one of the first. */
export function matchOf(matches: readonly HeadMatch[], { layer, head }: HeadAt): HeadAt | null {
  const match = matches.find(({ a }) => a[0] === layer && a[1] === head);
  return match ? { layer: match.b[0], head: match.b[1] } : null;
}

/** Matches as rows of a table. */
export function matchRows(matches: readonly HeadMatch[]): (Row & { a: string; b: string })[] {
  return matches.map(({ a, b, divergence }) => ({ a: headName(...a), b: headName(...b), divergence }));
}

/** The last part of a model's name, where no other model on the page ends alike; else all of it. */
export function shortName(name: string, all: readonly string[]): string {
  const last = (one: string) => one.split('/').at(-1) || one;
  return all.some((other) => other !== name && last(other) === last(name)) ? name : last(name);
}

/** Names of all heads, layer by layer. */
export function headNames(heads: readonly number[]): string[] {
  return heads.flatMap((count, layer) => Array.from({ length: count }, (_, head) => headName(layer, head)));
}

/** The head at a place in the order of `headNames`. */
export function headAt(heads: readonly number[], place: number): HeadAt {
  let left = place;
  for (const [layer, count] of heads.entries()) {
    if (left < count) return { layer, head: left };
    left -= count;
  }
  return { layer: 0, head: 0 };
}

/** What a map between words shows, as a sentence. */
export function mapSentence({ weight, special }: { weight: string; special: string }, what = ''): string {
  const rest = special === 'hide' ? '; special tokens are left out, and the rest of each row is divided by its sum' : '';
  return `${weight === 'norm' ? 'Norm-weighted' : 'Raw'} attention between words${what}: summed over the tokens of the attended word, averaged over those of the attending word (Clark et al. 2019)${rest}.`;
}
