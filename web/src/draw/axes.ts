/** Axes of charts: their ends, their marks, and the place of a value between the ends. */

export interface Mark {
  value: number;
  label: string;
}

export interface Axis {
  kind: 'linear' | 'log';
  low: number;
  high: number;
  marks: readonly Mark[];
}

export interface AxisOptions {
  kind?: 'linear' | 'log' | undefined;
  /** Values that must be on the axis, such as 0 for shares. */
  include?: readonly number[] | undefined;
  /** Ends given by hand, where every picture must have the same. */
  domain?: readonly [number, number] | undefined;
  /** Marks of a logarithmic axis at powers of two: lengths. */
  doubling?: boolean | undefined;
  /** Marks at whole numbers only: layers, tokens. */
  whole?: boolean | undefined;
  /** About how many marks there is room for. */
  about?: number | undefined;
  /** How a mark is written. */
  words?: ((value: number) => string) | undefined;
  /** How a value is called away from its axis, where its mark with the axis' title would not say it. */
  name?: ((value: number) => string) | undefined;
}

/** An axis that holds all values; those that are not finite (or not positive, if log) are left out. */
export function axisOf(values: Iterable<number>, options: AxisOptions = {}): Axis {
  const kind = options.kind ?? 'linear';
  const held = [...values, ...(options.include ?? [])].filter(
    (value) => Number.isFinite(value) && (kind === 'linear' || value > 0),
  );
  if (options.domain) held.splice(0, held.length, ...options.domain);
  const low = held.reduce((least, value) => Math.min(least, value), Infinity);
  const high = held.reduce((most, value) => Math.max(most, value), -Infinity);
  if (low > high) return axisOf(kind === 'log' ? [1, 10] : [0, 1], { ...options, include: [] });
  return kind === 'log' ? logAxis(low, high, options) : linearAxis(low, high, options);
}

/** Place of a value between the ends: 0 at the low end, 1 at the high one. */
export function position(axis: Axis, value: number): number {
  const at = axis.kind === 'log' ? Math.log : (given: number) => given;
  return (at(value) - at(axis.low)) / (at(axis.high) - at(axis.low));
}

function linearAxis(low: number, high: number, options: AxisOptions): Axis {
  const about = options.about ?? 5;
  const wide = high > low ? high - low : Math.abs(high) || 1;
  let step = niceStep(wide / about);
  if (options.whole) step = Math.max(1, Math.round(step));
  const fixed = options.domain !== undefined || options.whole === true;
  let first = low;
  let last = high;
  if (high === low) {
    first = low - (options.whole ? 0.5 : step);
    last = high + (options.whole ? 0.5 : step);
  } else if (!fixed) {
    first = step * Math.floor(low / step + 1e-9);
    last = step * Math.ceil(high / step - 1e-9);
  }
  const words = options.words ?? numberWords;
  const marks: Mark[] = [];
  for (let at = Math.ceil(first / step - 1e-9); at * step <= last + 1e-9 * step; at++) {
    // 3 * 0.1 is not 0.3: the mark is written with as many decimals as its step has.
    const value = Number((at * step).toFixed(Math.max(0, 1 - Math.floor(Math.log10(step)))));
    marks.push({ value, label: words(value) });
  }
  return { kind: 'linear', low: first, high: last, marks };
}

/** Marks at powers of two if asked for, else at 1, 2, 5, 10 ... or, over many decades, at powers of ten. */
function logAxis(low: number, high: number, options: AxisOptions): Axis {
  const steps = options.doubling ? doublings(low, high) : decades(low, high);
  const first = steps.findLastIndex((value) => value <= low * (1 + 1e-9));
  let last = steps.findIndex((value) => value >= high * (1 - 1e-9));
  if (last === first) last += 1;
  const kept = steps.slice(first, last + 1);
  const ends = options.domain ?? [kept[0] as number, kept.at(-1) as number];
  const fewer = thinned(kept, options.about ?? 7);
  const words = options.words ?? numberWords;
  const marks = fewer
    .filter((value) => value >= ends[0] * 0.999 && value <= ends[1] * 1.001)
    .map((value) => ({ value, label: words(value) }));
  return { kind: 'log', low: ends[0], high: ends[1], marks };
}

/** Powers of two from below `low` to beyond `high`. */
function doublings(low: number, high: number): number[] {
  const first = Math.floor(Math.log2(low) + 1e-9);
  const last = Math.ceil(Math.log2(high) - 1e-9) + 1;
  return Array.from({ length: last - first + 1 }, (_, step) => 2 ** (first + step));
}

/** 1, 2 and 5 times the powers of ten, likewise. */
function decades(low: number, high: number): number[] {
  const first = Math.floor(Math.log10(low) + 1e-9);
  const last = Math.ceil(Math.log10(high) - 1e-9) + 1;
  const powers = Array.from({ length: last - first + 1 }, (_, step) => 10 ** (first + step));
  return powers.flatMap((power) => [1, 2, 5].map((times) => exact(times * power)));
}

/** At most about `most` of the steps: powers of ten first, then every second, third ... of what is left. */
function thinned(steps: readonly number[], most: number): number[] {
  if (steps.length <= most) return [...steps];
  const tens = steps.filter((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9);
  const left = tens.length >= 3 ? tens : steps;
  const every = Math.ceil(left.length / most);
  return left.filter((_, place) => place % every === 0);
}

/** 10 ** -4 is not 0.0001 in floating point. */
function exact(value: number): number {
  return Number(value.toPrecision(12));
}

/** The step 1, 2 or 5 times a power of ten that is nearest. */
function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const share = rough / power;
  return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

/** A number as people read it: all digits of a whole number, else four that count; powers of ten only where they must be. */
export function numberWords(value: number): string {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2).replace('-', '−');
  const written = value.toLocaleString('en', Number.isInteger(value) ? {} : { maximumSignificantDigits: 4 });
  return written.replace('-', '−');
}

/** Seconds in the unit that fits. */
export function secondsWords(seconds: number): string {
  if (seconds >= 7200) return `${numberWords(round3(seconds / 3600))} h`;
  if (seconds >= 120) return `${numberWords(round3(seconds / 60))} min`;
  if (seconds >= 1 || seconds === 0) return `${numberWords(round3(seconds))} s`;
  if (seconds >= 1e-3) return `${numberWords(round3(seconds * 1e3))} ms`;
  return `${numberWords(round3(seconds * 1e6))} µs`;
}

/** Bytes in decimal units, as disks and memory are sold. */
export function bytesWords(bytes: number): string {
  if (bytes >= 1e12) return `${numberWords(round3(bytes / 1e12))} TB`;
  if (bytes >= 1e9) return `${numberWords(round3(bytes / 1e9))} GB`;
  if (bytes >= 1e6) return `${numberWords(round3(bytes / 1e6))} MB`;
  if (bytes >= 1e3) return `${numberWords(round3(bytes / 1e3))} kB`;
  return `${numberWords(bytes)} B`;
}

function round3(value: number): number {
  return Number(value.toPrecision(3));
}

/** A share as percent, never 0 % for what is not zero, and no decimals where they would say nothing. */
export function percentWords(share: number): string {
  const percent = Number((100 * share).toPrecision(6));
  if (Number.isInteger(percent)) return `${percent}\u00a0%`.replace('-', '−');
  const size = Math.abs(percent);
  if (size < 1e-4) return `${percent.toExponential(1).replaceAll('-', '−')}\u00a0%`;
  const written = size < 1 ? String(Number(percent.toPrecision(2))) : percent.toFixed(1);
  return `${written.replace('-', '−')}\u00a0%`;
}
