/** The views of the explorer, grouped by the question that they answer. */

import type { Component } from 'svelte';
import type { Explorer } from '../state/explorer.svelte';
import { type Binding, BINDINGS } from '../state/keys';
import { DEFAULTS } from '../state/url';
import Compare from './compare/Compare.svelte';
import Flow from './flow/Flow.svelte';
import Geometry from './geometry/Geometry.svelte';
import Head from './head/Head.svelte';
import Heads from './heads/Heads.svelte';
import Map from './map/Map.svelte';
import Overview from './overview/Overview.svelte';
import Paths from './paths/Paths.svelte';
import Search from './search/Search.svelte';
import Sinks from './sinks/Sinks.svelte';
import Tokens from './tokens/Tokens.svelte';
import Tour from './tour/Tour.svelte';
import Wall from './wall/Wall.svelte';
import Words from './words/Words.svelte';

/** Groups of tabs, in their order. A search is there with an index alone; the tour stands apart as a button. */
export const GROUPS = ['Search', 'Look', 'Explain', 'Compare', 'Measure', 'Tour'] as const;
export type Group = (typeof GROUPS)[number];

export interface View {
  id: string;
  group: Group;
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
  /** Whether it is about one head of one layer. */
  oneHead?: boolean;
}

export const VIEWS: readonly View[] = [
  { id: 'overview', group: 'Look', title: 'Overview', key: 'o', hint: 'what the model did with the text, in one sentence each', component: Overview, needs: 'text', maps: true, strip: true },
  { id: 'search', group: 'Search', title: 'Search', key: 'q', hint: 'passages of an index, and why each was found', component: Search, needs: 'index', maps: false, strip: true },
  { id: 'tokens', group: 'Look', title: 'Tokens', key: 'k', hint: 'the tokens of the text and the attention each receives', component: Tokens, needs: 'text', maps: false, strip: true },
  { id: 'heads', group: 'Look', title: 'Heads', key: 'h', hint: 'every layer and head at a glance', component: Heads, needs: 'text', maps: true, strip: false },
  { id: 'head', group: 'Look', title: 'Head', key: 'i', hint: 'one head: its kind, effect, likes and strongest examples in a corpus', component: Head, needs: 'text', maps: true, strip: false, oneHead: true },
  { id: 'map', group: 'Look', title: 'Map', key: 'm', hint: 'one head, down to a single exact value', component: Map, needs: 'text', maps: true, strip: true, oneHead: true },
  { id: 'flow', group: 'Look', title: 'Flow', key: 'f', hint: 'the top-k attention edges of a token, across layers', component: Flow, needs: 'text', maps: true, strip: true, oneHead: true },
  { id: 'sinks', group: 'Explain', title: 'Sinks', key: 's', hint: 'attention sinks by class of key, token and head', component: Sinks, needs: 'text', maps: true, strip: true },
  { id: 'paths', group: 'Explain', title: 'Paths', key: 'p', hint: 'attention rollout and gradient attribution for a token', component: Paths, needs: 'text', maps: true, strip: true },
  { id: 'words', group: 'Explain', title: 'Words', key: 'w', hint: 'masked-word predictions, logit lens and head ablations', component: Words, needs: 'text', maps: false, strip: true },
  { id: 'compare', group: 'Compare', title: 'Compare', key: 'c', hint: 'two models on one text, or two texts in one model', component: Compare, needs: 'two', maps: false, strip: true },
  { id: 'geometry', group: 'Measure', title: 'Geometry', key: 'g', hint: 'intrinsic dimension, isotropy and word senses by layer', component: Geometry, needs: 'text', maps: false, strip: false },
  { id: 'wall', group: 'Measure', title: 'Length scaling', key: 'l', hint: 'time and memory versus sequence length, measured on this machine', component: Wall, needs: 'none', maps: false, strip: false },
  { id: 'tour', group: 'Tour', title: 'Tour', key: 't', hint: 'an introduction to attention, with experiments on your text', component: Tour, needs: 'none', maps: false, strip: false },
];

export function viewOf(id: string): View {
  return VIEWS.find((view) => view.id === id) ?? (VIEWS.find((view) => view.id === DEFAULTS.view) as View);
}

/** Whether a view has a box of its own for what is read: a second one would not know of it. */
export function hasOwnBox(view: View): boolean {
  return view.needs === 'index' || view.id === 'tour';
}

/** The views that this explorer offers, in the order of the tabs: a search needs an index, unless an address asked for it. */
export function viewsOf(explorer: Explorer): readonly View[] {
  const offered = VIEWS.filter((view) => view.needs !== 'index' || explorer.searches || view.id === explorer.view.view);
  return GROUPS.flatMap((group) => offered.filter((view) => view.group === group));
}

/** Views with the label of their group, which says nothing where the only view has its name. */
export function labelled(views: readonly View[]): { group: Group; label: string; views: readonly View[] }[] {
  return GROUPS.flatMap((group) => {
    const own = views.filter((view) => view.group === group);
    return own.length === 0 ? [] : [{ group, label: own.length === 1 && own[0]?.title === group ? '' : group, views: own }];
  });
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
