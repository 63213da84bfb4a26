/**
 * From a probability to its place on the color map, and from a tile's code to a color.
 *
 * Tiles travel as one byte a cell on one fixed logarithmic scale, the same for every head: code 0 is
 * below 1e-6 or not allowed, c = 1..255 stands for exp(ln 1e-6 (255 - c) / 254), so neighboring codes
 * differ by 5.6 %. Scale, gain and the hidden part act on the table of 256 colors alone.
 */

import { COLORS } from './color';
import { probabilityWords } from './words';

export const SCALES = ['linear', 'sqrt', 'log'] as const;
export type Scale = (typeof SCALES)[number];

/** The smallest probability that a code can stand for; the logarithmic scale begins there. */
export const FLOOR = 1e-6;
const DEPTH = -Math.log(FLOOR);

/** The probability that a code stands for. */
export function probabilityOf(code: number): number {
  return code === 0 ? 0 : Math.exp((-DEPTH * (255 - code)) / 254);
}

/** The code of a probability. */
export function codeOf(probability: number): number {
  if (!(probability >= FLOOR)) return 0;
  return Math.max(1, Math.min(255, Math.round(255 + (254 * Math.log(probability)) / DEPTH)));
}

/** Place of a probability in 0..1. */
export function place(scale: Scale, probability: number): number {
  if (scale === 'linear') return probability;
  if (scale === 'sqrt') return Math.sqrt(probability);
  return probability <= FLOOR ? 0 : 1 + Math.log(probability) / DEPTH;
}

/** Index into the 256 colors; the nearest one, halves upward. */
export function colorCode(scale: Scale, probability: number): number {
  return Math.floor(255 * Math.min(1, place(scale, probability)) + 0.5);
}

/** How codes are colored. */
export interface Tint {
  scale: Scale;
  /** Probabilities are multiplied by 2^gain, and end at 1. */
  gain: number;
  /** Codes below this one look like nothing. */
  clip: number;
}

export const MOST_GAIN = 12;

/**
 * The brightness that a text gets by itself, the same for all of its heads, so that their colors can be compared.
 * Weights shrink with 1 / tokens: where cells show means, uniform attention is as bright as in a text of 64
 * tokens. The largest weight of a cell shrinks less: 512. The logarithmic scale shows small weights as it is.
 */
export function automaticGain(tokens: number, scale: Scale, pool: 'max' | 'mean'): number {
  const doublings = Math.round(Math.log2(tokens / (pool === 'max' ? 512 : 64)));
  return scale === 'log' ? 0 : Math.max(0, Math.min(MOST_GAIN, doublings));
}

/** How a picture is colored, in words: scale, brightness, what is hidden. */
export function tintWords(tint: Tint): string {
  const words = [SCALE_WORDS[tint.scale]];
  if (tint.gain > 0) words.push(`brightness × ${2 ** tint.gain}`);
  if (tint.clip > 0) words.push(`hidden below ${probabilityWords(probabilityOf(tint.clip))}`);
  return words.join(', ');
}

/** Index of the color of an attention weight. */
export function weightCode(tint: Tint, probability: number): number {
  if (tint.clip > 0 && probability < probabilityOf(tint.clip)) return 0;
  return colorCode(tint.scale, Math.min(1, probability * 2 ** tint.gain));
}

/** Index of the color of a difference of two weights among two hues: its size counts, its sign says which hue. */
export function differenceCode(tint: Tint, difference: number): number {
  const half = (COLORS - 1) / 2;
  return Math.floor(half + (Math.sign(difference) * weightCode(tint, Math.abs(difference))) / 2 + 0.5);
}

/** For every code of a tile the index of its color. */
export function colorIndexes(tint: Tint): Uint8Array {
  const indexes = new Uint8Array(COLORS);
  for (let code = 1; code < COLORS; code++) indexes[code] = weightCode(tint, probabilityOf(code));
  return indexes;
}

/** The four bytes of a pixel, red first. */
function pixel(colors: Uint8Array, index: number): number {
  const [red = 0, green = 0, blue = 0] = colors.subarray(3 * index, 3 * index + 3);
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/** For every code the pixel of its color. */
export function pixelTable(colors: Uint8Array, tint: Tint): Uint32Array {
  return Uint32Array.from(colorIndexes(tint), (index) => pixel(colors, index));
}

/** The pixels of the difference of two maps that are coded alike, in two hues; `most` has the full color. */
export function differencePixels(now: Uint8Array, before: Uint8Array, hues: Uint8Array, most: number): Uint32Array {
  const tint: Tint = { scale: 'sqrt', gain: -Math.log2(most), clip: 0 };
  return Uint32Array.from(now, (code, cell) => {
    const difference = probabilityOf(code) - probabilityOf(before[cell] ?? 0);
    return pixel(hues, differenceCode(tint, difference));
  });
}

/** The largest difference between cells of two maps that are coded alike; not 0. */
export function largestDifference(now: Uint8Array, before: Uint8Array): number {
  let most = FLOOR;
  now.forEach((code, cell) => {
    const other = before[cell] ?? 0;
    if (code !== other) most = Math.max(most, Math.abs(probabilityOf(code) - probabilityOf(other)));
  });
  return most;
}

const TICKS: Record<Scale, readonly number[]> = {
  linear: [0, 0.25, 0.5, 0.75, 1],
  sqrt: [0, 0.01, 0.1, 0.25, 0.5, 1],
  log: [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1],
};

export interface Tick {
  place: number;
  label: string;
}

/** Marks for the legend; with a gain, the end of the colors stands for 1 / 2^gain. */
export function ticks(scale: Scale, gain = 0): Tick[] {
  return TICKS[scale].map((value, at) => {
    const shown = value / 2 ** gain;
    const written = shown === 0 ? '0' : shown >= 0.001 ? String(Number(shown.toPrecision(2))) : tenWords(shown);
    const [least, most] = [scale === 'log' && at === 0, gain > 0 && value === 1];
    return { place: place(scale, value), label: `${least ? '≤ ' : most ? '≥ ' : ''}${written}` };
  });
}

/** Pixels of a character of a mark, and between two. */
const [MARK_CHARACTER, MARK_GAP] = [6.7, 5];

/** The marks that have room on a legend of some pixels: the first, the last, and those between that touch no other. */
export function ticksApart(all: readonly Tick[], width: number): Tick[] {
  const [end] = all.slice(-1);
  const half = ({ label }: Tick) => (label.length * MARK_CHARACTER) / 2;
  const apart = (one: Tick, next: Tick) => (next.place - one.place) * width - half(one) - half(next) >= MARK_GAP;
  const kept: Tick[] = [];
  for (const tick of all) {
    const before = kept.at(-1);
    if (tick === end || ((!before || apart(before, tick)) && (!end || apart(tick, end)))) kept.push(tick);
  }
  return kept;
}

/** 0.00001 -> "1e-5". */
function tenWords(value: number): string {
  return value.toExponential(value.toExponential().startsWith('1e') ? 0 : 1);
}

/** The scale in words, to stand beside every picture that uses it. */
export const SCALE_WORDS: Record<Scale, string> = {
  linear: 'linear scale',
  sqrt: 'square-root scale',
  log: 'logarithmic scale',
};
