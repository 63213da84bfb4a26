import { describe, expect, it } from 'vitest';
import { axisOf, bytesWords, numberWords, percentWords, position, secondsWords } from '../src/draw/axes';
import * as draw from '../src/draw/chart';
import { palette } from '../src/draw/color';
import { csv, sorted } from '../src/draw/table';

const frame = { left: 10, top: 20, width: 100, height: 50 };

/** Contrast of the letters with their ground, by the formula of WCAG 2. */
function contrast(colors: Uint8Array, code: number): number {
  const part = (at: number) => {
    const share = (colors[3 * code + at] ?? 0) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const ground = 0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2);
  return draw.inkOn(colors, code) === '#fff' ? 1.05 / (ground + 0.05) : (ground + 0.05) / 0.05;
}

describe('axes', () => {
  it('hold every value between ends that are marked', () => {
    for (const values of [[0.013, 0.87], [-3, 5], [1234, 9876], [1e-7, 3e-7], [4, 4], [0, 0]]) {
      const axis = axisOf(values);
      for (const value of values) {
        expect(position(axis, value)).toBeGreaterThanOrEqual(0);
        expect(position(axis, value)).toBeLessThanOrEqual(1);
      }
      expect(axis.high).toBeGreaterThan(axis.low);
      expect(axis.marks.length).toBeGreaterThan(1);
      for (const mark of axis.marks) {
        expect(position(axis, mark.value)).toBeGreaterThan(-1e-9);
        expect(position(axis, mark.value)).toBeLessThan(1 + 1e-9);
      }
    }
  });

  it('write marks without rounding noise', () => {
    expect(axisOf([0, 1]).marks.map(({ label }) => label)).toEqual(['0', '0.2', '0.4', '0.6', '0.8', '1']);
    expect(axisOf([0, 0.3], { about: 3 }).marks.map(({ value }) => value)).toEqual([0, 0.1, 0.2, 0.3]);
  });

  it('mark layers at whole numbers and end at the first and last', () => {
    const axis = axisOf([0, 1, 2, 3, 4, 5, 6], { whole: true, about: 20 });
    expect([axis.low, axis.high]).toEqual([0, 6]);
    expect(axis.marks.map(({ value }) => value)).toEqual([0, 1, 2, 3, 4, 5, 6]);
    expect(axisOf([3], { whole: true }).marks.map(({ value }) => value)).toEqual([3]);
  });

  it('count lengths in powers of two if asked to', () => {
    const lengths = axisOf([128, 8192], { kind: 'log', doubling: true, about: 10 });
    expect(lengths.marks.map(({ value }) => value)).toEqual([128, 256, 512, 1024, 2048, 4096, 8192]);
    expect(position(lengths, 1024)).toBeCloseTo(0.5);
    const fewer = axisOf([128, 8192], { kind: 'log', doubling: true, about: 4 });
    expect(fewer.marks.map(({ value }) => value)).toEqual([128, 512, 2048, 8192]);
  });

  it('mark 1, 2, 5 on a short logarithmic axis and powers of ten on a long one', () => {
    const short = axisOf([0.004, 0.04], { kind: 'log' });
    expect(short.marks.map(({ value }) => value)).toEqual([0.002, 0.005, 0.01, 0.02, 0.05]);
    expect([short.low, short.high]).toEqual([0.002, 0.05]);
    const long = axisOf([0.0004, 90, 0, -1, Number.NaN], { kind: 'log' });
    expect(long.marks.map(({ value }) => value)).toEqual([0.001, 0.01, 0.1, 1, 10, 100]);
    expect([long.low, long.high]).toEqual([0.0002, 100]);
    const one = axisOf([7, 7], { kind: 'log' });
    expect(one.low).toBeLessThan(7);
    expect(one.high).toBeGreaterThan(7);
    expect(axisOf([5], { kind: 'log' }).high).toBeGreaterThan(5);
  });

  it('have ends even with nothing to show, and keep a given domain', () => {
    expect(axisOf([]).marks.length).toBeGreaterThan(1);
    expect(axisOf([Number.NaN, Infinity]).low).toBe(0);
    expect([axisOf([5], { domain: [0, 1] }).low, axisOf([5], { domain: [0, 1] }).high]).toEqual([0, 1]);
    expect(axisOf([0.5], { include: [0, 1] }).low).toBe(0);
  });
});

describe('numbers in words', () => {
  it('choose the unit', () => {
    expect(secondsWords(0.00123)).toBe('1.23 ms');
    expect(secondsWords(4.2e-5)).toBe('42 µs');
    expect(secondsWords(59.96)).toBe('60 s');
    expect(secondsWords(600)).toBe('10 min');
    expect(bytesWords(70.9e9)).toBe('70.9 GB');
    expect(bytesWords(512)).toBe('512 B');
    expect(numberWords(-0.12345)).toBe('−0.1235');
    expect(numberWords(1e-9)).toBe('1.00e−9');
    expect([32768, -12345, 22713216, 0].map(numberWords)).toEqual(['32,768', '−12,345', '22,713,216', '0']);
    expect(numberWords(32768.4)).toBe('32,770');
    expect(percentWords(0.00001)).not.toBe('0.00\u00a0%');
    expect([0, 0.25, 0.2534, 0.0012345, 1].map(percentWords)).toEqual(['0\u00a0%', '25\u00a0%', '25.3\u00a0%', '0.12\u00a0%', '100\u00a0%']);
  });
});

describe('lines', () => {
  const x = axisOf([0, 2], { whole: true });
  const y = axisOf([0, 1], { domain: [0, 1] });

  it('break where a value is absent', () => {
    const points = [{ x: 0, y: 0 }, { x: 1, y: null }, { x: 2, y: 1 }];
    expect(draw.linePath(points, x, y, frame)).toBe('M10 70M110 20');
    expect(draw.linePath([{ x: 0, y: 0 }, { x: 2, y: 1 }], x, y, frame)).toBe('M10 70L110 20');
  });

  it('have a band only where there is an interval', () => {
    const points = [
      { x: 0, y: 0.5, low: 0, high: 1 },
      { x: 1, y: 0.5, low: 0.5, high: 0.5 },
      { x: 2, y: 0.5, low: null, high: null },
    ];
    expect(draw.bandPath(points, x, y, frame)).toBe('M10 20L60 45L60 45L10 70Z');
    expect(draw.bandPath(points.slice(1), x, y, frame)).toBe('');
  });

  it('leave out what a logarithmic axis has no place for', () => {
    const log = axisOf([1, 100], { kind: 'log' });
    expect(draw.drawable(log, 0)).toBe(false);
    expect(draw.drawable(log, 3)).toBe(true);
    expect(draw.drawable(y, Number.NaN)).toBe(false);
  });

  it('know their stops and the nearest one', () => {
    const series = [
      { name: 'a', points: [{ x: 2, y: 1 }, { x: 0, y: 1 }] },
      { name: 'b', points: [{ x: 1, y: null, low: 3, high: 4 }] },
    ];
    expect(draw.stops(series)).toEqual([0, 1, 2]);
    const course = { name: 'c', course: true, points: [{ x: 0.5, y: 9 }] };
    expect(draw.stops([...series, course])).toEqual([0, 1, 2]);
    expect(draw.heights(series)).toEqual([1, 1, 3, 4]);
    expect(draw.nearest([0, 1, 2], 1.2)).toBe(1);
    expect(draw.nearest([], 1)).toBeNull();
  });
});

describe('cells', () => {
  it('put zero of a difference in the middle', () => {
    const scale = draw.cellScale([-0.1, 0.4], { diverging: true });
    expect([scale.low, scale.high]).toEqual([-0.4, 0.4]);
    expect([128, 127]).toContain(draw.cellCode(scale, 0));
    expect(draw.cellCode(scale, 0.4)).toBe(255);
    expect(draw.cellCode(scale, -9)).toBe(0);
  });

  it('have a scale for equal, absent and given values', () => {
    for (const values of [[], [Number.NaN], [3, 3], [0], [-2]]) {
      const { low, high } = draw.cellScale(values);
      expect(high).toBeGreaterThan(low);
    }
    expect(draw.cellScale([5], { domain: [0, 1] })).toEqual({ low: 0, high: 1, diverging: false, root: false });
  });

  it('show small values by their root, on both sides of zero', () => {
    const shares = draw.cellScale([0, 1], { root: true });
    expect(draw.cellCode(shares, 0.25)).toBe(128);
    const differences = draw.cellScale([-1, 1], { diverging: true, root: true });
    expect(draw.cellCode(differences, -0.25)).toBe(255 - draw.cellCode(differences, 0.25));
    expect(draw.cellCode(differences, 0.25)).toBe(191);
  });

  it('grow away from the paper on both sides of zero', () => {
    for (const tone of ['light', 'dark'] as const) {
      const colors = draw.diverging(tone);
      const far = (code: number) =>
        [0, 1, 2].reduce((sum, at) => sum + Math.abs((colors[3 * code + at] ?? 0) - (colors[3 * 127 + at] ?? 0)), 0);
      expect(far(0)).toBeGreaterThan(far(64));
      expect(far(64)).toBeGreaterThan(far(120));
      expect(far(255)).toBeGreaterThan(far(191));
    }
  });

  it('carry letters that can be read on every color', () => {
    for (const tone of ['light', 'dark'] as const) {
      const colors = palette(tone);
      for (let code = 0; code < 256; code++) expect(contrast(colors, code)).toBeGreaterThan(4.5);
    }
  });

  it('have a color, dashes and a sign for any number of series', () => {
    const kinds = Array.from({ length: 6 }, (_, at) => `${draw.hue(at)} ${draw.dashes(at)} ${draw.sign(at)}`);
    expect(new Set(kinds).size).toBe(6);
    expect(draw.hue(7)).toBe(draw.hue(1));
  });
});

describe('tables', () => {
  const rows = [
    { name: 'b', n: 2 },
    { name: 'a, "x"', n: null },
    { name: 'c', n: 10 },
  ];

  it('order numbers as numbers, with absent ones last either way', () => {
    expect(sorted(rows, { column: 'n', down: true }).map(({ n }) => n)).toEqual([10, 2, null]);
    expect(sorted(rows, { column: 'n', down: false }).map(({ n }) => n)).toEqual([2, 10, null]);
    expect(sorted(rows, null)).toEqual(rows);
  });

  it('are written as CSV with quotes where they must be', () => {
    const columns = [{ name: 'name', label: 'name' }, { name: 'n', label: 'time', unit: 's' }];
    expect(csv(columns, rows)).toBe('name,time (s)\r\nb,2\r\n"a, ""x""",\r\nc,10\r\n');
  });
});
