/** What the colors of a cloud mean: the kind of a token, its place, its sentence, the attention it receives. */

import type { Token } from '../api/types';
import { hueOf } from './chart';
import { COLORS, type Tone } from './color';

export const COLORINGS = [
  { value: 'kind', label: 'Kind' },
  { value: 'place', label: 'Position' },
  { value: 'sentence', label: 'Sentence' },
  { value: 'received', label: 'Attention received' },
] as const;

export type Coloring = (typeof COLORINGS)[number]['value'];

const KINDS = [
  { name: 'word', place: 0 },
  { name: 'later piece of a word', place: 2 },
  { name: 'punctuation', place: 1 },
  { name: 'number', place: 4 },
  { name: 'special', place: 5 },
] as const;

export interface Group {
  name: string;
  /** Place of its hue. */
  place: number;
  count: number;
}

/** Index into KINDS. */
function kindOf(token: Token): number {
  if (token.special) return 4;
  if (/^\p{N}+$/u.test(token.surface.trim())) return 3;
  if (token.category === 'punctuation') return 2;
  return token.category === 'piece' ? 1 : 0;
}

/** The sentence of each token, counted from 0: one ends with a full stop, a question or an exclamation mark. */
export function sentencesOf(tokens: readonly Token[]): number[] {
  let sentence = 0;
  let ended = false;
  return tokens.map((token) => {
    const mark = /^[.!?。！？]+$/u.test(token.surface.trim());
    if (ended && !mark && !token.special) [sentence, ended] = [sentence + 1, false];
    if (mark) ended = true;
    return sentence;
  });
}

/** A hue for each token, and the legend of those that occur. */
export function kinds(tokens: readonly Token[], shown: (at: number) => boolean): { places: number[]; legend: Group[] } {
  const found = tokens.map(kindOf);
  const counts = KINDS.map((_, kind) => found.filter((one, at) => one === kind && shown(at)).length);
  return {
    places: found.map((kind) => KINDS[kind]?.place ?? 0),
    legend: KINDS.map(({ name, place }, kind) => ({ name, place, count: counts[kind] as number })).filter(({ count }) => count > 0),
  };
}

/** Colors of hues by place, three bytes a point. */
export function hueBytes(places: readonly number[], tone: Tone): Uint8Array {
  return hexBytes(places.map((place) => hueOf(place, tone)));
}

/** Colors such as #1d5aa8, three bytes a point. */
export function hexBytes(colors: readonly string[]): Uint8Array {
  const bytes = new Uint8Array(3 * colors.length);
  colors.forEach((color, at) => {
    const hex = Number.parseInt(color.slice(1), 16);
    bytes.set([hex >> 16, (hex >> 8) & 255, hex & 255], 3 * at);
  });
  return bytes;
}

/** Colors of shares from 0 to 1 on the page's color map, without its end that equals the paper. */
export function shareBytes(shares: ArrayLike<number>, colors: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(3 * shares.length);
  for (let at = 0; at < shares.length; at++) {
    const code = Math.round((0.22 + 0.78 * Math.min(1, Math.max(0, shares[at] as number))) * (COLORS - 1));
    bytes.set(colors.subarray(3 * code, 3 * code + 3), 3 * at);
  }
  return bytes;
}

/** Attention received as shares of the largest, by square roots: a sink would leave all others dark. */
export function receivedShares(received: ArrayLike<number>, hidden: Uint8Array): Float32Array {
  let most = 0;
  for (let at = 0; at < received.length; at++) if (!hidden[at]) most = Math.max(most, received[at] as number);
  return Float32Array.from(received, (value) => (most > 0 ? Math.sqrt(value / most) : 0));
}

/** Tokens in the order in which they deserve a name: long words first, each word once before any twice. */
export function nameRanks(names: readonly string[], tokens: readonly Token[]): Uint32Array {
  const seen = new Map<string, number>();
  const score = names.map((name, at) => {
    const before = seen.get(name) ?? 0;
    seen.set(name, before + 1);
    const letters = /\p{L}{3}/u.test(name) && tokens[at]?.category === 'word' ? Math.min(12, name.length) : 0;
    return letters - 20 * before;
  });
  return Uint32Array.from(names.keys()).sort((one, next) => (score[next] as number) - (score[one] as number) || one - next);
}
