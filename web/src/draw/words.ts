/** Tokens and numbers as people read them. */

import type { Token } from '../api/types';

/** A stretch of the text: either between tokens or a token's own. */
export interface Segment {
  /** Number of the token, or null for what lies between tokens. */
  token: number | null;
  text: string;
  special: boolean;
  /** True for what lies behind the last token that was read. */
  cut: boolean;
}

/** UTF-16 offset of every code point of a text, and of its end: spans count code points. */
export function utf16Offsets(text: string): Uint32Array {
  const offsets: number[] = [];
  let offset = 0;
  for (const character of text) {
    offsets.push(offset);
    offset += character.length;
  }
  offsets.push(offset);
  return Uint32Array.from(offsets);
}

/**
 * The text, and the pair's second text after it, in reading order: their tokens marked, nothing
 * lost between them.
 */
export function segments(
  text: string,
  pair: string,
  tokens: readonly Token[],
  wasCut: boolean,
): Segment[] {
  const found: Segment[] = [];
  const texts = [text, pair].map((whole) => ({ whole, offsets: utf16Offsets(whole), reached: 0 }));
  const fill = (which: 0 | 1, end: number, cut: boolean) => {
    const part = texts[which] as (typeof texts)[number];
    if (end <= part.reached) return;
    const between = part.whole.slice(part.offsets[part.reached], part.offsets[end]);
    found.push({ token: null, text: between, special: false, cut });
    part.reached = end;
  };
  const last = [false, true].map((inPair) =>
    tokens.findLastIndex((token) => !token.special && token.in_pair === inPair),
  );
  tokens.forEach((token, number) => {
    const which = token.in_pair ? 1 : 0;
    const part = texts[which] as (typeof texts)[number];
    if (!token.special) fill(which, token.start, false);
    // Tokens may share characters (the bytes of one emoji), so each shows its own surface.
    found.push({ token: number, text: label(token), special: token.special, cut: false });
    if (token.special) return;
    part.reached = Math.max(part.reached, token.end);
    if (number === last[which] && !wasCut) fill(which, part.offsets.length - 1, false);
  });
  fill(0, (texts[0]?.offsets.length ?? 1) - 1, wasCut);
  fill(1, (texts[1]?.offsets.length ?? 1) - 1, wasCut);
  return found;
}

/** How a token is written: its characters, with those that cannot be seen made visible. */
export function label(token: Token): string {
  const seen = token.surface === '' ? token.piece : token.surface;
  return seen.replaceAll('\n', '⏎').replaceAll('\t', '⇥').replaceAll(' ', '␣');
}

/** A probability in four decimals, or in powers of ten where those would show nothing. */
export function probabilityWords(probability: number): string {
  if (probability === 0 || probability >= 0.001) return probability.toFixed(4);
  return probability.toExponential(2);
}

/** A probability where there is little room: at most seven characters. */
export function shortWords(probability: number): string {
  if (probability === 0 || probability >= 0.001) return probability.toFixed(4);
  return probability.toExponential(1);
}

/** A sentence of the server as it stands alone: a capital first, a full stop last. */
export function sentenceWords(sentence: string): string {
  const [first = '', ...rest] = sentence;
  return `${first.toUpperCase()}${rest.join('')}${/[.!?]$/.test(sentence) ? '' : '.'}`;
}

/** The seven digits that a float32 carries: those beyond differ from one computation of a number to the next. */
export function exactWords(value: number): string {
  return String(Number(value.toPrecision(7)));
}

/** 22713216 -> "22.7 M". */
export function countWords(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} B`;
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  return count.toLocaleString('en');
}

/** 734003200 -> "0.73 GB"; decimal units, as memory is sold. */
export function bytesWords(bytes: number): string {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(2)} GB`;
  if (bytes >= 1e6) return `${Math.round(bytes / 1e6)} MB`;
  return `${Math.max(1, Math.round(bytes / 1e3))} kB`;
}

/** A waiting time as people say it. */
export function secondsWords(seconds: number): string {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return `${Math.round(seconds / 60)} min`;
}
