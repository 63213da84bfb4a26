/** The choice of attention between the texts of a pair, one for all views. */

import { EDGES, type Edges } from '../draw/segments';
import type { Explorer } from './explorer.svelte';

/** all where the text is no pair. */
export function edgesOf(explorer: Explorer): Edges {
  const asked = explorer.option('pair.edges', 'all');
  return (explorer.a?.pair && EDGES.find((edges) => edges === asked)) || 'all';
}

export function renormalizes(explorer: Explorer): boolean {
  return explorer.option('pair.rows', 'masked') === 'renormalized';
}
