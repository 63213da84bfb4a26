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

/** The text in reading order, its tokens marked, nothing lost between them. */
export function segments(text: string, tokens: readonly Token[], wasCut: boolean): Segment[] {
  const offsets = utf16Offsets(text);
  const slice = (start: number, end: number) => text.slice(offsets[start], offsets[end]);
  const characters = offsets.length - 1;
  const found: Segment[] = [];
  let reached = 0;
  const fill = (end: number, cut: boolean) => {
    if (end > reached) {
      found.push({ token: null, text: slice(reached, end), special: false, cut });
      reached = end;
    }
  };
  const last = tokens.findLastIndex((token) => !token.special);
  tokens.forEach((token, number) => {
    if (!token.special) fill(token.start, false);
    // Tokens may share characters (the bytes of one emoji), so each shows its own surface.
    found.push({ token: number, text: label(token), special: token.special, cut: false });
    reached = Math.max(reached, token.end);
    if (number === last && !wasCut) fill(characters, false);
  });
  fill(characters, wasCut);
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

/** All digits a float32 holds. */
export function exactWords(value: number): string {
  return String(Number(value.toPrecision(9)));
}

/** 22713216 -> "22.7 M". */
export function countWords(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} B`;
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  return count.toLocaleString('en');
}
