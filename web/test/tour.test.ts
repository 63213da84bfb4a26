/** Numbers of the tour as they stand in sentences, and the points of its lines. */

import { describe, expect, it } from 'vitest';
import { bytes, columnMeans, logPoints, means, percent, points, pointsAt, said } from '../src/views/tour/numbers';

describe('numbers in sentences', () => {
  it('has three digits, and powers of ten where a number is very small', () => {
    expect([0, 1, 0.12345, 12.345, -3.14159, 123456].map(said)).toEqual(['0', '1', '0.123', '12.3', '−3.14', '123,456']);
    expect(said(4.87e-8)).toBe('4.9·10⁻⁸');
    expect(said(-1.2e-14)).toBe('−1.2·10⁻¹⁴');
  });

  it('writes shares and bytes', () => {
    expect([0, 0.0481, 0.5, 0.9994, 1].map(percent)).toEqual(['0 %', '4.8 %', '50 %', '99.9 %', '100 %']);
    expect([0, 320, 4.29e9].map(bytes)).toEqual(['0 B', '320 B', '4.29 GB']);
  });
});

describe('lines', () => {
  it('takes means by row and by column', () => {
    expect(means([[1, 3], [5, 7]])).toEqual([2, 6]);
    expect(columnMeans([[1, 3], [5, 7]])).toEqual([3, 5]);
    expect(means([])).toEqual([]);
  });

  it('leaves a gap where a logarithm has no place', () => {
    expect(points([0, 2])).toEqual([{ x: 0, y: 0 }, { x: 1, y: 2 }]);
    expect(logPoints([0, 2])).toEqual([{ x: 0, y: null }, { x: 1, y: 2 }]);
    expect(pointsAt([8, 16], [1, 2])).toEqual([{ x: 8, y: 1 }, { x: 16, y: 2 }]);
  });
});
