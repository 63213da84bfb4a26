/**
 * Curves between two columns, drawn into pixels: all have the same shape, so that a line is a product and a sum a
 * column. The canvas of a browser without a GPU takes several times as long for such a curve (docs/log/2026.md), and in
 * one task; this stops wherever its time is over, and goes on there.
 */

/** Lines in the order in which they are drawn, the strongest last; pixels, opacity 0 to 1. */
export interface Lines {
  count: number;
  from: Float32Array;
  to: Float32Array;
  width: Float32Array;
  opacity: Float32Array;
  /** Red, green and blue as 0xBBGGRR. */
  color: Int32Array;
}

export interface Picture {
  width: number;
  height: number;
  /** Opaque pixels as 0xAABBGGRR, row by row. */
  pixels: Int32Array;
}

const OPAQUE = 0xff000000;
/** Lines between two looks at the clock. */
const AT_ONCE = 32;

export function blank(width: number, height: number, color: number): Picture {
  return { width, height, pixels: new Int32Array(width * height).fill(color | OPAQUE) };
}

/** `#rrggbb`, or short `#rgb`, as 0xBBGGRR. */
export function colorOf(hex: string): number {
  const digits = hex.trim().slice(1);
  const value = Number.parseInt(digits.length === 3 ? [...digits].map((digit) => digit + digit).join('') : digits, 16);
  return ((value & 0xff) << 16) | (value & 0xff00) | ((value >> 16) & 0xff);
}

/** Two colors mixed, `part` of the second. */
export function mixed(one: number, other: number, part: number): number {
  let color = 0;
  for (const shift of [0, 8, 16]) {
    const [a, b] = [(one >> shift) & 0xff, (other >> shift) & 0xff];
    color |= Math.round(a + (b - a) * part) << shift;
  }
  return color;
}

/** The picture on paper of a color, faded to a part of its strength. */
export function faded({ width, height, pixels }: Picture, paper: number, part: number): Picture {
  const weight = Math.round(256 * part);
  const found = new Int32Array(pixels.length);
  for (let at = 0; at < pixels.length; at++) found[at] = blended(paper, pixels[at] as number, weight);
  return { width, height, pixels: found };
}

/** `weight` of 256 parts of `over` on `under`. */
function blended(under: number, over: number, weight: number): number {
  const [even, odd] = [under & 0xff00ff, under & 0xff00];
  const mix = even + (((over & 0xff00ff) - even) * weight >> 8);
  return OPAQUE | (mix & 0xff00ff) | ((odd + (((over & 0xff00) - odd) * weight >> 8)) & 0xff00);
}

/**
 * The height of a curve at the middle of each column, 0 at the left and 1 at the right, and how much it rises there:
 * a cubic whose handles lie in the middle, level with its ends.
 */
export function shape(width: number): { height: Float32Array; rise: Float32Array } {
  const [height, rise] = [new Float32Array(width), new Float32Array(width)];
  for (let column = 0; column < width; column++) {
    const x = (column + 0.5) / width;
    let t = x;
    // x = t (1.5 - 1.5 t + t²) never turns back, so Newton's steps arrive.
    for (let step = 0; step < 6; step++) t -= (t * (1.5 - 1.5 * t + t * t) - x) / (1.5 - 3 * t + 3 * t * t);
    height[column] = t * t * (3 - 2 * t);
    rise[column] = (6 * t * (1 - t)) / (1.5 - 3 * t + 3 * t * t) / width;
  }
  return { height, rise };
}

/** Draws lines from number `first` on until `over` says that the time is; the number of the next one. */
export function draw(picture: Picture, lines: Lines, form: ReturnType<typeof shape>, first: number, over: () => boolean): number {
  const { width, height, pixels } = picture;
  for (let line = first; line < lines.count; line++) {
    if (line > first && (line - first) % AT_ONCE === 0 && over()) return line;
    const from = lines.from[line] as number;
    const run = (lines.to[line] as number) - from;
    const wide = lines.width[line] as number;
    const strength = 256 * (lines.opacity[line] as number) * Math.min(1, wide);
    const half = Math.max(1, wide) / 2 + 0.5;
    const color = lines.color[line] as number;
    for (let column = 0; column < width; column++) {
      const slope = run * (form.rise[column] as number);
      const steep = Math.sqrt(1 + slope * slope);
      const flat = 1 / steep;
      const middle = from + run * (form.height[column] as number) - 0.5;
      const reach = half * steep;
      const top = Math.max(0, Math.ceil(middle - reach));
      const bottom = Math.min(height - 1, Math.floor(middle + reach));
      for (let row = top, at = top * width + column; row <= bottom; row++, at += width) {
        // As much of the pixel as the line covers, by the distance from its middle.
        const cover = half - Math.abs(row - middle) * flat;
        pixels[at] = blended(pixels[at] as number, color, (cover < 1 ? cover * strength : strength) | 0);
      }
    }
  }
  return lines.count;
}
