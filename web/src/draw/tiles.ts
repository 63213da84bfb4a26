/** The tiles of a map: which are in sight, and how they are painted. */

import { cellsOf, coarsestLevel, type MapLayout, type Scroll } from './layout';

/** Cells along a side of a tile. */
export const TILE = 256;

/** A tile's place: level, row and column of tiles. */
export interface Place {
  level: number;
  y: number;
  x: number;
}

/** The whole map as one tile, at the finest level that has it: for the inset, and as a stand-in until finer tiles are here. */
export function coarsest(count: number): Place {
  return { level: coarsestLevel(count), y: 0, x: 0 };
}

/** A tile that is here: one code a cell. */
export interface Tile extends Place {
  rows: number;
  columns: number;
  codes: Uint8Array;
}

export function nameOf({ level, y, x }: Place): string {
  return `${level}/${y}/${x}`;
}

/** The tiles in a window of `width` x `height` device pixels, those nearest to its middle first. */
export function placesIn(layout: MapLayout, scroll: Scroll, width: number, height: number): Place[] {
  const most = Math.ceil(cellsOf(layout) / TILE) - 1;
  const side = TILE * layout.cell;
  const first = (offset: number) => Math.min(most, Math.max(0, Math.floor(offset / side)));
  const last = (offset: number, shown: number) =>
    Math.min(most, Math.max(0, Math.ceil((offset + shown) / side) - 1));
  const [wide, high] = [width - layout.left, height - layout.top];
  const places: Place[] = [];
  for (let y = first(scroll.y); y <= last(scroll.y, high); y++) {
    for (let x = first(scroll.x); x <= last(scroll.x, wide); x++) places.push({ level: layout.level, y, x });
  }
  const off = ({ y, x }: Place) =>
    Math.hypot((y + 0.5) * side - scroll.y - high / 2, (x + 0.5) * side - scroll.x - wide / 2);
  return places.sort((one, other) => off(one) - off(other));
}

/** Paints tiles in the colors of a table, each once. */
export function tilePainter(table: Uint32Array): (tile: Tile) => HTMLCanvasElement {
  const images = new WeakMap<Tile, HTMLCanvasElement>();
  return (tile) => {
    const image = images.get(tile) ?? paintTile(tile, table);
    images.set(tile, image);
    return image;
  };
}

/** A tile as an image, one pixel a cell. */
export function paintTile(tile: Tile, table: Uint32Array): HTMLCanvasElement {
  const image = new ImageData(tile.columns, tile.rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < pixels.length; at++) pixels[at] = table[tile.codes[at] as number] as number;
  const canvas = document.createElement('canvas');
  canvas.width = tile.columns;
  canvas.height = tile.rows;
  canvas.getContext('2d')?.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Draws tiles of any level; coarse ones first, so that finer ones lie over them. `paint` gives a
 * tile's image.
 */
export function drawTiles(
  context: CanvasRenderingContext2D,
  layout: MapLayout,
  scroll: Scroll,
  tiles: readonly Tile[],
  paint: (tile: Tile) => HTMLCanvasElement,
): void {
  const { width, height } = context.canvas;
  context.save();
  context.beginPath();
  context.rect(layout.left, layout.top, width - layout.left, height - layout.top);
  context.clip();
  context.imageSmoothingEnabled = false;
  for (const tile of [...tiles].sort((one, other) => other.level - one.level)) {
    const cell = layout.scale * 2 ** tile.level;
    const x = layout.left + tile.x * TILE * cell - scroll.x;
    const y = layout.top + tile.y * TILE * cell - scroll.y;
    context.drawImage(paint(tile), x, y, tile.columns * cell, tile.rows * cell);
  }
  context.restore();
}

/** The code of the cell that holds a query and a key, if its tile is here. */
export function codeAt(
  tiles: ReadonlyMap<string, Tile>,
  level: number,
  query: number,
  key: number,
): number | undefined {
  const [row, column] = [Math.floor(query / 2 ** level), Math.floor(key / 2 ** level)];
  const tile = tiles.get(nameOf({ level, y: Math.floor(row / TILE), x: Math.floor(column / TILE) }));
  return tile?.codes[(row % TILE) * tile.columns + (column % TILE)];
}
