/** From a probability to its place on the colour map. The domain is always 0 to 1, for every head. */

export const SCALES = ['linear', 'sqrt', 'log'] as const;
export type Scale = (typeof SCALES)[number];

/** Below this the logarithmic scale shows its first colour. */
export const LOG_FLOOR = 1e-4;

/** Place of a probability in 0..1. */
export function place(scale: Scale, probability: number): number {
  if (scale === 'linear') return probability;
  if (scale === 'sqrt') return Math.sqrt(probability);
  return probability <= LOG_FLOOR ? 0 : 1 - Math.log10(probability) / Math.log10(LOG_FLOOR);
}

/** Index into the 256 colours; the nearest one, halves upward. */
export function colourCode(scale: Scale, probability: number): number {
  return Math.floor(255 * Math.min(1, place(scale, probability)) + 0.5);
}

const TICKS: Record<Scale, readonly number[]> = {
  linear: [0, 0.25, 0.5, 0.75, 1],
  sqrt: [0, 0.01, 0.1, 0.25, 0.5, 1],
  log: [0.0001, 0.001, 0.01, 0.1, 1],
};

export interface Tick {
  place: number;
  label: string;
}

/** Marks for the legend. */
export function ticks(scale: Scale): Tick[] {
  return TICKS[scale].map((value) => ({
    place: place(scale, value),
    label: scale === 'log' && value === LOG_FLOOR ? `≤ ${value}` : String(value),
  }));
}

/** The scale in words, to stand beside every picture that uses it. */
export const SCALE_WORDS: Record<Scale, string> = {
  linear: 'linear scale from 0 to 1',
  sqrt: 'square-root scale from 0 to 1',
  log: `logarithmic scale from ${LOG_FLOOR} to 1`,
};
