/**
 * Texts to tokens as the package `tokenizers` reads them: WordPiece and byte-level BPE, with the characters that each
 * token stands for. `unmask/explorer/export/live_model.py` says which settings there are.
 */

import { type Character, CharacterClass, charactersOf, joined, type Normalizer, normalized, SPACE } from './normalize';

interface AddedToken {
  id: number;
  content: string;
  single_word: boolean;
  lstrip: boolean;
  rstrip: boolean;
  normalized: boolean;
}

type ClassName = 'removed' | 'marks' | 'punctuation' | 'letters' | 'numbers';

export interface TokenizerSpec {
  /** Beginnings and ends of ranges of characters; which classes there are depends on the splitter. */
  classes: Partial<Record<ClassName, number[]>>;
  normalizers: Normalizer[];
  splitters: { type: string; add_prefix_space?: boolean; use_regex?: boolean }[];
  vocabulary: string[];
  merges: [string, string][];
  model: {
    unk_token?: string | null;
    continuing_subword_prefix?: string | null;
    max_input_chars_per_word?: number;
    ignore_merges?: boolean;
  };
  added: AddedToken[];
  single: Part[];
  pair: Part[];
  /** Ids that the model has vectors for, if the tokenizer has more. */
  known: number | null;
}

/** Of what frames texts: a special token, or the place of the first or second text. */
interface Part {
  id?: number;
  text?: number;
  type: number;
}

/** `start` and `end` count code points of the token's text. */
export interface LiveToken {
  id: number;
  type: number;
  special: boolean;
  inPair: boolean;
  start: number;
  end: number;
}

interface Piece {
  id: number;
  start: number;
  end: number;
}

/** Characters that are still to be tokenized, or an added token that was typed. */
interface Stretch {
  characters: Character[];
  id?: number;
}

const PUNCTUATION = /^[!-/:-@[-`{-~]$/;
const WORD = /^[\p{L}\p{N}\p{M}\p{Pc}]$/u;

/** Words of byte-level vocabularies (Radford et al. 2019), with these letters and numbers. */
function wordsOfBytes(letters: string, numbers: string): RegExp {
  const [L, N, S] = [`a-zA-Z${letters}`, `0-9${numbers}`, '\\p{White_Space}'];
  const parts = ["'s|'t|'re|'ve|'m|'ll|'d", ` ?[${L}]+`, ` ?[${N}]+`, ` ?[^${S}${L}${N}]+`, `${S}+(?![^${S}])`, `${S}+`];
  return new RegExp(parts.join('|'), 'gu');
}

/** The visible character of each byte in byte-level vocabularies (Radford et al. 2019). */
const BYTES = (() => {
  const visible = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(visible(byte) ? byte : next++));
})();

export class Tokenizer {
  private readonly ids = new Map<string, number>();
  /** Rank and result of a merge, by both ids. */
  private readonly merges = new Map<number, { rank: number; id: number }>();
  private readonly classes: Record<'removed' | 'marks' | 'punctuation', CharacterClass>;
  private readonly wordsOfBytes: RegExp;
  private readonly splitter: { type: string; add_prefix_space?: boolean; use_regex?: boolean };

  constructor(readonly spec: TokenizerSpec) {
    spec.vocabulary.forEach((piece, id) => this.ids.set(piece, id));
    this.splitter = spec.splitters[0]!;
    const classOf = (name: ClassName) => new CharacterClass(spec.classes[name] ?? []);
    this.classes = { removed: classOf('removed'), marks: classOf('marks'), punctuation: classOf('punctuation') };
    this.wordsOfBytes = wordsOfBytes(classOf('letters').pattern, classOf('numbers').pattern);
    spec.merges.forEach(([left, right], rank) => {
      const [first, second, id] = [left, right, left + right].map((piece) => this.ids.get(piece));
      if (first !== undefined && second !== undefined && id !== undefined) {
        this.merges.set(this.pairOf(first, second), { rank, id });
      }
    });
  }

  /** The vocabulary's spelling of an id. */
  piece(id: number): string {
    return this.spec.vocabulary[id] ?? '';
  }

  /** Whether tokens can include a space. */
  get keepsSpaces(): boolean {
    return this.splitter.type !== 'BertPreTokenizer';
  }

  /** A text, or a pair of texts, with special tokens. */
  read(text: string, pair: string | null): LiveToken[] {
    const pieces = [this.pieces(text), pair === null ? [] : this.pieces(pair)];
    return (pair === null ? this.spec.single : this.spec.pair).flatMap(({ id, text: of, type }): LiveToken[] =>
      id === undefined
        ? pieces[of ?? 0]!.map((piece) => ({ ...piece, type, special: false, inPair: of === 1 }))
        : [{ id, type, special: true, inPair: false, start: 0, end: 0 }],
    );
  }

  private pieces(text: string): Piece[] {
    const { added, normalizers } = this.spec;
    const typed = added.filter((token) => !token.normalized);
    const later = added
      .filter((token) => token.normalized)
      .map((token) => ({ ...token, content: joined(normalized(charactersOf(token.content), normalizers, this.classes)) }));
    const pieces = split({ characters: charactersOf(text) }, typed)
      .flatMap((stretch) =>
        stretch.id === undefined
          ? split({ characters: normalized(stretch.characters, normalizers, this.classes) }, later)
          : [stretch],
      )
      .flatMap(({ characters, id }) =>
        id === undefined
          ? this.words(characters).flatMap((word) => this.tokenized(word))
          : [{ id, start: characters[0]!.start, end: characters[characters.length - 1]!.end }],
      );
    return this.keepsSpaces ? withLoose(this.withoutSpaces(pieces, text), text) : pieces;
  }

  private words(characters: Character[]): Character[][] {
    return this.splitter.type === 'BertPreTokenizer' ? this.bertWords(characters) : this.byteWords(characters);
  }

  private bertWords(characters: Character[]): Character[][] {
    const words: Character[][] = [];
    let open = false;
    for (const character of characters) {
      const alone = PUNCTUATION.test(character.text) || this.classes.punctuation.has(character.text);
      if (SPACE.test(character.text)) {
        open = false;
      } else if (alone || !open) {
        words.push([character]);
        open = !alone;
      } else {
        words[words.length - 1]!.push(character);
      }
    }
    return words;
  }

  private byteWords(characters: Character[]): Character[][] {
    if (characters.length === 0) return [];
    const { add_prefix_space: prefix, use_regex: splits } = this.splitter;
    const all = prefix && characters[0]!.text !== ' ' ? [{ text: ' ', start: 0, end: 0 }, ...characters] : characters;
    if (splits === false) return [all.flatMap(bytesOf)];
    let at = 0;
    return (joined(all).match(this.wordsOfBytes) ?? []).map((word) => {
      const count = Array.from(word).length;
      at += count;
      return all.slice(at - count, at).flatMap(bytesOf);
    });
  }

  private tokenized(word: Character[]): Piece[] {
    return this.spec.merges.length > 0 || this.splitter.type === 'ByteLevel' ? this.merged(word) : this.wordPieces(word);
  }

  /** WordPiece (Wu et al. 2016): the longest pieces from the left, or one unknown token. */
  private wordPieces(word: Character[]): Piece[] {
    const { unk_token, continuing_subword_prefix: prefix, max_input_chars_per_word: most = 100 } = this.spec.model;
    const unknown = [{ id: this.ids.get(unk_token ?? '') ?? 0, ...spanOf(word) }];
    if (word.length > most) return unknown;
    const pieces: Piece[] = [];
    for (let start = 0; start < word.length; ) {
      let end = word.length;
      const spelled = () => (start > 0 ? (prefix ?? '') : '') + joined(word.slice(start, end));
      while (end > start && !this.ids.has(spelled())) end--;
      if (end === start) return unknown;
      pieces.push({ id: this.ids.get(spelled())!, ...spanOf(word.slice(start, end)) });
      start = end;
    }
    return pieces;
  }

  /** Byte-pair encoding (Sennrich et al. 2016): the earliest learned merge first, the leftmost of equal ones. */
  private merged(word: Character[]): Piece[] {
    const whole = this.spec.model.ignore_merges ? this.ids.get(joined(word)) : undefined;
    if (whole !== undefined) return [{ id: whole, ...spanOf(word) }];
    const pieces = word.flatMap(({ text, start, end }): Piece[] => {
      const id = this.ids.get(text);
      return id === undefined ? [] : [{ id, start, end }];
    });
    const rankAt = (place: number) => this.mergeAt(pieces, place)?.rank ?? Infinity;
    const ranks = pieces.map((_, place) => rankAt(place));
    for (;;) {
      const lowest = ranks.reduce((least, rank) => Math.min(least, rank), Infinity);
      if (lowest === Infinity) return pieces;
      const place = ranks.indexOf(lowest);
      const [left, right] = [pieces[place]!, pieces[place + 1]!];
      pieces.splice(place, 2, { id: this.mergeAt(pieces, place)!.id, start: left.start, end: right.end });
      ranks.splice(place, 1);
      ranks[place] = rankAt(place);
      if (place > 0) ranks[place - 1] = rankAt(place - 1);
    }
  }

  private mergeAt(pieces: readonly Piece[], place: number): { rank: number; id: number } | undefined {
    const [left, right] = [pieces[place], pieces[place + 1]];
    return left && right && this.merges.get(this.pairOf(left.id, right.id));
  }

  private pairOf(left: number, right: number): number {
    return left * this.spec.vocabulary.length + right;
  }

  /** Pieces without white space at their ends, as `unmask/text/offsets.py` leaves it out. */
  private withoutSpaces(pieces: Piece[], text: string): Piece[] {
    const blank = Array.from(text, isSpace);
    const space = this.ids.get(BYTES[32]!);
    return pieces.map((piece) => {
      let { start, end } = piece;
      while (start < blank.length && blank[start]) start++;
      while (end > 0 && blank[end - 1]) end--;
      if (start >= end) return piece;
      return { ...piece, start, end: piece.id === space ? start : end };
    });
  }
}

/** White space as Python has it. */
export function isSpace(character: string): boolean {
  return SPACE.test(character) || (character >= '\x1c' && character <= '\x1f');
}

/** Pieces with the marks after them that no piece covers, as `unmask/text/offsets.py` adds them. */
function withLoose(pieces: Piece[], text: string): Piece[] {
  const characters = Array.from(text);
  const covered = new Uint8Array(characters.length);
  for (const { start, end } of pieces) covered.fill(1, start, end);
  const ends = Array.from({ length: characters.length + 1 }, (_, place) => place);
  const starts = [...ends];
  const isBare = (place: number) => !covered[place] && !isSpace(characters[place]!);
  for (let place = characters.length - 1; place >= 0; place--) {
    if (isBare(place) && /^\p{M}$/u.test(characters[place]!)) ends[place] = ends[place + 1]!;
  }
  for (let place = 0; place + 1 < characters.length; place++) {
    const [quote, next] = [characters[place]!, characters[place + 1]];
    if (isBare(place) && "'`".includes(quote) && quote === next) starts[place + 1] = starts[place]!;
  }
  return pieces.map((piece) => {
    const start = starts[piece.start]!;
    return { ...piece, start, end: piece.start < piece.end ? ends[piece.end]! : start };
  });
}

function spanOf(word: readonly Character[]): { start: number; end: number } {
  return { start: word[0]!.start, end: word[word.length - 1]!.end };
}

function bytesOf({ text, start, end }: Character): Character[] {
  return Array.from(new TextEncoder().encode(text), (byte) => ({ text: BYTES[byte]!, start, end }));
}

/** Characters split at added tokens: the leftmost, and the longest of those that begin together. */
function split({ characters }: Stretch, tokens: readonly AddedToken[]): Stretch[] {
  const ordered = tokens
    .map((token) => ({ ...token, characters: Array.from(token.content) }))
    .filter((token) => token.characters.length > 0)
    .sort((a, b) => b.characters.length - a.characters.length);
  const stretches: Stretch[] = [];
  const textAt = (place: number) => characters[place]?.text ?? '';
  let begin = 0;
  for (let place = 0; place < characters.length; ) {
    const token = ordered.find(({ characters: content }) => content.every((text, at) => textAt(place + at) === text));
    if (!token) {
      place++;
      continue;
    }
    let start = place;
    let end = place + token.characters.length;
    place = end;
    if (token.single_word && (WORD.test(textAt(start - 1)) || WORD.test(textAt(end)))) continue;
    while (token.lstrip && start > begin && SPACE.test(textAt(start - 1))) start--;
    while (token.rstrip && end < characters.length && SPACE.test(textAt(end))) end++;
    if (start > begin) stretches.push({ characters: characters.slice(begin, start) });
    stretches.push({ characters: characters.slice(start, end), id: token.id });
    begin = end;
    place = Math.max(place, end);
  }
  if (begin < characters.length) stretches.push({ characters: characters.slice(begin) });
  return stretches;
}
