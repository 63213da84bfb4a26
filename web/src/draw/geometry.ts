/** The geometry of layers as lines: which measures share a panel, and what was refused. */

import type { Estimate, Geometry, LayerGeometry, SenseReport } from '../api/types';
import { numberWords } from './axes';
import type { Point, Series } from './chart';
import { levelName, levelPhrase } from './levels';

interface Measure {
  label: string;
  of: (level: LayerGeometry) => Estimate | null;
  /** The measure after shuffling coordinates, where that is available. */
  shuffled?: (level: LayerGeometry) => Estimate | null;
}

export interface Panel {
  id: string;
  title: string;
  note: string;
  yTitle: string;
  /** The baselines that are drawn are those of the first. */
  measures: readonly Measure[];
  /** Values that the axis holds in any case. */
  include: readonly number[];
}

/** Measures of the same unit and question share a panel. */
export const PANELS: readonly Panel[] = [
  {
    id: 'dimension',
    title: 'Intrinsic dimension',
    note: 'The number of dimensions in which the token vectors vary locally, from distances to near neighbors.',
    yTitle: 'dimensions',
    measures: [
      { label: 'TwoNN (Facco et al. 2017)', of: (one) => one.two_nn, shuffled: (one) => one.shuffled?.two_nn ?? null },
      { label: 'Levina and Bickel 2004, k = 10 to 20', of: (one) => one.mle },
    ],
    include: [0],
  },
  {
    id: 'spread',
    title: 'Effective number of directions',
    note: 'From the spectrum of all token vectors: the participation ratio weighs directions by variance, the effective rank by the entropy of the singular values.',
    yTitle: 'dimensions',
    measures: [
      {
        label: 'participation ratio',
        of: (one) => one.participation_ratio,
        shuffled: (one) => one.shuffled?.participation_ratio ?? null,
      },
      { label: 'effective rank (Roy and Vetterli 2007)', of: (one) => one.effective_rank },
    ],
    include: [0],
  },
  {
    id: 'anisotropy',
    title: 'Anisotropy',
    note: 'Mean cosine of two different tokens: 0 means no common direction, 1 means one direction for all. A few dominant directions often explain all of it.',
    yTitle: 'mean cosine',
    measures: [
      { label: 'all directions', of: (one) => one.anisotropy, shuffled: (one) => one.shuffled?.anisotropy ?? null },
      { label: 'without the largest', of: (one) => one.anisotropy_without[0]?.anisotropy ?? null },
      { label: 'without the three largest', of: (one) => one.anisotropy_without[1]?.anisotropy ?? null },
    ],
    include: [0, 1],
  },
  {
    id: 'isotropy',
    title: 'IsoScore',
    note: 'Share of the directions that are used evenly (Rudman et al. 2022): 1 means an isotropic distribution.',
    yTitle: 'IsoScore',
    measures: [{ label: 'IsoScore', of: (one) => one.iso_score }],
    include: [0],
  },
  {
    id: 'collapse',
    title: 'Distance from rank collapse',
    note: 'Share of the vectors that is not their common mean: 0 means that all tokens are identical (after Dong et al. 2021).',
    yTitle: 'share of the norm',
    measures: [{ label: 'residual after removing the mean', of: (one) => one.residual }],
    include: [0, 1],
  },
  {
    id: 'norm',
    title: 'Vector norm',
    note: 'Mean Euclidean norm of a token vector.',
    yTitle: 'norm',
    measures: [{ label: 'mean norm', of: (one) => one.norm }],
    include: [0],
  },
];

/** The lines of a panel: its measures, then the baselines that were measured, thin. */
export function panelSeries({ levels, random }: Geometry, panel: Panel): Series[] {
  const line = (name: string, of: Measure['of'], from = levels, baseline = false): Series => ({
    name,
    points: from.map((level) => point(level.layer, of(level))),
    baseline,
  });
  const series = panel.measures.map(({ label, of }) => line(label, of));
  const [first] = panel.measures;
  const which = panel.measures.length > 1 ? `${first?.label.replace(/ \(.*/, '')}, ` : '';
  if (first && random) series.push(line(`${which}random weights`, first.of, random, true));
  if (first?.shuffled) series.push(line(`${which}coordinates shuffled`, first.shuffled, levels, true));
  return series.filter(({ points }) => points.some(({ y }) => y !== null));
}

/** Why measures of a panel have no value, each reason once with the levels it holds for. */
export function refusals({ levels }: Geometry, panel: Panel): string[] {
  return panel.measures.flatMap(({ label, of }) =>
    levelReasons(levels.map((level) => ({ layer: level.layer, estimate: of(level) }))).map((said) => `${label}: ${said}`),
  );
}

/** Dimension over scale at one level: the number of neighbors stands for the scale. */
export function scaleCurve(level: LayerGeometry): Series[] {
  const points = level.gride.map(({ k, dimension }) => point(k, dimension));
  return points.some(({ y }) => y !== null) ? [{ name: 'GRIDE', points }] : [];
}

/**
 * Sense accuracy by level, with the accuracy of random weights, of permuted senses and of the context's static vectors. The margin of
 * static vectors is not drawn beside margins of states, because their cosines have another scale.
 */
export function accuracySeries({ layers, random, static: { context } }: SenseReport): Series[] {
  const line = (name: string, from: SenseReport['layers'], baseline: boolean): Series => ({
    name,
    points: from.map(({ layer, accuracy }) => point(layer, accuracy)),
    baseline,
  });
  return held([
    line('this model', layers, false),
    ...(random ? [line('random weights', random, true)] : []),
    {
      name: 'permuted senses (95th percentile)',
      points: layers.map(({ layer, accuracy_null }) => ({ x: layer, y: accuracy_null?.high ?? null })),
      baseline: true,
    },
    { name: 'static vectors of the context', points: layers.map(({ layer }) => ({ x: layer, y: context?.accuracy.value ?? null })), baseline: true },
  ]);
}

/** Cosine within senses minus cosine across senses, with the same baselines. */
export function marginSeries({ layers, random }: SenseReport): Series[] {
  const of = (from: SenseReport['layers']) => from.map(({ layer, margin }) => point(layer, margin));
  return held([
    { name: 'this model', points: of(layers) },
    ...(random ? [{ name: 'random weights', points: of(random), baseline: true }] : []),
    {
      name: 'permuted senses (95th percentile)',
      points: layers.map(({ layer, margin_null }) => ({ x: layer, y: margin_null.high })),
      baseline: true,
    },
  ]);
}

/** Why a level has no accuracy, each reason once. */
export function senseRefusals({ layers }: SenseReport): string[] {
  return levelReasons(layers.map(({ layer, accuracy }) => ({ layer, estimate: accuracy })));
}

/** The level at which a measure is largest. */
export function peakLevel(series: Series | undefined): number | null {
  let best: Point | null = null;
  for (const one of series?.points ?? []) {
    if (one.y !== null && (best === null || one.y > (best.y ?? 0))) best = one;
  }
  return best?.x ?? null;
}

/** n in words, and what it was taken from. */
export function samplePhrase({ levels, tokens }: Geometry): string {
  const first = levels[0];
  if (!first) return '';
  const drawn = first.n < first.tokens ? ` drawn from ${first.tokens.toLocaleString('en')}` : '';
  const left = tokens - first.tokens;
  const special = left > 0 ? `; ${left} special ${left === 1 ? 'token is' : 'tokens are'} left out` : '';
  return `n = ${first.n.toLocaleString('en')} tokens${drawn} in ${first.width} dimensions${special}`;
}

/** Identical vectors count once for distances; the phrase is shown where some level has any. */
export function equalPhrase({ levels }: Geometry): string | null {
  const fewest = levels.reduce<LayerGeometry | null>((one, next) => (one && one.distinct <= next.distinct ? one : next), null);
  if (!fewest || fewest.distinct === fewest.n) return null;
  return `In ${levelPhrase(fewest.layer)} only ${numberWords(fewest.distinct)} of them are distinct; neighbor-based dimensions use those.`;
}

function levelReasons(levels: readonly { layer: number; estimate: Estimate | null }[]): string[] {
  const found = new Map<string, number[]>();
  for (const { layer, estimate } of levels) {
    if (estimate?.value !== null || !estimate.reason) continue;
    found.set(estimate.reason, [...(found.get(estimate.reason) ?? []), layer]);
  }
  return [...found].map(([reason, at]) => (at.length === levels.length ? reason : `${reason} (${at.map(levelName).join(', ')})`));
}

function held(series: Series[]): Series[] {
  return series.filter(({ points }) => points.some(({ y }) => y !== null));
}

function point(x: number, given: Estimate | null): Point {
  return { x, y: given?.value ?? null, low: given?.low ?? null, high: given?.high ?? null };
}
