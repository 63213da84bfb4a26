/** Attention of all heads of a layer as lines between tokens: which are drawn, in which color and strength. */

import { type Arrays, floatsOf, integersOf } from '../api/binary';
import type { Lines } from './lines';
import { type Edges, sidesOf } from './segments';

export interface Edge {
  token: number;
  probability: number;
}

/** The `count` largest values and where they are, largest first; ties in order of position. */
export function largest(values: Float32Array, count: number): Edge[] {
  const top: Edge[] = [];
  values.forEach((probability, token) => {
    const last = top[count - 1];
    if (last !== undefined && probability <= last.probability) return;
    let at = top.length;
    while (at > 0 && probability > (top[at - 1] as Edge).probability) at--;
    top.splice(at, 0, { token, probability });
    if (top.length > count) top.pop();
  });
  return top;
}

/** An edge of one head. */
export interface HeadEdge {
  layer: number;
  head: number;
  query: number;
  key: number;
  share: number;
}

/** The strongest edges of all heads of a layer. */
export class LayerEdges {
  constructor(
    readonly layer: number,
    /** Heads, tokens, and how many keys of each query are listed. */
    private readonly shape: readonly [number, number, number],
    private readonly keys: Int32Array,
    private readonly shares: Float32Array,
    private readonly left: Float32Array,
  ) {}

  /** As the API answers them. */
  static of(answer: Arrays<unknown>, layer: number): LayerEdges {
    const { shape, data } = integersOf(answer, 'keys');
    const [heads = 0, tokens = 0, most = 0] = shape;
    return new LayerEdges(layer, [heads, tokens, most], data, floatsOf(answer, 'values').data, floatsOf(answer, 'left_out').data);
  }

  /**
   * Those between the texts of a pair, of the queries of one text: as they are, with or without special tokens in the
   * sum of a row, or with rows that sum to 1.
   */
  static between(answer: Arrays<unknown>, layer: number, texts: Uint8Array, edges: Exclude<Edges, 'all'>, rows: 'show' | 'hide' | 'renormalized'): LayerEdges {
    const [from, to] = sidesOf(edges);
    const { shape, data } = integersOf(answer, 'keys');
    const [, heads = 0, tokens = 0, most = 0] = shape;
    const half = heads * tokens;
    const [values, kept] = [floatsOf(answer, 'values').data, floatsOf(answer, 'kept').data];
    const keys = data.slice(to * half * most, (to + 1) * half * most);
    const shares = values.slice(to * half * most, (to + 1) * half * most);
    const left = new Float32Array(half);
    for (let row = 0; row < half; row++) {
      const there = kept[to * half + row] as number;
      const sum = rows === 'hide' ? (kept[row] as number) + (kept[half + row] as number) : 1;
      const part = sum > 0 ? there / sum : 0;
      left[row] = 1 - part;
      for (let at = row * most; at < (row + 1) * most; at++) {
        if (texts[row % tokens] !== from) keys[at] = -1;
        else if (rows !== 'renormalized') shares[at] = (shares[at] as number) * part;
      }
    }
    return new LayerEdges(layer, [heads, tokens, most], keys, shares, left);
  }

  get heads(): number {
    return this.shape[0];
  }

  /** Calls `see` for the `count` strongest edges, of at least `least`, of some heads and queries. */
  each(
    heads: readonly number[],
    [from, to]: readonly [number, number],
    count: number,
    least: number,
    see: (head: number, query: number, key: number, share: number) => void,
  ): void {
    const [all, tokens, most] = this.shape;
    for (const head of heads) {
      if (head >= all) continue;
      for (let query = from; query < Math.min(to, tokens); query++) {
        const start = (head * tokens + query) * most;
        for (let at = start; at < start + Math.min(count, most); at++) {
          const key = this.keys[at] as number;
          const share = this.shares[at] as number;
          if (key >= 0 && share > 0 && share >= least) see(head, query, key, share);
        }
      }
    }
  }

  list(heads: readonly number[], rows: readonly [number, number], count: number, least: number): HeadEdge[] {
    const found: HeadEdge[] = [];
    this.each(heads, rows, count, least, (head, query, key, share) => found.push({ layer: this.layer, head, query, key, share }));
    return found;
  }

  /** The `count` strongest edges of one query over some heads, strongest first. */
  ofQuery(heads: readonly number[], query: number, count: number, least: number): HeadEdge[] {
    const found = this.list(heads, [query, query + 1], this.shape[2], least);
    return found.sort((a, b) => b.share - a.share || a.head - b.head).slice(0, count);
  }

  /** Mean share of attention that some heads give to the tokens that are left out, over the queries of some tokens. */
  leftOut(heads: readonly number[], counts: (query: number) => boolean): number {
    const [all, tokens] = this.shape;
    let [sum, rows] = [0, 0];
    for (const head of heads) {
      if (head >= all) continue;
      for (let query = 0; query < tokens; query++) {
        if (!counts(query)) continue;
        sum += this.left[head * tokens + query] ?? 0;
        rows++;
      }
    }
    return rows > 0 ? sum / rows : 0;
  }
}

/** Heads that are drawn: all of them where the address names none; `none` hides all. */
export function headsOn(given: string, count: number): number[] {
  const all = Array.from({ length: count }, (_, head) => head);
  if (given === 'none') return [];
  if (!/^\d+(,\d+)*$/.test(given)) return all;
  const named = new Set(given.split(',').map(Number));
  return all.filter((head) => named.has(head));
}

/** The address of some heads; empty where they are all. */
export function headsWritten(heads: readonly number[], count: number): string {
  if (heads.length === count) return '';
  return heads.length === 0 ? 'none' : [...heads].sort((a, b) => a - b).join(',');
}

/** Heads of every layer that are drawn: all where the address names none; `2` is a layer, `2.3` a head of it. */
export function allOn(given: string, counts: readonly number[]): number[][] {
  if (given === 'none') return counts.map(() => []);
  if (!/^\d+(\.\d+)?(,\d+(\.\d+)?)*$/.test(given)) return counts.map((count) => headsOn('', count));
  const named = new Set(given.split(','));
  return counts.map((count, layer) => headsOn('', count).filter((head) => named.has(`${layer}`) || named.has(`${layer}.${head}`)));
}

/** The address of some heads of every layer; empty where they are all. */
export function allWritten(on: readonly (readonly number[])[], counts: readonly number[]): string {
  if (on.every((heads, layer) => heads.length === counts[layer])) return '';
  return on.flatMap((heads, layer) => (heads.length === counts[layer] ? [`${layer}`] : heads.map((head) => `${layer}.${head}`))).join(',') || 'none';
}

/** One head of a row more or less; without a head, the whole row. */
export function toggled(on: readonly (readonly number[])[], counts: readonly number[], row: number, head: number | null): number[][] {
  return on.map((heads, at) => {
    if (at !== row) return [...heads];
    if (head === null) return heads.length === counts[row] ? [] : headsOn('', counts[row] ?? 0);
    return heads.includes(head) ? heads.filter((one) => one !== head) : [...heads, head].sort((a, b) => a - b);
  });
}

/** That head or row alone; all of them where it is alone already. */
export function isolated(on: readonly (readonly number[])[], counts: readonly number[], row: number, head: number | null): number[][] {
  const alone = counts.map((count, at) => (at !== row ? [] : head === null ? headsOn('', count) : [head]));
  return String(on) === String(alone) ? counts.map((count) => headsOn('', count)) : alone;
}

/** Colors of heads in page.css, which are repeated for layers of more heads; the numbers tell them apart. */
export const HEAD_COLORS = 12;

export function colorName(head: number): string {
  return `--head-${head % HEAD_COLORS}`;
}

/** Strengths that are drawn apart. */
export const STRENGTHS = 8;

export function strengthOf(share: number): number {
  return Math.min(STRENGTHS - 1, Math.floor(Math.sqrt(share) * STRENGTHS));
}

/** Opacity and width in pixels of a strength: faint edges stay visible, strong ones stand out. */
export function strokeOf(strength: number): { opacity: number; width: number } {
  const part = (strength + 0.5) / STRENGTHS;
  return { opacity: 0.1 + 0.85 * part * Math.sqrt(part), width: 0.6 + 3 * part * part };
}

/** What one token's edges through the layers may take: lines of tokens, and edges over all layers. */
export const MOST_LINES = 20;
export const MOST_THROUGH = 240;

/** The tokens that get a line: the one that reads, and those it reads most, at most `most` together, in text order. */
export function linesMet(token: number, edges: readonly HeadEdge[], most = MOST_LINES): number[] {
  const sums = new Map<number, number>();
  for (const { key, share } of edges) if (key !== token) sums.set(key, (sums.get(key) ?? 0) + share);
  const read = [...sums].sort((one, other) => other[1] - one[1] || one[0] - other[0]).slice(0, most - 1);
  return [token, ...read.map(([key]) => key)].sort((one, other) => one - other);
}

/** How far from the middle of a token's line the edges of a head end, so that heads do not cover each other. */
export function fanned(head: number, heads: number, high: number): number {
  return heads > 1 ? (head / (heads - 1) - 0.5) * high : 0;
}

/** Edges as lines in the picture of some pixels a point, the strongest last. */
export function linesOf(
  edges: readonly HeadEdge[],
  end: (token: number, edge: HeadEdge) => number,
  color: (edge: HeadEdge) => number,
  ratio: number,
  thin = 1,
): Lines {
  const count = edges.length;
  const [from, to, width, opacity] = [0, 1, 2, 3].map(() => new Float32Array(count)) as [Float32Array, Float32Array, Float32Array, Float32Array];
  const lines = { count, from, to, width, opacity, color: new Int32Array(count) };
  const levels: HeadEdge[][] = Array.from({ length: STRENGTHS }, () => []);
  for (const edge of edges) levels[strengthOf(edge.share)]?.push(edge);
  // Query by query, so that no layer or head covers all others.
  for (const level of levels) level.sort((one, other) => one.query - other.query);
  let at = 0;
  levels.forEach((level, strength) => {
    const stroke = strokeOf(strength);
    for (const edge of level) {
      from[at] = ratio * end(edge.query, edge);
      to[at] = ratio * end(edge.key, edge);
      width[at] = ratio * thin * stroke.width;
      opacity[at] = stroke.opacity;
      lines.color[at++] = color(edge);
    }
  });
  return lines;
}

/** Colors of layers, from the first to the last: through the spectrum, between colors of heads. */
const SPECTRUM = [6, 0, 2, 4, 1, 7];

/** The color of a layer as a mixture of two names: `part` of the second. */
export function layerColor(layer: number, layers: number): { one: string; other: string; part: number } {
  const place = layers > 1 ? (layer / (layers - 1)) * (SPECTRUM.length - 1) : 0;
  const first = Math.min(SPECTRUM.length - 2, Math.floor(place));
  return { one: colorName(SPECTRUM[first] ?? 0), other: colorName(SPECTRUM[first + 1] ?? 0), part: place - first };
}

export function layerCss(layer: number, layers: number): string {
  const { one, other, part } = layerColor(layer, layers);
  return `color-mix(in srgb, var(${other}) ${(100 * part).toFixed(1)}%, var(${one}))`;
}
