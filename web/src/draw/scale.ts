/**
 * From a probability to its place on the color map, and from a tile's code to a color.
 *
 * Tiles travel as one byte a cell on one fixed logarithmic scale, the same for every head: code 0 is
 * below 1e-6 or not allowed, c = 1..255 stands for exp(ln 1e-6 (255 - c) / 254), so neighboring codes
 * differ by 5.6 %. Scale, gain and the hidden part act on the table of 256 colors alone.
 */

import { COLORS } from './color';

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

/** For every code of a tile the index of its color. */
export function colorIndexes(tint: Tint): Uint8Array {
  const indexes = new Uint8Array(COLORS);
  for (let code = 1; code < COLORS; code++) {
    if (code < tint.clip) continue;
    indexes[code] = colorCode(tint.scale, Math.min(1, probabilityOf(code) * 2 ** tint.gain));
  }
  return indexes;
}

/** For every code its color as the four bytes of a pixel, red first. */
export function pixelTable(colors: Uint8Array, tint: Tint): Uint32Array {
  const table = new Uint32Array(COLORS);
  colorIndexes(tint).forEach((index, code) => {
    const [red = 0, green = 0, blue = 0] = colors.subarray(3 * index, 3 * index + 3);
    table[code] = 0xff000000 | (blue << 16) | (green << 8) | red;
  });
  return table;
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
