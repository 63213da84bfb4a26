/** Statistics of all heads on the current text, requested again as layers are measured, and of the chosen head token by token. */

import { arrayOf, type Arrays } from '../api/binary';
import * as requests from '../api/requests';
import type { HeadsMeta } from '../api/types';
import type { Explorer, Reading } from './explorer.svelte';
import { type Loaded, loaded } from './loaded.svelte';

/** How one statistic of a head is displayed. */
export interface Measure {
  id: string;
  short: string;
  long: string;
  digits: number;
  /** The end of its colors; null: the largest value of this text. */
  most: number | null;
}

export const MEASURES: readonly Measure[] = [
  { id: 'entropy_share', short: 'Entropy', long: 'mean entropy of the rows, as a share of the maximum over allowed keys', digits: 2, most: 1 },
  { id: 'sink_mass', short: 'Sink', long: 'largest mean attention received by one key', digits: 2, most: 1 },
  { id: 'distance', short: 'Mean distance', long: 'mean distance from query to key, in tokens', digits: 1, most: null },
  { id: 'distance_share', short: 'Relative distance', long: 'mean distance divided by that of uniform attention', digits: 2, most: null },
];

/** Of two texts: not a statistic of one of them. */
export const MOVED: Measure = {
  id: 'moved',
  short: 'Moved',
  long: 'share of a word’s attention that goes to other words than before, mean over the words of both texts',
  digits: 3,
  most: null,
};

export function measureOf(id: string): Measure {
  return MEASURES.find((measure) => measure.id === id) ?? (MEASURES[0] as Measure);
}

export class Heads {
  constructor(
    private readonly answer: Arrays<HeadsMeta>,
    private readonly firstToken: string,
  ) {}

  /** Whether the statistics of a layer are measured. */
  ready(layer: number): boolean {
    return arrayOf(this.answer, 'ready').data[layer] === 1;
  }

  /** A statistic of one head, or null where it is not measured yet. */
  value(statistic: string, layer: number, head: number): number | null {
    if (!this.ready(layer)) return null;
    const { shape, data } = arrayOf(this.answer, statistic);
    return data[layer * (shape[1] ?? 0) + head] ?? null;
  }

  /** The largest value of a statistic. */
  most(statistic: string): number {
    return Array.from(arrayOf(this.answer, statistic).data).reduce((most, value) => Math.max(most, value), 0) || 1;
  }

  /** The kind of a head. */
  label(layer: number, head: number): string {
    const at = this.value('label', layer, head);
    const found = at === null ? '' : (this.answer.meta.labels[at] ?? '');
    return found === 'first' ? `attends to ${this.firstToken}` : found;
  }

  /** softmax, or kernel for the implied weights of linear attention. */
  kind(layer: number): string {
    return this.answer.meta.kinds[layer] ?? '';
  }

  get classes(): string[] {
    return this.answer.meta.classes;
  }

  /** Mean attention mass that a head gives to a class of keys. */
  mass(layer: number, head: number, place: number): number | null {
    if (!this.ready(layer)) return null;
    const { shape, data } = arrayOf(this.answer, 'classes');
    const [, heads = 0, classes = 0] = shape;
    return data[(layer * heads + head) * classes + place] ?? null;
  }
}

/** Those of the text that is shown, or of another reading. */
export function loadedHeads(explorerOf: () => Explorer, readingOf: () => Reading | null = () => explorerOf().a): Loaded<Heads> {
  return loaded(() => {
    const explorer = explorerOf();
    const reading = readingOf();
    if (!reading || reading.measured === 0) return null;
    return explorer
      .fetch(requests.heads({ text: reading.id }))
      .then((answer) => new Heads(answer, reading.names[0] ?? 'first'));
  });
}

export interface TokenMeasure {
  id: string;
  label: string;
  means: string;
  digits: number;
}

export const TOKEN_MEASURES: readonly TokenMeasure[] = [
  { id: 'attention_received', label: 'attention received', means: 'mean attention the token receives from all queries', digits: 4 },
  { id: 'received_norm', label: 'received, norm-weighted', means: 'share of the norm-weighted attention of all queries', digits: 4 },
  { id: 'max_received', label: 'maximum received', means: 'largest attention the token receives from one query', digits: 3 },
  { id: 'entropy_share', label: 'entropy', means: 'entropy of the token\'s attention, as a share of the maximum over its allowed keys', digits: 3 },
  { id: 'distance', label: 'mean distance', means: 'mean distance to the keys the token attends to, in tokens', digits: 1 },
  { id: 'norm', label: 'value norm', means: 'norm of the vector the token adds when attended to', digits: 3 },
];

export function tokenMeasureOf(id: string): TokenMeasure {
  return TOKEN_MEASURES.find((measure) => measure.id === id) ?? (TOKEN_MEASURES[0] as TokenMeasure);
}

/** The arrays of `head/{l}/{h}` of the chosen head, once its layer is measured. */
export function loadedHead(explorerOf: () => Explorer): Loaded<Arrays<HeadsMeta>> {
  return loaded(() => {
    const explorer = explorerOf();
    const { layer, head } = explorer.view;
    const reading = explorer.a;
    if (!reading?.ready(layer) || !reading.read.heads[layer]) return null;
    return explorer.fetch(requests.head({ text: reading.id, layer, head }));
  });
}

/** One statistic of every token; null while it is loading. */
export function valuesOf(head: Loaded<Arrays<HeadsMeta>>, id: string): ArrayLike<number> | null {
  return head.value ? arrayOf(head.value, id).data : null;
}

/** Values as shares of the largest of them. */
export function sharesOf(values: ArrayLike<number> | null): Float32Array | null {
  if (!values) return null;
  let most = 0;
  for (let at = 0; at < values.length; at++) most = Math.max(most, values[at] ?? 0);
  return Float32Array.from(values, (value) => (most > 0 ? value / most : 0));
}
