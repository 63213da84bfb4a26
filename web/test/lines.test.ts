import { describe, expect, it } from 'vitest';
import { blank, colorOf, draw, faded, type Lines, mixed, shape } from '../src/draw/lines';

const WHITE = 0xffffff;
const RED = colorOf('#ff0000');

function lines(...given: [from: number, to: number, width: number, opacity: number, color: number][]): Lines {
  const column = (at: number) => Float32Array.from(given, (one) => one[at] as number);
  return { count: given.length, from: column(0), to: column(1), width: column(2), opacity: column(3), color: Int32Array.from(given, (one) => one[4]) };
}

const bytes = (pixel: number) => [pixel & 0xff, (pixel >> 8) & 0xff, (pixel >> 16) & 0xff, (pixel >> 24) & 0xff];
const never = () => false;

describe('colors', () => {
  it('are read, mixed and faded channel by channel', () => {
    expect(bytes(colorOf(' #0172b3')).slice(0, 3)).toEqual([0x01, 0x72, 0xb3]);
    expect(colorOf('#f0a')).toBe(colorOf('#ff00aa'));
    expect(bytes(mixed(colorOf('#000000'), colorOf('#ff8010'), 0.5)).slice(0, 3)).toEqual([128, 64, 8]);
    expect(mixed(RED, WHITE, 0)).toBe(RED);
    const picture = blank(1, 1, RED);
    expect(bytes(faded(picture, WHITE, 0).pixels[0] as number)).toEqual([255, 255, 255, 255]);
    expect(bytes(faded(picture, WHITE, 1).pixels[0] as number)).toEqual([255, 0, 0, 255]);
    const [red, green, blue] = bytes(faded(picture, WHITE, 0.25).pixels[0] as number);
    expect(red).toBe(255);
    expect(green).toBe(blue);
    expect(Math.abs((green as number) - 191)).toBeLessThanOrEqual(1);
  });
});

describe('the shape of a line', () => {
  it('is the cubic with level ends and its handles in the middle', () => {
    const { height, rise } = shape(200);
    for (const t of [0.1, 0.37, 0.5, 0.8]) {
      const x = t * (1.5 - 1.5 * t + t * t);
      const column = Math.round(200 * x - 0.5);
      const exact = t * t * (3 - 2 * t) + ((column + 0.5) / 200 - x) * 200 * (rise[column] as number);
      expect(height[column]).toBeCloseTo(exact, 3);
    }
    for (let column = 1; column < 199; column++) {
      const slope = ((height[column + 1] as number) - (height[column - 1] as number)) / 2;
      expect(Math.abs((rise[column] as number) - slope)).toBeLessThan(1e-4);
    }
  });
});

describe('drawing', () => {
  it('puts the color on the line and nothing elsewhere', () => {
    const picture = blank(20, 9, WHITE);
    draw(picture, lines([4.5, 4.5, 1, 1, RED]), shape(20), 0, never);
    for (let row = 0; row < 9; row++) {
      const pixel = bytes(picture.pixels[row * 20 + 10] as number);
      expect(pixel).toEqual(row === 4 ? [255, 0, 0, 255] : [255, 255, 255, 255]);
    }
  });

  it('covers as much as a line is long and wide, however steep it is', () => {
    for (const [to, width] of [[50, 2], [250, 2], [250, 3.5], [400, 1]] as const) {
      const picture = blank(100, 460, WHITE);
      const form = shape(100);
      draw(picture, lines([50, to, width, 1, 0]), form, 0, never);
      const ink = picture.pixels.reduce((sum, pixel) => sum + (255 - (pixel & 0xff)) / 255, 0);
      const long = form.rise.reduce((sum, rise) => sum + Math.hypot(1, rise * (to - 50)), 0);
      expect(ink / (long * width)).toBeGreaterThan(0.93);
      expect(ink / (long * width)).toBeLessThan(1.07);
    }
  });

  it('draws later lines over earlier ones, and goes on where it stopped', () => {
    const all = lines(...Array.from({ length: 100 }, (_, at) => [at, 99 - at, 1.5, 0.5, at % 2 ? RED : 0] as [number, number, number, number, number]));
    const [once, often] = [blank(30, 100, WHITE), blank(30, 100, WHITE)];
    expect(draw(once, all, shape(30), 0, never)).toBe(100);
    let [next, slices] = [0, 0];
    while (next < 100) [next, slices] = [draw(often, all, shape(30), next, () => true), slices + 1];
    expect(slices).toBeGreaterThan(2);
    expect(often.pixels).toEqual(once.pixels);
    const over = blank(9, 3, WHITE);
    draw(over, lines([1.5, 1.5, 1, 1, 0], [1.5, 1.5, 1, 1, RED]), shape(9), 0, never);
    expect(bytes(over.pixels[13] as number)).toEqual([255, 0, 0, 255]);
  });

  it('leaves out what is beyond the picture', () => {
    const picture = blank(40, 20, WHITE);
    draw(picture, lines([-5000, 9000, 2, 1, RED], [-50, -60, 3, 1, RED], [400, 90, 3, 1, RED]), shape(40), 0, never);
    const columns = new Set([...picture.pixels].flatMap((pixel, at) => (pixel === (WHITE | 0xff000000) ? [] : [at % 40])));
    expect(columns.size).toBeGreaterThan(0);
    expect(columns.size).toBeLessThan(4);
  });
});
