/**
 * What is looked at, as the part of the address behind `#`: a link, a reload and Back restore it.
 * Version 3; values equal to the default are left out. Versions 1 and 2 are still read: there, a text without
 * a view meant the map.
 * Views keep state of their own under names with a dot: `paths.level=3`.
 */

import { ADDRESS_VERSION } from '../api/types';
import { MOST_GAIN, SCALES, type Scale } from '../draw/scale';

export const THEMES = ['system', 'light', 'dark'] as const;
export type Theme = (typeof THEMES)[number];

export const WEIGHTS = ['raw', 'norm'] as const;
export type Weight = (typeof WEIGHTS)[number];

export const POOLS = ['max', 'mean'] as const;
export type Pool = (typeof POOLS)[number];

export const SPECIALS = ['show', 'hide'] as const;
export type Special = (typeof SPECIALS)[number];

export const OVERS = ['layer_mean', 'layer_max', 'all_mean', 'all_max'] as const;
/** The heads of a layer, or of all layers, as one map. */
export type Over = (typeof OVERS)[number];

/** What is on the map in place of one head; null: one head is. */
export function overOf({ view, more }: ViewState): Over | null {
  return (view === 'map' && OVERS.find((over) => over === more['map.over'])) || null;
}

/** "layer 3 head 2", or what is on the map in place of it. */
export function headWords(state: ViewState): string {
  const { layer, head } = state;
  const only = overOf(state);
  if (!only) return `layer ${layer} head ${head}`;
  return `${only.endsWith('x') ? 'maximum' : 'mean'} over ${only.startsWith('a') ? 'all heads' : `the heads of layer ${layer}`}`;
}

export interface ViewState {
  text: string;
  /** The second text of a pair, or empty. */
  pair: string;
  /** The text that it is compared with, such as the one before a word was replaced, and its second text; or empty. */
  against: string;
  againstPair: string;
  /** Code points of the text whose tokens are made global, `4-9,20-31`; or empty. */
  global: string;
  /** Names of the model, and of the second one beside it; empty: the first of the session, none. */
  model: string;
  beside: string;
  /** Read only the beginning of a text that is too long. */
  cut: boolean;
  /** The view that is open, by its id. */
  view: string;
  layer: number;
  head: number;
  /** The chosen query and key, as token numbers. */
  query: number | null;
  key: number | null;
  weight: Weight;
  /** Whether special tokens are part of attention; without them, the rest of each row is divided by its sum. */
  special: Special;
  pool: Pool;
  scale: Scale;
  /** Colors: probabilities are multiplied by 2^gain, null: as the text needs; codes below `clip` show nothing. */
  gain: number | null;
  clip: number;
  /** Half octaves of device pixels a token, and the first query and key in sight; null: fitted. */
  zoom: number | null;
  top: number;
  left: number;
  theme: Theme;
  /** State of single views, names with a dot. */
  more: Readonly<Record<string, string>>;
}

export const DEFAULTS: ViewState = {
  text: '',
  pair: '',
  against: '',
  againstPair: '',
  global: '',
  model: '',
  beside: '',
  cut: false,
  view: 'start',
  layer: 0,
  head: 0,
  query: null,
  key: null,
  weight: 'raw',
  special: 'show',
  pool: 'max',
  scale: 'sqrt',
  gain: null,
  clip: 0,
  zoom: null,
  top: 0,
  left: 0,
  theme: 'system',
  more: {},
};

/** The view of an address that names none: without a text the page begins with a question of its own. */
function unnamed(text: string): string {
  return text === '' ? DEFAULTS.view : OF_TEXT;
}

/** The view of a text whose address names none. */
export const OF_TEXT = 'overview';
export const MOST_CLIP = 254;
/** Half octaves: from 1/64 of a device pixel to 64 of them for one token. */
export const ZOOMS = [-12, 12] as const;

/** The state as `#v=3&text=…`. */
export function formatHash(state: ViewState): string {
  const fields = new URLSearchParams({ v: ADDRESS_VERSION });
  for (const [name, value] of Object.entries(state)) {
    const usual = name === 'view' ? unnamed(state.text) : DEFAULTS[name as keyof ViewState];
    if (name === 'more' || value === usual || value === null) continue;
    fields.set(name, value === true ? '1' : String(value));
  }
  for (const name of Object.keys(state.more).sort()) fields.set(name, state.more[name] as string);
  return `#${fields}`;
}

/** The state in an address; what is absent, malformed or of another version takes its default. */
export function parseHash(hash: string): ViewState {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  const version = fields.get('v');
  if (version === '1') return parseFirst(fields);
  if (version !== ADDRESS_VERSION && version !== '2') return { ...DEFAULTS };
  const oneOf = <T extends string>(name: string, all: readonly T[], otherwise: T): T =>
    all.find((value) => value === fields.get(name)) ?? otherwise;
  const zoom = whole(fields, 'zoom');
  const gain = count(fields, 'gain');
  return {
    ...texts(fields),
    against: fields.get('against') ?? '',
    againstPair: fields.get('againstPair') ?? '',
    global: fields.get('global') ?? '',
    model: fields.get('model') ?? '',
    beside: fields.get('beside') ?? '',
    view: renamed(fields.get('view')) ?? (version === '2' ? viewBefore(fields) : unnamed(fields.get('text') ?? '')),
    layer: count(fields, 'layer') ?? 0,
    head: count(fields, 'head') ?? 0,
    query: count(fields, 'query'),
    key: count(fields, 'key'),
    weight: oneOf('weight', WEIGHTS, DEFAULTS.weight),
    special: oneOf('special', SPECIALS, DEFAULTS.special),
    pool: oneOf('pool', POOLS, DEFAULTS.pool),
    scale: oneOf('scale', SCALES, DEFAULTS.scale),
    gain: gain === null ? null : Math.min(gain, MOST_GAIN),
    clip: Math.min(count(fields, 'clip') ?? 0, MOST_CLIP),
    zoom: zoom === null ? null : Math.max(ZOOMS[0], Math.min(zoom, ZOOMS[1])),
    top: count(fields, 'top') ?? 0,
    left: count(fields, 'left') ?? 0,
    theme: oneOf('theme', THEMES, DEFAULTS.theme),
    more: Object.fromEntries([...fields].filter(([name]) => name.includes('.'))),
  };
}

/** The ranges of `4-9,20-31`; what is malformed is left out. */
export function spansOf(written: string): number[][] {
  return written.split(',').filter((span) => /^\d{1,9}-\d{1,9}$/.test(span)).map((span) => span.split('-').map(Number));
}

/** Views have other names in addresses that were copied earlier. */
function renamed(view: string | null): string | null {
  return view === 'wall' ? 'roofline' : view;
}

/** What an address before version 3 opened that names no view. */
function viewBefore(fields: URLSearchParams): string {
  return fields.has('text') ? 'map' : DEFAULTS.view;
}

/** Version 1 had one page: map, heads and flow side by side. */
function parseFirst(fields: URLSearchParams): ViewState {
  return {
    ...DEFAULTS,
    ...texts(fields),
    view: viewBefore(fields),
    layer: count(fields, 'layer') ?? 0,
    head: count(fields, 'head') ?? 0,
    query: count(fields, 'query'),
    key: count(fields, 'key'),
    scale: SCALES.find((scale) => scale === fields.get('scale')) ?? DEFAULTS.scale,
    theme: THEMES.find((theme) => theme === fields.get('theme')) ?? DEFAULTS.theme,
  };
}

function texts(fields: URLSearchParams): { text: string; pair: string; cut: boolean } {
  return {
    text: fields.get('text') ?? '',
    pair: fields.get('pair') ?? '',
    cut: fields.get('cut') === '1',
  };
}

function count(fields: URLSearchParams, name: string): number | null {
  const given = fields.get(name);
  return given !== null && /^\d{1,9}$/.test(given) ? Number(given) : null;
}

function whole(fields: URLSearchParams, name: string): number | null {
  const given = fields.get(name);
  return given !== null && /^-?\d{1,9}$/.test(given) ? Number(given) : null;
}

/** Writes the hash, as a new step for Back or in place of the present one; a page in a notebook's frame has none and does without. */
export function writeHash(hash: string, step: boolean): void {
  if (hash === location.hash) return;
  try {
    if (step) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  } catch {
    // Some frames may not change their address, and a browser limits how often: the state itself holds.
  }
}
