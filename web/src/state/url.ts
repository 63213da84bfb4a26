/**
 * What is looked at, as the part of the address behind `#`: a link, a reload and Back restore it.
 * Version 1; values equal to the default are left out. `serve` in Python writes `v` and `text`.
 */

import { SCALES, type Scale } from '../draw/scale';

export const THEMES = ['system', 'light', 'dark'] as const;
export type Theme = (typeof THEMES)[number];

export const MEASURES = ['entropy', 'received', 'distance'] as const;
export type Measure = (typeof MEASURES)[number];

export const SIDES = ['flow', 'table'] as const;
export type Side = (typeof SIDES)[number];

export interface ViewState {
  text: string;
  /** Read only the beginning of a text that is too long. */
  cut: boolean;
  layer: number;
  head: number;
  /** The chosen query and key, as token numbers. */
  query: number | null;
  key: number | null;
  scale: Scale;
  measure: Measure;
  /** What stands beside the map. */
  side: Side;
  /** Times the cell that fits is doubled. */
  zoom: number;
  theme: Theme;
}

export const DEFAULTS: ViewState = {
  text: '',
  cut: false,
  layer: 0,
  head: 0,
  query: null,
  key: null,
  scale: 'sqrt',
  measure: 'entropy',
  side: 'flow',
  zoom: 0,
  theme: 'system',
};

export const MAX_ZOOM = 5;

const VERSION = '1';

/** The state as `#v=1&text=…`. */
export function formatHash(state: ViewState): string {
  const fields = new URLSearchParams({ v: VERSION });
  for (const [name, value] of Object.entries(state)) {
    if (value === DEFAULTS[name as keyof ViewState] || value === null) continue;
    fields.set(name, value === true ? '1' : String(value));
  }
  return `#${fields}`;
}

/** The state in an address; what is absent, malformed or of another version takes its default. */
export function parseHash(hash: string): ViewState {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  if (fields.get('v') !== VERSION) return { ...DEFAULTS };
  const number = (name: string) => {
    const given = fields.get(name);
    return given !== null && /^\d{1,9}$/.test(given) ? Number(given) : null;
  };
  const oneOf = <T extends string>(name: string, all: readonly T[], otherwise: T): T =>
    all.find((value) => value === fields.get(name)) ?? otherwise;
  return {
    text: fields.get('text') ?? DEFAULTS.text,
    cut: fields.get('cut') === '1',
    layer: number('layer') ?? DEFAULTS.layer,
    head: number('head') ?? DEFAULTS.head,
    query: number('query'),
    key: number('key'),
    scale: oneOf('scale', SCALES, DEFAULTS.scale),
    measure: oneOf('measure', MEASURES, DEFAULTS.measure),
    side: oneOf('side', SIDES, DEFAULTS.side),
    zoom: Math.min(number('zoom') ?? DEFAULTS.zoom, MAX_ZOOM),
    theme: oneOf('theme', THEMES, DEFAULTS.theme),
  };
}
