/** One text as one model reads it, and how far its analysis is. */

import type { State, TextRead } from '../api/types';
import { label, type Segment, segments } from '../draw/words';
import { spansOf } from './url';

/** A text as it is sent. */
export interface Sent {
  text: string;
  pair: string;
  cut: boolean;
  /** Number of the model. */
  model: number;
  /** As in the address. */
  global: string;
}

/** As the server takes it. */
export function bodyOf({ text, pair, cut, model, global }: Sent) {
  return { text, pair: pair === '' ? null : pair, model, too_long: cut ? 'cut' : 'error', global: spansOf(global) };
}

/** a: the model that is looked at; b: the one beside it; before: the text compared with, in the model of a. */
export type Side = 'a' | 'b' | 'before';

export class Reading {
  readonly segments: Segment[];
  /** The tokens' names, as people read them. */
  readonly names: string[];
  /** What the server said last about the analysis; null until it said something. */
  state: State | null = $state.raw(null);

  constructor(
    readonly side: Side,
    readonly read: TextRead,
    readonly text: string,
    readonly pair: string,
    readonly cut: boolean,
    /** What was made global, as in the address. */
    readonly global = '',
  ) {
    this.segments = segments(text, pair, read.tokens, read.kept_tokens < read.total_tokens);
    this.names = read.tokens.map(label);
  }

  /** How it was sent, to send it again. */
  get sent(): Sent {
    return { text: this.text, pair: this.pair, cut: this.cut, model: this.read.model_index, global: this.global };
  }

  /** The same text on another side, as far as it is measured. */
  as(side: Side): Reading {
    const found = new Reading(side, this.read, this.text, this.pair, this.cut, this.global);
    found.state = this.state;
    return found;
  }

  get id(): string {
    return this.read.id;
  }

  get count(): number {
    return this.names.length;
  }

  /** Whether single values can be asked for: the forward pass is done. */
  readable: boolean = $derived(this.state?.readable ?? false);
  /** Whether every layer is measured. */
  complete: boolean = $derived(this.state?.ready.every(Boolean) ?? false);
  /** How many layers are measured. */
  measured: number = $derived(this.state?.ready.filter(Boolean).length ?? 0);

  /** Whether the statistics of one layer are there. */
  ready(layer: number): boolean {
    return this.state?.ready[layer] ?? false;
  }

  /** Whether the server is still at work on this text. */
  underway: boolean = $derived(
    this.state === null || ['waiting', 'reading', 'measuring'].includes(this.state.phase),
  );

  /** Tokens that share a character with code points start..end of the same text. */
  overlapping(start: number, end: number, inPair: boolean): number[] {
    const found: number[] = [];
    this.read.tokens.forEach((token, number) => {
      if (!token.special && token.in_pair === inPair && token.start < end && start < token.end) {
        found.push(number);
      }
    });
    return found;
  }
}

/** Rows and columns of a map: tokens, or the words they belong to. */
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
