/** Per-token statistics of the selected head. */

import { type Arrays, arrayOf } from '../api/binary';
import * as requests from '../api/requests';
import type { HeadsMeta } from '../api/types';
import type { Explorer } from './explorer.svelte';
import { type Loaded, loaded } from './loaded.svelte';

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
