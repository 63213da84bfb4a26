/** The strongest edges of layers, as raw or norm-weighted attention, of all tokens, of words or of a pair. */

import * as requests from '../api/requests';
import { LayerEdges } from '../draw/flow';
import { EDGES, type Edges, textsOf } from '../draw/segments';
import type { Explorer } from './explorer.svelte';
import { type Loaded, loaded } from './loaded.svelte';
import { canAnswer } from './saved';
import type { Special, Weight } from './url';

/** Keys of a query that an answer lists at most. */
export const MOST_KEYS = 8;

/** The choice of attention between the texts of a pair, one for all views; all where the text is no pair. */
export function edgesOf(explorer: Explorer): Edges {
  const asked = explorer.option('pair.edges', 'all');
  return (explorer.a?.pair && EDGES.find((edges) => edges === asked)) || 'all';
}

export function renormalizes(explorer: Explorer): boolean {
  return explorer.option('pair.rows', 'masked') === 'renormalized';
}

/** One layer or several, in order; null until the text is read. `between`: of a pair, those that are chosen. */
export function loadedEdges(
  explorerOf: () => Explorer,
  layersOf: () => readonly number[],
  { most = () => MOST_KEYS, between = false, weightOf = () => undefined }: { most?: () => number; between?: boolean; weightOf?: () => Weight | undefined } = {},
): Loaded<LayerEdges[]> {
  return loaded(() => {
    const explorer = explorerOf();
    const reading = explorer.a;
    const { special } = explorer.view;
    const weight = weightOf() ?? explorer.view.weight;
    const keys = most();
    if (!reading?.readable || keys < 1) return null;
    const edges: Edges = between ? edgesOf(explorer) : 'all';
    const rows = renormalizes(explorer) ? 'renormalized' : special;
    return Promise.all(
      layersOf().map(async (layer) => {
        const at = { text: reading.id, layer, weight, most: keys };
        if (edges === 'all') return LayerEdges.of(await explorer.fetch(requests.edges({ ...at, special })), layer);
        return LayerEdges.between(await explorer.fetch(requests.pairEdges(at)), layer, textsOf(reading.read, false), edges, rows);
      }),
    );
  });
}

/** Whether the edges of layers can be had by these weights, with or without special tokens. */
export function canShow(explorer: Explorer, layers: readonly number[], weights: readonly Weight[], specials: readonly Special[]): boolean {
  const text = explorer.a?.id ?? '';
  return canAnswer(
    explorer,
    layers.flatMap((layer) => weights.flatMap((weight) => specials.map((special) => requests.edges({ text, layer, weight, special })))),
  );
}

/** Whether those between the texts of a pair can be had. */
export function canSplit(explorer: Explorer, layers: readonly number[]): boolean {
  const text = explorer.a?.id ?? '';
  return canAnswer(explorer, layers.map((layer) => requests.pairEdges({ text, layer, weight: explorer.view.weight })));
}
