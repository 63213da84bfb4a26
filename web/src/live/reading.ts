/** A short text with its states and attention, as the request `live` answers it. */

import { type Arrays, floatsOf } from '../api/binary';
import type { Answer } from '../api/source';
import type { LiveMeta, TextRead } from '../api/types';

/**
 * Answers the request `live` in the page itself: a saved page that holds a model has one. The answer is what the
 * server would send, the container of `api/binary.ts` with the meta `LiveMeta` and the arrays `states`, `attention`,
 * `norms` and, if it can, `words`; a text that cannot be read is refused as the server refuses it.
 */
export interface LiveEngine {
  get(path: string): Promise<Answer>;
}

export class LiveText {
  readonly read: TextRead;
  /** Tokens, levels of the residual stream, heads of all layers, width of a state. */
  readonly count: number;
  readonly levels: number;
  readonly heads: number;
  readonly width: number;
  /** Layer of each head, all heads counted through. */
  readonly layerOf: readonly number[];
  private readonly states: Float32Array;
  private readonly attention: Float32Array;
  private readonly norms: Float32Array;
  /** Word embeddings, N rows; null where the answer has none. */
  private readonly words: { data: Float32Array; width: number } | null;

  constructor(answer: Arrays<LiveMeta>) {
    const states = floatsOf(answer, 'states');
    this.read = answer.meta.read;
    [this.levels, this.count, this.width] = states.shape as [number, number, number];
    this.states = states.data;
    this.attention = floatsOf(answer, 'attention').data;
    this.norms = floatsOf(answer, 'norms').data;
    const words = answer.arrays.has('words') ? floatsOf(answer, 'words') : null;
    this.words = words && { data: words.data, width: words.shape[1] as number };
    this.layerOf = this.read.heads.flatMap((heads, layer) => Array<number>(heads).fill(layer));
    this.heads = this.layerOf.length;
  }

  /** The state of a token at a level; level 0 is that of the embeddings. */
  state(level: number, token: number): Float32Array {
    const start = (level * this.count + token) * this.width;
    return this.states.subarray(start, start + this.width);
  }

  /** The word embedding of a token, the same wherever it stands. */
  word(token: number): Float32Array | null {
    if (!this.words) return null;
    const { data, width } = this.words;
    return data.subarray(token * width, (token + 1) * width);
  }

  /** Attention of a query, one number a key; heads of all layers are counted through. */
  row(head: number, query: number): Float32Array {
    const start = (head * this.count + query) * this.count;
    return this.attention.subarray(start, start + this.count);
  }

  /** The number of a head, all heads counted through. */
  headAt(layer: number, head: number): number {
    return this.layerOf.indexOf(layer) + head;
  }

  /** All attention of a head, row by row. */
  map(head: number): Float32Array {
    return this.attention.subarray(head * this.count ** 2, (head + 1) * this.count ** 2);
  }

  /** What each key adds through a head, as a norm. */
  normsOf(head: number): Float32Array {
    return this.norms.subarray(head * this.count, (head + 1) * this.count);
  }
}
