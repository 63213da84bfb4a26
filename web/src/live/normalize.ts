/** Normalization of a text, character by character, so that each is known to stand for which of the text. */

/** A code point, and the range of the text's code points that it stands for. */
export interface Character {
  text: string;
  start: number;
  end: number;
}

export interface Normalizer {
  type: string;
  clean_text?: boolean;
  handle_chinese_chars?: boolean;
  strip_accents?: boolean | null;
  lowercase?: boolean;
}

/** The characters of a class: beginnings and ends of ranges, as `unmask/explorer/export/live_model.py` has them. */
export class CharacterClass {
  private readonly holds = new Uint8Array(0x110000);

  constructor(readonly ranges: readonly number[]) {
    for (let at = 0; at < ranges.length; at += 2) this.holds.fill(1, ranges[at]!, ranges[at + 1]!);
  }

  has(character: string): boolean {
    return this.holds[character.codePointAt(0) ?? 0] === 1;
  }

  /** What stands in the brackets of a regular expression for it. */
  get pattern(): string {
    const escaped = (code: number) => `\\u{${code.toString(16)}}`;
    return this.ranges.map((code, at) => (at % 2 === 0 ? escaped(code) : `-${escaped(code - 1)}`)).join('');
  }
}

/** What BERT's normalizer leaves out: control characters, and marks. */
export interface Removed {
  removed: CharacterClass;
  marks: CharacterClass;
}

export const SPACE = /^\p{White_Space}$/u;
const CONTROL = /^(?![\t\n\r])[\p{Cc}\p{Co}]$/u;
const IDEOGRAPH =
  /^[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]$/u;
/** The only mark of the highest class below. */
const IOTA = '\u0345';

export function charactersOf(text: string): Character[] {
  return Array.from(text, (character, place) => ({ text: character, start: place, end: place + 1 }));
}

/** The text of characters. */
export function joined(characters: readonly Character[]): string {
  return characters.map(({ text }) => text).join('');
}

export function normalized(characters: Character[], steps: readonly Normalizer[], classes: Removed): Character[] {
  return steps.reduce((result, normalizer) => {
    switch (normalizer.type) {
      case 'BertNormalizer':
        return bert(result, normalizer, classes);
      case 'Lowercase':
        return result.flatMap(lowercased);
      default:
        return inForm(result, normalizer.type as Form);
    }
  }, characters);
}

function bert(characters: Character[], options: Normalizer, { removed, marks }: Removed): Character[] {
  let result = characters;
  if (options.clean_text) {
    result = result
      .filter(({ text }) => !CONTROL.test(text) && !removed.has(text))
      .map((character) => (SPACE.test(character.text) ? { ...character, text: ' ' } : character));
  }
  if (options.handle_chinese_chars) {
    result = result.flatMap((character) => {
      const space = { ...character, text: ' ' };
      return IDEOGRAPH.test(character.text) ? [space, character, space] : [character];
    });
  }
  if (options.strip_accents ?? options.lowercase) {
    result = inForm(result, 'NFD').filter(({ text }) => !marks.has(text));
  }
  return options.lowercase ? result.flatMap(lowercased) : result;
}

/** In lower case, each character by itself: a sigma at the end of a word is like any other. */
function lowercased(character: Character): Character[] {
  return Array.from(character.text.toLowerCase(), (text) => ({ ...character, text }));
}

type Form = 'NFC' | 'NFD';

/** A character of a normal form, and how many more it replaces in the text than one: -1 for one that was added. */
interface Changed {
  text: string;
  more: number;
}

/**
 * In a Unicode normalization form, with what each character stands for as the package `tokenizers` counts it: places
 * count, even where marks change their order, and a composed character stands for its first.
 */
function inForm(characters: Character[], form: Form): Character[] {
  const whole = joined(characters);
  if (whole.normalize(form) === whole) return characters;
  const decomposed = inOrder(characters);
  let at = 0;
  return (form === 'NFC' ? composed(decomposed) : decomposed).map(({ text, more }) => {
    const source = characters[more < 0 ? Math.max(at - 1, 0) : at]!;
    at += more + 1;
    return { ...source, text };
  });
}

/** Decomposed, with marks in canonical order. */
function inOrder(characters: Character[]): Changed[] {
  const changed = characters.flatMap(({ text }) =>
    Array.from(text.normalize('NFD'), (part, number): Changed => ({ text: part, more: number === 0 ? 0 : -1 })),
  );
  Array.from(joined(characters).normalize('NFD')).forEach((text, place) => {
    for (let from = place; from < changed.length; from++) {
      if (changed[from]!.text !== text) continue;
      if (from > place) changed.splice(place, 0, ...changed.splice(from, 1));
      break;
    }
  });
  return changed;
}

/** Canonical composition (Unicode, chapter 3.11) of decomposed characters in canonical order. */
function composed(decomposed: readonly Changed[]): Changed[] {
  const result: Changed[] = [];
  let starter: Changed | undefined;
  for (const { text, more } of decomposed) {
    const last = result[result.length - 1];
    const isMark = text === IOTA || reorders(IOTA, text);
    const blocked = last !== starter && !(isMark && reorders(text, last!.text));
    const pair = starter && !blocked ? Array.from((starter.text + text).normalize('NFC')) : [];
    if (starter && pair.length === 1) {
      starter.text = pair[0]!;
      starter.more += more + 1;
      continue;
    }
    result.push({ text, more });
    if (!isMark) starter = result[result.length - 1];
  }
  return result;
}

/** Whether two characters change places in canonical order. */
function reorders(first: string, second: string): boolean {
  return (first + second).normalize('NFD') !== first + second;
}
