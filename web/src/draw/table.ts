/** Tables: their order and their text as CSV. */

export type Value = string | number | null;

export interface Column {
  name: string;
  label: string;
  unit?: string | undefined;
  /** How a number is written in a cell; the CSV always has all its digits. */
  words?: ((value: number) => string) | undefined;
  /** Length of a bar behind a number, 0 to 1. */
  bar?: ((value: number) => number) | undefined;
}

export type Row = Readonly<Record<string, Value>>;

export interface Order {
  column: string;
  down: boolean;
}

/** Rows in the asked order, numbers in names by their size; equal ones keep theirs, absent values come last. */
export function sorted<R extends Row>(rows: readonly R[], order: Order | null): R[] {
  if (!order) return [...rows];
  const turn = order.down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const a = one[order.column] ?? null;
    const b = other[order.column] ?? null;
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    if (typeof a === 'number' && typeof b === 'number') return turn * (a - b);
    return turn * String(a).localeCompare(String(b), 'en', { numeric: true });
  });
}

/** The table as CSV (RFC 4180). */
export function csv(columns: readonly Column[], rows: readonly Row[]): string {
  const cell = (value: Value | undefined) => {
    const written = value === null || value === undefined ? '' : String(value);
    return /[",\r\n]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
  };
  const head = columns.map(({ label, unit }) => cell(unit ? `${label} (${unit})` : label)).join(',');
  const body = rows.map((row) => columns.map(({ name }) => cell(row[name])).join(','));
  return `${[head, ...body].join('\r\n')}\r\n`;
}
