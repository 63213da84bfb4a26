/** The views of the explorer, in the order of their tabs. */

import type { Component } from 'svelte';
import type { Explorer } from '../state/explorer.svelte';
import { type Binding, BINDINGS } from '../state/keys';
import { DEFAULTS } from '../state/url';
import Compare from './compare/Compare.svelte';
import Flow from './flow/Flow.svelte';
import Geometry from './geometry/Geometry.svelte';
import Heads from './heads/Heads.svelte';
import Map from './map/Map.svelte';
import Paths from './paths/Paths.svelte';
import Search from './search/Search.svelte';
import Sinks from './sinks/Sinks.svelte';
import Tokens from './tokens/Tokens.svelte';
import Tour from './tour/Tour.svelte';
import Wall from './wall/Wall.svelte';
import Words from './words/Words.svelte';

export interface View {
  id: string;
  title: string;
  /** The key that opens it. */
  key: string;
  /** What it shows, in one sentence. */
  hint: string;
  component: Component<{ explorer: Explorer }>;
  /** text: a text that was read; two: the same text read by two models; index: an index; none: works by itself. */
  needs: 'text' | 'two' | 'index' | 'none';
  /** Whether it shows attention maps, which some models do not have. */
  maps: boolean;
  /** Whether it shows the text itself. */
  strip: boolean;
}

export const VIEWS: readonly View[] = [
  { id: 'search', title: 'Search', key: 'q', hint: 'passages of an index, and why each was found', component: Search, needs: 'index', maps: false, strip: true },
  { id: 'tokens', title: 'Tokens', key: 'k', hint: 'the tokens of the text and the attention each receives', component: Tokens, needs: 'text', maps: false, strip: true },
  { id: 'heads', title: 'Heads', key: 'h', hint: 'every layer and head at a glance', component: Heads, needs: 'text', maps: true, strip: false },
  { id: 'map', title: 'Map', key: 'm', hint: 'one head, down to a single exact value', component: Map, needs: 'text', maps: true, strip: true },
  { id: 'flow', title: 'Flow', key: 'f', hint: 'the top-k attention edges of a token, across layers', component: Flow, needs: 'text', maps: true, strip: true },
  { id: 'sinks', title: 'Sinks', key: 's', hint: 'attention sinks by class of key, token and head', component: Sinks, needs: 'text', maps: true, strip: true },
  { id: 'paths', title: 'Paths', key: 'p', hint: 'attention rollout and gradient attribution for a token', component: Paths, needs: 'text', maps: true, strip: true },
  { id: 'words', title: 'Words', key: 'w', hint: 'masked-word predictions, logit lens and head ablations', component: Words, needs: 'text', maps: false, strip: true },
  { id: 'compare', title: 'Compare', key: 'c', hint: 'two models side by side on one text', component: Compare, needs: 'two', maps: false, strip: true },
  { id: 'geometry', title: 'Geometry', key: 'g', hint: 'intrinsic dimension, isotropy and word senses by layer', component: Geometry, needs: 'text', maps: false, strip: false },
  { id: 'wall', title: 'Length scaling', key: 'l', hint: 'time and memory versus sequence length, measured on this machine', component: Wall, needs: 'none', maps: false, strip: false },
  { id: 'tour', title: 'Tour', key: 't', hint: 'an introduction to attention, with experiments on your text', component: Tour, needs: 'none', maps: false, strip: false },
];

export function viewOf(id: string): View {
  return VIEWS.find((view) => view.id === id) ?? (VIEWS.find((view) => view.id === DEFAULTS.view) as View);
}

/** The views that this explorer offers: a search needs an index, unless an address asked for it. */
export function viewsOf(explorer: Explorer): readonly View[] {
  return VIEWS.filter((view) => view.needs !== 'index' || explorer.searches || view.id === explorer.view.view);
}

/** All keys: those of the page and one for every view. */
export function bindingsOf(explorer: Explorer): readonly Binding[] {
  const views = viewsOf(explorer).map((view) => ({
    key: view.key,
    shown: view.key,
    means: `${view.title}: ${view.hint}`,
    action: { do: 'view', view: view.id } as const,
    local: false,
  }));
  return [...BINDINGS, ...views];
}
