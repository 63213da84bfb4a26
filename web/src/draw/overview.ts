/** Findings as pictures and links: what a card shows, what it opens, and the arcs between words. */

import { anyRightToLeft } from './direction';
import type { Edge, Finding } from '../api/types';
import type { ViewState } from '../state/url';

/** How the numbers of a finding are drawn; maps are small, `pieces` are the tokens of a word. */
export type PictureKind = 'map' | 'bars' | 'line' | 'matrix' | 'pieces';

const PICTURES: Record<string, PictureKind> = {
  sink: 'bars',
  effect: 'bars',
  states: 'bars',
  labels: 'bars',
  layers: 'bars',
  sense: 'line',
  prediction: 'line',
  cka: 'matrix',
  split: 'pieces',
};

export function pictureKind({ kind }: Finding): PictureKind {
  return PICTURES[kind] ?? 'map';
}

const TITLES: Record<string, string> = {
  previous: 'Previous-token head',
  next: 'Next-token head',
  same: 'The same word again',
  edge: 'Strongest link between words',
  punctuation: 'Punctuation',
  sink: 'Attention sink',
  focused: 'Most focused head',
  states: 'Where states change',
  labels: 'What heads attend to',
  layers: 'From layer to layer',
  sense: 'One word, two contexts',
  cka: 'Similarity of layers',
  split: 'Split words',
  effect: 'Most effective head',
  prediction: 'Where a word is decided',
  head: 'This head',
};

export function titleOf({ kind }: Finding): string {
  return TITLES[kind] ?? kind;
}

/** The view in which a finding can be looked at, by its id. */
const OPENS: Record<string, string> = {
  same: 'flow',
  edge: 'flow',
  sink: 'sinks',
  states: 'heads',
  labels: 'heads',
  layers: 'heads',
  sense: 'paths',
  cka: 'geometry',
  split: 'tokens',
  effect: 'words',
  prediction: 'words',
};

/** What is looked at when a finding is opened. */
export function opened(finding: Finding): Partial<ViewState> {
  const { kind, layer, head, query, key } = finding;
  const place = layer === null || head === null ? {} : { layer, head };
  const token = kind === 'sense' ? key : query;
  return { ...place, query: token, key: kind === 'edge' ? key : null, view: OPENS[kind] ?? 'map' };
}

/** The sentence of a finding, whose percent signs stay with their numbers, and words from right to left by themselves. */
export function sentenceOf({ sentence }: Finding): string {
  return sentence.replaceAll(' %', '\u00a0%').replace(/“[^”]*”/g, (word) => (anyRightToLeft(word) ? `\u2068${word}\u2069` : word));
}

/** How rare a finding is, or nothing where it was not compared with other texts. */
export function surpriseOf({ surprise, compared }: Finding): string {
  if (surprise === null || compared === 0) return '';
  return `more than in ${Math.floor(100 * surprise)}\u00a0% of ${compared.toLocaleString('en')} texts`;
}

/** A number of a finding's picture, as short as there is room for. */
export function barWords({ kind }: Finding, value: number): string {
  if (kind === 'labels') return String(value);
  if (kind === 'sink' || kind === 'layers') return `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
  return value.toFixed(2);
}

/** A token in a line of text: its middle, and where it is written. */
export interface Placed {
  token: number;
  name: string;
  special: boolean;
  x: number;
  width: number;
}

export interface Line {
  tokens: Placed[];
  width: number;
}

export interface Written {
  name: string;
  special: boolean;
  /** Whether white space stands before it. */
  apart: boolean;
}

/** Tokens `first`... side by side in one line; `measure` gives a name's width. */
export function lineOf(names: readonly Written[], first: number, measure: (one: Written) => number, space: number): Line {
  let x = 0;
  const tokens = names.map((one, at) => {
    const width = measure(one);
    if (at > 0) x += one.apart ? space : space / 5;
    const placed = { token: first + at, name: one.name, special: one.special, x: x + width / 2, width };
    x += width;
    return placed;
  });
  return { tokens, width: x };
}

export interface Arc extends Edge {
  /** The half at the query, and the half at the key. */
  from: string;
  to: string;
  height: number;
}

const STEEP = 0.46;

/** The arcs of edges over a line whose upper edge is at `y`; those of a token to itself are left out. */
export function arcsOf(edges: readonly Edge[], line: Line, y: number, highest: number): Arc[] {
  const places = new Map(line.tokens.map(({ token, x }) => [token, x]));
  const found: Arc[] = [];
  for (const edge of edges) {
    const [x0, x1] = [places.get(edge.query), places.get(edge.key)];
    if (x0 === undefined || x1 === undefined || x0 === x1) continue;
    // A cubic reaches three quarters of the way to its handles.
    const height = Math.min(highest, 14 + STEEP * Math.abs(x1 - x0));
    const [up, top, middle] = [y - (4 / 3) * height, y - height, (x0 + x1) / 2];
    const quarter = (x1 - x0) / 4;
    const half = (y + up) / 2;
    found.push({
      ...edge,
      height,
      from: `M${x0},${y}C${x0},${half} ${x0 + quarter},${top} ${middle},${top}`,
      to: `M${middle},${top}C${x1 - quarter},${top} ${x1},${half} ${x1},${y}`,
    });
  }
  return found.sort((one, other) => one.weight - other.weight);
}
