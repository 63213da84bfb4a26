/** Lines, bands, points and cells of charts, as SVG paths and colors. No page is touched here. */

import { type Axis, position } from './axes';
import { COLORS, palette, type Tone } from './color';

export interface Point {
  x: number;
  /** Absent where nothing was measured: the line has a gap there. */
  y: number | null;
  /** Ends of the interval, both or neither. */
  low?: number | null | undefined;
  high?: number | null | undefined;
}

export interface Series {
  name: string;
  points: readonly Point[];
  /** A baseline is drawn thin and dashed. */
  baseline?: boolean | undefined;
  /** Points without a line between them: what was measured, beside a fitted curve. */
  dots?: boolean | undefined;
  /** A course drawn between the points of others: it adds no stop for the pointer and no line to the table. */
  course?: boolean | undefined;
  /** Color of another series that it belongs to, by place. */
  color?: number | undefined;
}

/** Where a chart lies in its picture, in pixels. */
export interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Hues that stay apart with any color vision (after Okabe and Ito 2008), for both papers. */
const HUES = [
  ['#1d5aa8', '#8ab8f5'],
  ['#b4500b', '#f2a65e'],
  ['#00785a', '#4fc9a4'],
  ['#9b3f7e', '#e39bca'],
  ['#6a5a00', '#d9c94a'],
  ['#40454f', '#c4c8d1'],
] as const;

/** Color of the series at a place. It follows the page's light or dark by itself. */
export function hue(place: number): string {
  const [light, dark] = HUES[place % HUES.length] ?? HUES[0];
  return `light-dark(${light}, ${dark})`;
}

/** The same in one tone, for pixels. */
export function hueOf(place: number, tone: Tone): string {
  return (HUES[place % HUES.length] ?? HUES[0])[tone === 'dark' ? 1 : 0];
}

/** A second sign besides the color: dashes of a line. */
export function dashes(place: number, baseline = false): string {
  if (baseline) return ['2 4', '1 3 6 3', '2 4 2 8'][place % 3] ?? '';
  return ['', '7 4', '2 3', '10 3 2 3', '12 4', '4 2'][place % 6] ?? '';
}

/** The outline of a point's sign, about 4 pixels around 0, 0. */
export function sign(place: number, size = 4): string {
  const s = size;
  const t = 0.85 * s;
  const signs = [
    `M${-s} 0A${s} ${s} 0 1 0 ${s} 0A${s} ${s} 0 1 0 ${-s} 0Z`,
    `M${-t} ${-t}H${t}V${t}H${-t}Z`,
    `M0 ${-s}L${s} ${t}H${-s}Z`,
    `M0 ${-1.2 * s}L${1.2 * s} 0L0 ${1.2 * s}L${-1.2 * s} 0Z`,
    `M${-s} ${-t}H${s}L0 ${s}Z`,
    `M${-s} 0H${s}M0 ${-s}V${s}`,
  ];
  return signs[place % signs.length] ?? '';
}

/** The frame of a chart of that size, with room for its axes: on the left for the words of the y axis. */
export function frameIn(width: number, height: number, y: Axis): Frame {
  const left = 22 + 7 * Math.max(3, ...y.marks.map(({ label }) => label.length));
  return { left, top: 10, width: Math.max(60, width - left - 14), height: height - 56 };
}

export function xOf(axis: Axis, frame: Frame, value: number): number {
  return frame.left + frame.width * position(axis, value);
}

export function yOf(axis: Axis, frame: Frame, value: number): number {
  return frame.top + frame.height * (1 - position(axis, value));
}

/** Whether a value has a place on the axis at all. */
export function drawable(axis: Axis, value: number | null | undefined): value is number {
  return value !== null && value !== undefined && Number.isFinite(value) && (axis.kind === 'linear' || value > 0);
}

/** A line through the points, broken where one is absent. */
export function linePath(points: readonly Point[], x: Axis, y: Axis, frame: Frame): string {
  let path = '';
  let open = false;
  for (const point of points) {
    if (!drawable(y, point.y) || !drawable(x, point.x)) {
      open = false;
      continue;
    }
    path += `${open ? 'L' : 'M'}${fixed(xOf(x, frame, point.x))} ${fixed(yOf(y, frame, point.y))}`;
    open = true;
  }
  return path;
}

/** The area between the ends of the intervals, in as many pieces as there are runs of them. */
export function bandPath(points: readonly Point[], x: Axis, y: Axis, frame: Frame): string {
  const runs: Point[][] = [[]];
  for (const point of points) {
    if (drawable(y, point.low) && drawable(y, point.high)) runs.at(-1)?.push(point);
    else if (runs.at(-1)?.length) runs.push([]);
  }
  let path = '';
  for (const run of runs) {
    if (run.length < 2) continue;
    const across = (point: Point) => fixed(xOf(x, frame, point.x));
    path += `M${run.map((p) => `${across(p)} ${fixed(yOf(y, frame, p.high as number))}`).join('L')}`;
    const back = [...run].reverse();
    path += `L${back.map((p) => `${across(p)} ${fixed(yOf(y, frame, p.low as number))}`).join('L')}Z`;
  }
  return path;
}

/** All places on the x axis where some series has a point of its own, in order. */
export function stops(series: readonly Series[]): number[] {
  const own = series.filter(({ course }) => !course);
  return [...new Set(own.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
}

/** The stop nearest to a value, or null without stops. */
export function nearest(all: readonly number[], value: number, near: (at: number) => number = (at) => at): number | null {
  let best: number | null = null;
  for (const at of all) {
    if (best === null || Math.abs(near(at) - value) < Math.abs(near(best) - value)) best = at;
  }
  return best;
}

/** Every y value of the series and its interval. */
export function heights(series: readonly Series[]): number[] {
  return series
    .flatMap(({ points }) => points.flatMap(({ y, low, high }) => [y, low, high]))
    .filter((value): value is number => value !== null && value !== undefined && Number.isFinite(value));
}

function fixed(value: number): string {
  return String(Math.round(10 * value) / 10);
}

/** What the colors of a grid mean. */
export interface CellScale {
  low: number;
  high: number;
  /** Two hues from the middle, for differences; otherwise one path from light to dark. */
  diverging: boolean;
  /** Square root of the place between the ends (for differences, of the size): small values are seen. */
  root: boolean;
}

export interface CellOptions {
  diverging?: boolean;
  domain?: readonly [number, number] | undefined;
  root?: boolean;
}

/** The scale of a grid: differences get ends that lie equally far from zero. */
export function cellScale(values: ArrayLike<number>, options: CellOptions = {}): CellScale {
  const { diverging = false, root = false } = options;
  const kind = { diverging, root };
  if (options.domain) return { low: options.domain[0], high: options.domain[1], ...kind };
  let low = Infinity;
  let high = -Infinity;
  for (let cell = 0; cell < values.length; cell++) {
    const value = values[cell] as number;
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return { low: diverging ? -1 : 0, high: 1, ...kind };
  if (diverging) {
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { low: -most, high: most, ...kind };
  }
  if (low < high) return { low, high, ...kind };
  return { low: Math.min(0, low), high: Math.max(low, 0) || 1, ...kind };
}

/** Index of a value into the 256 colors. */
export function cellCode(scale: CellScale, value: number): number {
  let place = Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low)));
  if (scale.root && scale.diverging) {
    const signed = 2 * place - 1;
    place = (1 + Math.sign(signed) * Math.sqrt(Math.abs(signed))) / 2;
  } else if (scale.root) place = Math.sqrt(place);
  return Math.floor((COLORS - 1) * place + 0.5);
}

/** Blue below, the paper's own gray in the middle, orange above: 256 colors as bytes. */
export function diverging(tone: Tone): Uint8Array {
  const [below, middle, above] =
    tone === 'dark'
      ? ([[105, 175, 255], [34, 38, 49], [255, 160, 80]] as const)
      : ([[18, 78, 160], [246, 245, 240], [176, 72, 4]] as const);
  const bytes = new Uint8Array(3 * COLORS);
  for (let code = 0; code < COLORS; code++) {
    const place = (2 * code) / (COLORS - 1) - 1;
    const end = place < 0 ? below : above;
    for (let channel = 0; channel < 3; channel++) {
      const from = middle[channel] as number;
      bytes[3 * code + channel] = Math.round(from + ((end[channel] as number) - from) * Math.abs(place));
    }
  }
  return bytes;
}

/** The 256 colors of a scale on a page of the given tone. */
export function cellColors(scale: CellScale, tone: Tone): Uint8Array {
  return scale.diverging ? diverging(tone) : palette(tone);
}

/** Black or white, whichever reads better on a color of the palette (contrast by WCAG 2). */
export function inkOn(colors: Uint8Array, code: number): '#000' | '#fff' {
  const linear = (byte: number) => {
    const share = byte / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const [red = 0, green = 0, blue = 0] = colors.subarray(3 * code, 3 * code + 3);
  const light = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? '#000' : '#fff';
}
