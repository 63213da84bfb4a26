/** Words of a text from its tokens, as `unmask/text/borders.py` and `unmask/interpret/words/words.py` have them. */

import type { Word } from '../api/types';
import { isSpace, type LiveToken } from './tokenizer';

const JOINERS = "'’";
const IDEOGRAPH = /^[\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]$/u;
const LETTER_OR_NUMBER = /^[_\p{L}\p{N}]$/u;
const LETTER = /^\p{L}$/u;
const DIGIT = /^\p{Nd}$/u;
const EXTENDS = /^[\u200c\u200d\u{1f3fb}-\u{1f3ff}\u{e0020}-\u{e007f}\p{M}]$/u;
const FLAG = /^[\u{1f1e6}-\u{1f1ff}]$/u;

/** The word of each token, and all words in the order of their first tokens. */
export function wordsOf(
  tokens: readonly LiveToken[],
  texts: readonly [string, string | null],
  spelled: (token: LiveToken) => string,
): { of: number[]; words: Word[] } {
  const keys = tokens.map((_, token) => `special ${token}`);
  const spans = tokens.map(() => [0, 0] as [number, number]);
  texts.forEach((text, number) => {
    const places = tokens.flatMap((token, at) => (!token.special && Number(token.inPair) === number ? [at] : []));
    if (text === null || places.length === 0) return;
    const characters = Array.from(text);
    const starts = stretches(characters, places.map((at) => tokens[at]!));
    for (const at of places) {
      const { start, end } = tokens[at]!;
      const place = start === end ? pastSpace(characters, start) : start;
      const stretch = Math.max(starts.findLastIndex((first) => first <= place), 0);
      keys[at] = `${number} ${stretch}`;
      spans[at] = [starts[stretch] ?? 0, starts[stretch + 1] ?? characters.length];
    }
  });
  const numbers = new Map<string, number>();
  const words: Word[] = [];
  const of = keys.map((key, at) => {
    const { inPair } = tokens[at]!;
    const [start, end] = spans[at]!;
    if (!numbers.has(key)) {
      numbers.set(key, words.length);
      words.push({ surface: '', start, end, in_pair: inPair, first: at, stop: at + 1 });
    }
    const number = numbers.get(key)!;
    const word = words[number]!;
    Object.assign(word, { start: Math.min(word.start, start), end: Math.max(word.end, end), stop: at + 1 });
    return number;
  });
  for (const word of words) {
    const token = tokens[word.first]!;
    const source = Array.from(texts[Number(word.in_pair)] ?? '');
    word.surface = token.special ? spelled(token) : source.slice(word.start, word.end).join('');
  }
  return { of, words };
}

/** Where words and white space begin, at borders that no token crosses. */
function stretches(characters: readonly string[], tokens: readonly LiveToken[]): number[] {
  const borders = wordBorders(characters);
  let furthest = 0;
  for (const { start, end } of tokens) {
    furthest = Math.max(furthest, end);
    borders.fill(false, start + 1, Math.max(furthest, start + 1));
  }
  return Array.from(characters.keys()).filter((place) => borders[place]);
}

/** Before each character, and after the last, whether a word or white space begins or ends there. */
function wordBorders(characters: readonly string[]): boolean[] {
  const count = characters.length;
  const borders = Array<boolean>(count + 1).fill(true);
  const is = (pattern: RegExp) => characters.map((character) => pattern.test(character));
  const [digits, flags] = [is(DIGIT), is(FLAG)];
  const space = characters.map(isSpace);
  const inWord = characters.map((character) => LETTER_OR_NUMBER.test(character) && !IDEOGRAPH.test(character));
  const extend = is(EXTENDS).map((holds, place) => holds && place > 0 && !space[place - 1]);
  const letters = is(LETTER).map((holds, place) => holds && inWord[place]!);
  const joins = characters.map((character, place) => {
    if (place === 0 || place === count - 1) return false;
    const between = (sides: boolean[]) => sides[place - 1]! && sides[place + 1]!;
    return (JOINERS.includes(character) && between(letters)) || ('.,'.includes(character) && between(digits));
  });
  let base = 0;
  let inRow = 0;
  for (let place = 0; place < count; place++) {
    if (place > 0) {
      borders[place] = !(
        extend[place] ||
        (characters[place - 1] === '\u200d' && !space[place]) ||
        (inRow % 2 === 1 && flags[place]) ||
        (inWord[place] && inWord[base]) ||
        joins[place] ||
        joins[place - 1]
      );
    }
    if (!extend[place]) base = place;
    inRow = flags[place] ? inRow + 1 : 0;
  }
  return borders;
}

function pastSpace(characters: readonly string[], place: number): number {
  for (let at = place; at < characters.length; at++) if (!isSpace(characters[at]!)) return at;
  return place;
}
