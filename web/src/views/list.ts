/** The views of the page and their components. Written by scripts/page_schema.py from Python: change it there. */

import type { Component } from 'svelte';
import type { Explorer } from '../state/explorer.svelte';
import Compare from './compare/Compare.svelte';
import Features from './features/Features.svelte';
import Flow from './flow/Flow.svelte';
import Geometry from './geometry/Geometry.svelte';
import Head from './head/Head.svelte';
import Heads from './heads/Heads.svelte';
import Labels from './labels/Labels.svelte';
import Map from './map/Map.svelte';
import Overview from './overview/Overview.svelte';
import Paths from './paths/Paths.svelte';
import Roofline from './roofline/Roofline.svelte';
import Search from './search/Search.svelte';
import Sinks from './sinks/Sinks.svelte';
import Start from './start/Start.svelte';
import Tokens from './tokens/Tokens.svelte';
import Tour from './tour/Tour.svelte';
import Words from './words/Words.svelte';

/** Groups of tabs, in their order. */
export const GROUPS = ['Start', 'Look', 'Labels', 'Search', 'Compare', 'Measure', 'Tour'] as const;

export interface View {
  id: string;
  group: 'Start' | 'Look' | 'Labels' | 'Search' | 'Compare' | 'Measure' | 'Tour';
  title: string;
  key: string;
  hint: string;
  needs: 'text' | 'two' | 'index' | 'live' | 'none';
  ability: 'takes_labels' | null;
  maps: boolean;
  strip: boolean;
  one_head: boolean;
  component: Component<{ explorer: Explorer }>;
}

export const VIEWS: readonly View[] = [
  { id: "start", group: "Start", title: "Start", key: "a", hint: "two senses of a word through the layers, and three guesses", needs: "live", ability: null, maps: false, strip: false, one_head: false, component: Start },
  { id: "overview", group: "Look", title: "Arcs", key: "o", hint: "what the model did with the text: arcs of one head, and findings", needs: "text", ability: null, maps: true, strip: true, one_head: false, component: Overview },
  { id: "map", group: "Look", title: "Map", key: "m", hint: "one head, down to a single exact value", needs: "text", ability: null, maps: true, strip: true, one_head: true, component: Map },
  { id: "flow", group: "Look", title: "Flow", key: "f", hint: "the top-k attention edges of a token, across layers", needs: "text", ability: null, maps: true, strip: true, one_head: true, component: Flow },
  { id: "heads", group: "Look", title: "Heads", key: "h", hint: "every layer and head at a glance", needs: "text", ability: null, maps: true, strip: false, one_head: false, component: Heads },
  { id: "head", group: "Look", title: "Head", key: "i", hint: "one head: its kind, effect, likes and strongest examples in a corpus", needs: "text", ability: null, maps: true, strip: false, one_head: true, component: Head },
  { id: "labels", group: "Labels", title: "Labels", key: "b", hint: "spans of the text that fit labels you name, and why", needs: "text", ability: "takes_labels", maps: false, strip: true, one_head: false, component: Labels },
  { id: "search", group: "Search", title: "Search", key: "q", hint: "passages of an index, and why each was found", needs: "index", ability: null, maps: false, strip: true, one_head: false, component: Search },
  { id: "compare", group: "Compare", title: "Compare", key: "c", hint: "two models on one text, or two texts in one model", needs: "two", ability: null, maps: false, strip: true, one_head: false, component: Compare },
  { id: "tokens", group: "Measure", title: "Tokens", key: "k", hint: "the tokens of the text and the attention each receives", needs: "text", ability: null, maps: false, strip: true, one_head: false, component: Tokens },
  { id: "sinks", group: "Measure", title: "Sinks", key: "s", hint: "attention sinks by class of key, token and head", needs: "text", ability: null, maps: true, strip: true, one_head: false, component: Sinks },
  { id: "paths", group: "Measure", title: "Paths", key: "p", hint: "attention rollout and gradient attribution for a token", needs: "text", ability: null, maps: true, strip: true, one_head: false, component: Paths },
  { id: "words", group: "Measure", title: "Words", key: "w", hint: "masked-word predictions, logit lens and head ablations", needs: "text", ability: null, maps: false, strip: true, one_head: false, component: Words },
  { id: "features", group: "Measure", title: "Features", key: "y", hint: "features of a sparse autoencoder that are active in the text", needs: "text", ability: null, maps: false, strip: true, one_head: false, component: Features },
  { id: "geometry", group: "Measure", title: "Geometry", key: "g", hint: "intrinsic dimension, isotropy and word senses by layer", needs: "text", ability: null, maps: false, strip: true, one_head: false, component: Geometry },
  { id: "roofline", group: "Measure", title: "Roofline", key: "l", hint: "operations and bytes of attention beside what this machine can do", needs: "none", ability: null, maps: false, strip: true, one_head: false, component: Roofline },
  { id: "tour", group: "Tour", title: "Tour", key: "t", hint: "an introduction to attention, with experiments on your text", needs: "none", ability: null, maps: false, strip: false, one_head: false, component: Tour },
];
