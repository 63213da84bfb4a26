/** Replacing a word of a text. */

import type { TextRead } from '../api/types';
import { utf16Offsets } from '../draw/words';
import type { ViewState } from './url';

export interface TextPair {
  text: string;
  /** Empty: there is no second text. */
  pair: string;
}

/** The text that the view compares with; null where there is none. */
export function againstOf({ against, againstPair }: Pick<ViewState, 'against' | 'againstPair'>): TextPair | null {
  return against === '' ? null : { text: against, pair: againstPair };
}

/** The word that a token is of, as the page can replace it; null for a special token. */
export interface Replaceable {
  /** Its characters, white space around them left out. */
  surface: string;
  /** Code points of its text. */
  start: number;
  end: number;
  in_pair: boolean;
  /** Its first token, and how many it has. */
  first: number;
  tokens: number;
}

export function wordAt(read: TextRead, token: number | null): Replaceable | null {
  const found = token === null ? undefined : read.tokens[token];
  const word = found?.special === false && found.word !== null ? read.words[found.word] : undefined;
  if (!word || word.end <= word.start) return null;
  const surface = word.surface.trim();
  // White space is no word.
  if (surface === '') return null;
  const before = [...word.surface.slice(0, word.surface.length - word.surface.trimStart().length)].length;
  const start = word.start + before;
  const { in_pair, first, stop } = word;
  return { surface, start, end: start + [...surface].length, in_pair, first, tokens: stop - first };
}

/** The text with other characters in place of a word; without any, the word and a space beside it are gone. */
export function withWord({ text, pair }: TextPair, word: Replaceable, typed: string): TextPair {
  const whole = word.in_pair ? pair : text;
  const offsets = utf16Offsets(whole);
  let [head, tail] = [whole.slice(0, offsets[word.start]), whole.slice(offsets[word.end])];
  if (typed === '') {
    if (/^\s/.test(tail) && (head === '' || /\s$/.test(head))) tail = tail.slice(1);
    else if (/\s$/.test(head)) head = head.slice(0, -1);
  }
  const made = head + typed + tail;
  return word.in_pair ? { text, pair: made } : { text: made, pair };
}
