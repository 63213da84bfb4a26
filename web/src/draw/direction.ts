/** Texts that are written from right to left. */

const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}\p{Script=Samaritan}]/u;

/** Whether any letter of a text belongs to a script that is written from right to left. */
export function anyRightToLeft(text: string): boolean {
  return RIGHT_TO_LEFT.test(text);
}

/** The direction of a text: that of its first letter. */
export function directionOf(text: string): 'ltr' | 'rtl' {
  const first = /\p{L}/u.exec(text);
  return first && anyRightToLeft(first[0]) ? 'rtl' : 'ltr';
}

/**
 * The element of a token in running text. A button is laid out as one object, so that the pieces of a word from
 * right to left would stand in the wrong order and its letters unjoined; a span is part of its line.
 */
export function tokenElement(text: string): { this: string; role?: 'button' } {
  return anyRightToLeft(text) ? { this: 'span', role: 'button' } : { this: 'button' };
}
