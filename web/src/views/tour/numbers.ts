/** Numbers of the tour: means, points of lines, and how they are written in a sentence. */

import type { Point } from '../../draw/chart';
import type { Numbers, Rows } from './answers';

export function mean(values: Numbers): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Of every row. */
export function means(rows: Rows): number[] {
  return rows.map(mean);
}

/** Of every column. */
export function columnMeans(rows: Rows): number[] {
  const first = rows[0] ?? [];
  return first.map((_, column) => mean(rows.map((row) => row[column] ?? 0)));
}

/** Values over 0, 1, 2 and so on. */
export function points(values: Numbers): Point[] {
  return values.map((y, x) => ({ x, y }));
}

/** The same with a gap at one place, where nothing was measured or the value is not of the kind. */
export function pointsBut(values: Numbers, gap: number): Point[] {
  return values.map((y, x) => ({ x, y: x === gap ? null : y }));
}

/** The same for a logarithmic axis, on which zero has no place: a gap. */
export function logPoints(values: Numbers): Point[] {
  return values.map((y, x) => ({ x, y: y > 0 ? y : null }));
}

/** Values over places of their own. */
export function pointsAt(places: Numbers, values: Numbers): Point[] {
  return values.map((y, index) => ({ x: places[index] ?? index, y }));
}

/** A number in a sentence: three digits; very small ones as powers of ten. */
export function said(value: number): string {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1000) return minus(Math.round(value).toLocaleString('en'));
  if (size >= 0.001) return minus(String(Number(value.toPrecision(3))));
  const power = Math.floor(Math.log10(size));
  return minus(`${(value / 10 ** power).toFixed(1)}·10${superscript(power)}`);
}

/** A number in a column: as many decimals as its neighbors have. */
export function fixed(value: number, digits = 2): string {
  const written = value.toFixed(digits);
  // A negative number that rounds to zero is zero.
  return minus(Number(written) === 0 ? written.replace('-', '') : written);
}

function minus(written: string): string {
  return written.replace('-', '−');
}

export function percent(share: number): string {
  return `${Number((100 * share).toPrecision(share < 0.1 ? 2 : 3))} %`;
}

/** A share in a column: one decimal, like its neighbors. */
export function tenths(share: number): string {
  return `${fixed(100 * share, 1)} %`;
}

/** Bytes in the unit that leaves few digits. */
export function bytes(count: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  const step = count < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(count) / 3));
  return `${Number((count / 1000 ** step).toPrecision(3))} ${units[step]}`;
}

function superscript(power: number): string {
  return [...String(power)].map((digit) => (digit === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(digit)])).join('');
}
