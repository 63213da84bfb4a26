/** Statistics of the head that is looked at, token by token. */

import { type Arrays, arrayOf } from '../api/binary';
import type { Explorer } from './explorer.svelte';
import { type Loaded, loaded } from './loaded.svelte';

export interface TokenMeasure {
  id: string;
  label: string;
  means: string;
  digits: number;
}

export const TOKEN_MEASURES: readonly TokenMeasure[] = [
  { id: 'received', label: 'received', means: 'mean attention it receives from all queries', digits: 4 },
  { id: 'received_norm', label: 'received, norm-weighted', means: 'share of the norm-weighted attention of all queries', digits: 4 },
  { id: 'peak', label: 'strongest look', means: 'the most attention that one query gives it', digits: 3 },
  { id: 'entropy_share', label: 'spread', means: 'entropy of where it looks, as a share of the most its keys permit', digits: 3 },
  { id: 'distance', label: 'distance', means: 'how far it looks, in tokens', digits: 1 },
  { id: 'norm', label: 'value norm', means: 'length of the vector it adds when it is looked at', digits: 3 },
];

export function tokenMeasureOf(id: string): TokenMeasure {
  return TOKEN_MEASURES.find((measure) => measure.id === id) ?? (TOKEN_MEASURES[0] as TokenMeasure);
}

/** The arrays of `head/{l}/{h}` of the chosen head, once its layer is measured. */
export function loadedHead(explorerOf: () => Explorer): Loaded<Arrays> {
  return loaded(() => {
    const explorer = explorerOf();
    const { layer, head } = explorer.view;
    const reading = explorer.a;
    if (!reading?.ready(layer)) return null;
    return explorer.fetchArrays(`texts/${reading.id}/head/${layer}/${head}`);
  });
}

/** One statistic of every token; null while it is not here. */
export function valuesOf(head: Loaded<Arrays>, id: string): ArrayLike<number> | null {
  return head.value ? arrayOf(head.value, id).data : null;
}

/** Values as shares of the largest of them. */
export function sharesOf(values: ArrayLike<number> | null): Float32Array | null {
  if (!values) return null;
  let most = 0;
  for (let at = 0; at < values.length; at++) most = Math.max(most, values[at] ?? 0);
  return Float32Array.from(values, (value) => (most > 0 ? value / most : 0));
}
