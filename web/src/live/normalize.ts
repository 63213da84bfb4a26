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

export const SPACE = /^\p{White_Space}$/u;
/** Removed by BERT's normalizer: control and format characters, private use, and the replacement character. */
const REMOVED = /^(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\ufffd]$/u;
const IDEOGRAPH =
  /^[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]$/u;
const MARK = /^\p{M}$/u;
const NONSPACING = /^\p{Mn}$/u;
/** A character with the marks on it, or a run of Hangul, whose letters compose. */
const CLUSTER = /[\u1100-\u11ff\uac00-\ud7ff\ua960-\ua97f]+\p{M}*|\P{M}?\p{M}*/gsu;

export function charactersOf(text: string): Character[] {
  return Array.from(text, (character, place) => ({ text: character, start: place, end: place + 1 }));
}

/** The text of characters. */
export function joined(characters: readonly Character[]): string {
  return characters.map(({ text }) => text).join('');
}

export function normalized(characters: Character[], steps: readonly Normalizer[]): Character[] {
  return steps.reduce(step, characters);
}

function step(characters: Character[], normalizer: Normalizer): Character[] {
  switch (normalizer.type) {
    case 'BertNormalizer':
      return bert(characters, normalizer);
    case 'Lowercase':
      return characters.flatMap(lowercased);
    case 'StripAccents':
      return characters.filter(({ text }) => !MARK.test(text));
    default:
      return inForm(characters, normalizer.type as 'NFC' | 'NFD' | 'NFKC' | 'NFKD');
  }
}

function bert(characters: Character[], options: Normalizer): Character[] {
  let result = characters;
  if (options.clean_text) {
    result = result
      .filter(({ text }) => text !== '\0' && !REMOVED.test(text))
      .map((character) => (SPACE.test(character.text) ? { ...character, text: ' ' } : character));
  }
  if (options.handle_chinese_chars) {
    result = result.flatMap((character) => {
      const space = { ...character, text: ' ' };
      return IDEOGRAPH.test(character.text) ? [space, character, space] : [character];
    });
  }
  if (options.strip_accents ?? options.lowercase) {
    result = inForm(result, 'NFD').filter(({ text }) => !NONSPACING.test(text));
  }
  return options.lowercase ? result.flatMap(lowercased) : result;
}

/** In lower case, each character by itself: a sigma at the end of a word is like any other. */
function lowercased(character: Character): Character[] {
  return Array.from(character.text.toLowerCase(), (text) => ({ ...character, text }));
}

/** In a Unicode normalization form, cluster by cluster. */
function inForm(characters: Character[], form: 'NFC' | 'NFD' | 'NFKC' | 'NFKD'): Character[] {
  const whole = joined(characters);
  const normal = whole.normalize(form);
  if (normal === whole) return characters;
  const clusters = whole.match(CLUSTER)?.filter((cluster) => cluster !== '') ?? [];
  const apart = clusters.map((cluster) => cluster.normalize(form)).join('') === normal;
  let at = 0;
  return (apart ? clusters : [whole]).flatMap((cluster) => {
    const count = Array.from(cluster).length;
    at += count;
    return cluster.normalize(form) === cluster
      ? characters.slice(at - count, at)
      : reformed(characters.slice(at - count, at), cluster.normalize(form), form);
  });
}

/**
 * The characters of a cluster in its normal form, by their places: those that are reordered are not followed, and all
 * that is composed is taken to be composed with the first.
 */
function reformed(cluster: Character[], normal: string, form: string): Character[] {
  const letters = Array.from(normal);
  const composed = Math.max(cluster.length - letters.length, 0);
  const sources = form.endsWith('D')
    ? cluster.flatMap((character) => Array.from(character.text.normalize(form), () => character))
    : cluster.filter((_, place) => place === 0 || place > composed);
  return letters.map((text, place) => ({ ...sources[Math.min(place, sources.length - 1)]!, text }));
}
