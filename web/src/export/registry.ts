/** What on the page can be saved as something better than its pixels: canvases as vectors, tables as CSV. */

import { tick } from 'svelte';
import type { Column, Row } from '../draw/table';

/** Gives SVG in the canvas's own CSS pixels. */
type Vector = () => string;

const vectors = new WeakMap<HTMLCanvasElement, Vector>();

/** From now on this canvas is saved as these vectors. */
export function drawnAs(canvas: HTMLCanvasElement, vector: Vector): void {
  vectors.set(canvas, vector);
}

export function vectorOf(canvas: HTMLCanvasElement): string | null {
  return vectors.get(canvas)?.() ?? null;
}

export interface Twin {
  caption: string;
  columns: readonly Column[];
  rows: readonly Row[];
}

type Table = () => Twin | Promise<Twin>;

const tables = new Set<Table>();
const figures = new Set<(asTable: boolean) => boolean>();

/** A table that is on the page; the answer takes it away. */
export function addTable(table: Table): () => void {
  tables.add(table);
  return () => tables.delete(table);
}

/** A figure that may show its table; it is told to, and answers whether it did before. */
export function addFigure(turn: (asTable: boolean) => boolean): () => void {
  figures.add(turn);
  return () => figures.delete(turn);
}

/** All tables of the open view, those that stand behind a picture too. */
export async function allTables(): Promise<Twin[]> {
  const before = [...figures].map((turn) => [turn, turn(true)] as const);
  await tick();
  const found = (await Promise.all([...tables].map(async (table) => ({ ...(await table()) })))).filter(({ rows }) => rows.length > 0);
  for (const [turn, asTable] of before) turn(asTable);
  return found;
}
