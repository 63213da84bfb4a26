/** The length-scaling report in readable form: points, curves, findings, machine card. */

import { bytesWords, numberWords, secondsWords } from './axes';
import type { Point, Series } from './chart';
import { sentenceWords } from './words';

interface Known {
  value: number;
  low: number;
  high: number | null;
}

export interface WallPoint {
  kernel: string;
  length: number;
  outcome: string;
  note: string;
  seconds: { median: number; lowest: number; highest: number } | null;
  peak_bytes: number | null;
}

export interface WallCurve {
  constant: Known;
  line: Known;
  square: Known;
  square_over_line: Known | null;
  square_over_rest: Known | null;
  largest_residual: number;
  lengths: number[];
}

export interface WallProbe {
  point: WallPoint;
  why: string;
  seconds_error: number | null;
  bytes_error: number | null;
  fits_as_predicted: boolean | null;
}

export interface WallCurves {
  kernel: string;
  time: WallCurve | null;
  memory: WallCurve | null;
  why_not: string;
  longest: { tokens: number; low: number; high: number | null; ends_by: string; seconds: Known | null } | null;
  within: { seconds: number; tokens: Known }[];
  probe: WallProbe | null;
}

export interface WallReport {
  protocol: 'scaling';
  measured: { name: string; layers: number; width: number; parameter_count: number; random_weights: boolean; max_tokens: number | null };
  machine: { processor: string; cores: number; threads: number; memory_gib: number | null; accelerator: string | null; system: string; python: string; versions: Record<string, string>; unmask: string; date_utc: string };
  dtype: string;
  device: string;
  memory_bytes: number | null;
  seconds_spent: number;
  repeats: number;
  points: WallPoint[];
  curves: WallCurves[];
  notes: string[];
}

/** The report in a parsed file, or null if it is not one. */
export function reportOf(value: unknown): WallReport | null {
  const given = value as (Omit<Partial<WallReport>, 'protocol'> & { protocol?: unknown }) | null;
  if (typeof given !== 'object' || given === null) return null;
  // Earlier versions wrote 'wall'.
  if (given.protocol !== 'scaling' && given.protocol !== 'wall') return null;
  const whole = Array.isArray(given.points) && Array.isArray(given.curves) && Array.isArray(given.notes);
  return whole && given.machine && given.measured ? (given as WallReport) : null;
}

/** The points in the answer of a running measurement. */
export function pointsOf(value: unknown): WallPoint[] {
  return Array.isArray(value) ? (value as WallPoint[]) : [];
}

/** The measured quantities: seconds and bytes. */
export type Quantity = 'seconds' | 'bytes';

/** Steps of a drawn curve. */
const STEPS = 48;

/** Measured points of every kernel, and its fitted curve if there is one, in the same color. */
export function wallSeries(points: readonly WallPoint[], curves: readonly WallCurves[], quantity: Quantity): Series[] {
  const ways = [...new Set(points.map(({ kernel }) => kernel))];
  return ways.flatMap((way, color) => {
    const dots = points.filter((point) => point.kernel === way && valueOf(point, quantity) !== null);
    if (dots.length === 0) return [];
    const measured: Series = { name: way, dots: true, color, points: dots.map((point) => dotOf(point, quantity)) };
    const fitted = curves.find(({ kernel }) => kernel === way)?.[quantity === 'seconds' ? 'time' : 'memory'];
    if (!fitted) return [measured];
    return [measured, { name: `${way}, fitted`, color, course: true, points: courseOf(fitted) }];
  });
}

/** The value of a curve at a length. */
export function curveAt({ constant, line, square }: WallCurve, tokens: number): number {
  return constant.value + tokens * (line.value + tokens * square.value);
}

function valueOf(point: WallPoint, quantity: Quantity): number | null {
  return quantity === 'seconds' ? (point.seconds?.median ?? null) : point.peak_bytes;
}

function dotOf(point: WallPoint, quantity: Quantity): Point {
  const x = point.length;
  if (quantity === 'bytes') return { x, y: point.peak_bytes };
  return { x, y: point.seconds?.median ?? null, low: point.seconds?.lowest, high: point.seconds?.highest };
}

/** Points along the curve, evenly spaced in powers, and at the measured lengths themselves. */
function courseOf(curve: WallCurve): Point[] {
  const [first, last] = [Math.min(...curve.lengths), Math.max(...curve.lengths)];
  const between = Array.from({ length: STEPS - 1 }, (_, step) => first * (last / first) ** ((step + 1) / STEPS));
  const all = [...new Set([...between, ...curve.lengths])].sort((a, b) => a - b);
  return all.map((x) => ({ x, y: curveAt(curve, x) }));
}

/** The curve as a formula with units: "4 ms + 30 µs × N + 12 ns × N²". Terms of 0 are left out. */
export function formula(curve: WallCurve, quantity: Quantity): string {
  const words = quantity === 'seconds' ? fineSeconds : bytesWords;
  const terms = [
    [curve.constant.value, ''],
    [curve.line.value, ' × N'],
    [curve.square.value, ' × N²'],
  ] as const;
  const kept = terms.filter(([value]) => value > 0).map(([value, power]) => `${words(value)}${power}`);
  return kept.length > 0 ? kept.join(' + ') : '0';
}

/** The findings of one kernel's curves, as sentences. */
export function sentences(one: WallCurves): string[] {
  if (!one.time) return [one.why_not || 'No curve was fitted: too few lengths were measured.'];
  const said = [`Time: ${formula(one.time, 'seconds')}.`];
  const { square_over_line: over, square, largest_residual: off } = one.time;
  if (over) {
    said.push(`The quadratic term dominates from ${tokenWords(over.value)}${range(over)}.`);
    if (square.low <= 0) said.push('Whether there is a quadratic term is uncertain: its interval contains 0. Longer texts would show it.');
  } else said.push('No quadratic term was found: time grows linearly with the length.');
  said.push(`The curve is within ${numberWords(Math.round(1000 * off) / 10)} % of every measured point.`);
  if (one.memory) said.push(`Memory in addition to the model: ${formula(one.memory, 'bytes')}.`);
  if (one.longest) said.push(longestWords(one.longest));
  if (one.probe) said.push(...probeWords(one.probe));
  return said;
}

function longestWords({ tokens, low, high, ends_by, seconds }: NonNullable<WallCurves['longest']>): string {
  const takes = seconds ? `, where one call takes about ${secondsWords(seconds.value)}` : '';
  if (ends_by === 'positions') return `The longest text is ${tokenWords(tokens)}, the limit of the model's positions${takes}.`;
  return `The longest text that fits in memory is ${tokenWords(tokens)}${range({ value: tokens, low, high })}${takes}.`;
}

function probeWords({ point, why, seconds_error, bytes_error, fits_as_predicted }: WallProbe): string[] {
  if (point.outcome !== 'measured') {
    return [`A probe at ${tokenWords(point.length)}: ${point.outcome}${point.note ? ` (${point.note})` : ''}.`];
  }
  const off = (error: number | null, what: string) =>
    error === null ? [] : [`${what} ${numberWords(Math.round(1000 * Math.abs(error)) / 10)} % ${error >= 0 ? 'above' : 'below'} the prediction`];
  const found = [...off(seconds_error, 'time'), ...off(bytes_error, 'memory')];
  const fits = fits_as_predicted === false ? ' The prediction was wrong.' : '';
  return [`Checked by a probe at ${tokenWords(point.length)}: ${found.join(', ') || 'measured'}.${fits}${why ? ` ${sentenceWords(why)}` : ''}`];
}

/** Points without a value: kernel, length and the reason. */
export function unmeasured(points: readonly WallPoint[]): { way: string; length: number; why: string }[] {
  return points
    .filter(({ outcome }) => outcome !== 'measured')
    .map(({ kernel, length, outcome, note }) => ({ way: kernel, length, why: note ? `${outcome}: ${note}` : outcome }));
}

/** The machine and the model of a report, line by line. */
export function card(report: WallReport): [string, string][] {
  const { machine, measured } = report;
  const memory = machine.memory_gib === null ? '' : `, ${numberWords(Math.round(machine.memory_gib))} GiB of memory`;
  const weights = measured.random_weights ? ', random weights' : '';
  return [
    ['Model', `${measured.name}: ${measured.layers} layers, width ${measured.width}, ${numberWords(measured.parameter_count)} parameters${weights}`],
    ['Machine', `${machine.accelerator ?? machine.processor}, ${machine.cores} cores, ${machine.threads} threads${memory}`],
    ['Arithmetic', `${report.dtype} on ${report.device}`],
    ['Memory limit', report.memory_bytes === null ? 'unknown' : bytesWords(report.memory_bytes)],
    ['Measured', `${report.repeats} repeats, ${secondsWords(report.seconds_spent)}, on ${machine.date_utc.slice(0, 10)}`],
    ['Versions', [`unmask ${machine.unmask}`, ...Object.entries(machine.versions).map(([name, version]) => `${name} ${version}`)].join(', ')],
  ];
}

/** Lengths as typed: "128, 256 1024"; null if something is not a length. */
export function lengthsOf(typed: string): number[] | null {
  const parts = typed.split(/[\s,;]+/).filter((part) => part !== '');
  const lengths = parts.map(Number);
  return lengths.every((length) => Number.isInteger(length) && length >= 1) ? lengths : null;
}

function tokenWords(tokens: number): string {
  return `${Math.round(tokens).toLocaleString('en')} tokens`;
}

function range({ low, high }: Known): string {
  const end = high === null ? 'unbounded' : Math.round(high).toLocaleString('en');
  return ` (95 %: ${Math.round(low).toLocaleString('en')} to ${end})`;
}

/** Seconds down to picoseconds: a cost for each pair of tokens is that small. */
function fineSeconds(seconds: number): string {
  if (seconds >= 1e-6) return secondsWords(seconds);
  if (seconds >= 1e-9) return `${numberWords(Number((seconds * 1e9).toPrecision(3)))} ns`;
  return `${numberWords(Number((seconds * 1e12).toPrecision(3)))} ps`;
}
