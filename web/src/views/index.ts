/** The views of the explorer, in the order of their tabs. */

import type { Component } from 'svelte';
import type { Explorer } from '../state/explorer.svelte';
import { type Binding, BINDINGS } from '../state/keys';
import Compare from './compare/Compare.svelte';
import Flow from './flow/Flow.svelte';
import Geometry from './geometry/Geometry.svelte';
import Heads from './heads/Heads.svelte';
import Map from './map/Map.svelte';
import Paths from './paths/Paths.svelte';
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
  /** text: a text that was read; two: the same text read by two models; none: works by itself. */
  needs: 'text' | 'two' | 'none';
  /** Whether it shows attention maps, which some models have none of. */
  maps: boolean;
  /** Whether it shows the text itself, so that nothing else must. */
  strip: boolean;
}

export const VIEWS: readonly View[] = [
  { id: 'tokens', title: 'Tokens', key: 'k', hint: 'how the text is cut, and what each token receives', component: Tokens, needs: 'text', maps: false, strip: true },
  { id: 'heads', title: 'Heads', key: 'h', hint: 'every layer and head at a glance', component: Heads, needs: 'text', maps: true, strip: false },
  { id: 'map', title: 'Map', key: 'm', hint: 'one head, down to a single exact value', component: Map, needs: 'text', maps: true, strip: true },
  { id: 'flow', title: 'Flow', key: 'f', hint: 'the strongest edges of a token, through the layers', component: Flow, needs: 'text', maps: true, strip: true },
  { id: 'sinks', title: 'Sinks', key: 's', hint: 'where attention drains to', component: Sinks, needs: 'text', maps: true, strip: true },
  { id: 'paths', title: 'Paths', key: 'p', hint: 'what a token was made of: rollout and relevance', component: Paths, needs: 'text', maps: true, strip: true },
  { id: 'words', title: 'Words', key: 'w', hint: 'which words could stand here, layer by layer', component: Words, needs: 'text', maps: false, strip: true },
  { id: 'compare', title: 'Compare', key: 'c', hint: 'two models side by side on one text', component: Compare, needs: 'two', maps: false, strip: true },
  { id: 'geometry', title: 'Geometry', key: 'g', hint: 'the shape of the space of each layer', component: Geometry, needs: 'text', maps: false, strip: false },
  { id: 'wall', title: 'Wall', key: 'l', hint: 'time and memory over length, measured on this machine', component: Wall, needs: 'none', maps: false, strip: false },
  { id: 'tour', title: 'Tour', key: 't', hint: 'the story of attention, with experiments on your words', component: Tour, needs: 'none', maps: false, strip: false },
];

export function viewOf(id: string): View {
  return VIEWS.find((view) => view.id === id) ?? (VIEWS[2] as View);
}

/** All keys: those of the page and one for every view. */
export const ALL_BINDINGS: readonly Binding[] = [
  ...BINDINGS,
  ...VIEWS.map((view) => ({
    key: view.key,
    shown: view.key,
    means: `${view.title}: ${view.hint}`,
    action: { do: 'view', view: view.id } as const,
    local: false,
  })),
];
