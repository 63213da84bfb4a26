/** Rows and columns of a map: tokens, or the words they belong to. */

import type { Reading } from './reading.svelte';

export interface Units {
  count: number;
  names: string[];
  /** The unit of a token, or null. */
  of: (token: number) => number | null;
  /** The first token of a unit. */
  first: (unit: number) => number;
}

export function unitsOf(reading: Reading, words: boolean): Units {
  if (!words) {
    return { count: reading.count, names: reading.names, of: (token) => token, first: (unit) => unit };
  }
  const { read } = reading;
  return {
    count: read.words.length,
    names: read.words.map(({ surface, first }) => (surface === '' ? (reading.names[first] ?? '') : surface)),
    of: (token) => read.tokens[token]?.word ?? null,
    first: (unit) => read.words[unit]?.first ?? 0,
  };
}
