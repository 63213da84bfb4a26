/**
 * The color map: one path through OKLab from dark indigo over teal to pale yellow.
 * Lightness changes by equal steps and carries the value alone, so the order of the colors is
 * seen with any color vision and in gray. On a dark page it runs dark to light, on a light page
 * light to dark: in both, zero is near the paper.
 */

export type Tone = 'light' | 'dark';

export const COLORS = 256;

const LIGHTNESS = [0.205, 0.985] as const;
const HUE_DEGREES = [283, 103] as const;
const CHROMA_ENDS = 0.025;
const CHROMA_RISE = 0.095;

/** Red, green, blue of all 256 colors, one after another. */
export function palette(tone: Tone): Uint8Array {
  const bytes = new Uint8Array(3 * COLORS);
  for (let code = 0; code < COLORS; code++) {
    const step = code / (COLORS - 1);
    bytes.set(colorAt(tone === 'dark' ? step : 1 - step), 3 * code);
  }
  return bytes;
}

/** The path at `t` in 0..1, as sRGB bytes. Björn Ottosson's OKLab (2020). */
function colorAt(t: number): [number, number, number] {
  const lightness = LIGHTNESS[0] + (LIGHTNESS[1] - LIGHTNESS[0]) * t;
  const chroma = CHROMA_ENDS + CHROMA_RISE * Math.sin(Math.PI * t);
  const hue = ((HUE_DEGREES[0] + (HUE_DEGREES[1] - HUE_DEGREES[0]) * t) * Math.PI) / 180;
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    byte(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

/** Linear light to an sRGB byte. */
function byte(linear: number): number {
  const value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055;
  return Math.floor(255 * Math.min(1, Math.max(0, value)) + 0.5);
}

/** One color of a palette for CSS. */
export function css(colors: Uint8Array, code: number): string {
  return `rgb(${colors[3 * code]} ${colors[3 * code + 1]} ${colors[3 * code + 2]})`;
}
