/** Where the cells of the map lie. All lengths are device pixels, so every cell is crisp. */

export interface MapLayout {
  /** Tokens on each side. */
  tokens: number;
  /** Side of a cell. */
  cell: number;
  /** Width of the margin with the queries' names, and height of the one with the keys'. */
  left: number;
  top: number;
  /** Whether every token's name fits beside its cell. */
  named: boolean;
  /** Device pixels in a CSS pixel. */
  ratio: number;
}

export interface Space {
  tokens: number;
  /** CSS pixels that the whole map may take before it scrolls. */
  width: number;
  height: number;
  ratio: number;
  /** Each step doubles the cell that fits. */
  zoom: number;
  /** CSS width of the longest name. */
  nameWidth: number;
}

const MAX_CELL = 40;
/** A name needs a line of this many CSS pixels. */
export const NAME_LINE = 12;
const NAME_GAP = 14;
const PLAIN_MARGIN = { left: 92, top: 30 };
/** Room behind the last cell for the frame of its row or column. */
const EDGE = 2;

/** The largest whole cell that fits, doubled `zoom` times. */
export function layoutMap(space: Space): MapLayout {
  const { tokens, ratio } = space;
  const fit = (left: number, top: number) =>
    Math.floor((Math.min(space.width - left, space.height - top) - EDGE) * ratio / tokens);
  const zoomed = (cell: number) =>
    Math.min(Math.max(1, cell) * 2 ** space.zoom, Math.round(MAX_CELL * ratio));
  const margin = space.nameWidth + NAME_GAP;
  const cell = zoomed(fit(margin, margin));
  if (cell >= NAME_LINE * ratio) {
    const side = Math.round(margin * ratio);
    return { tokens, cell, left: side, top: side, named: true, ratio };
  }
  const { left, top } = PLAIN_MARGIN;
  return {
    tokens,
    // A cell that just fails to be named must not become larger than a named one.
    cell: Math.min(zoomed(fit(left, top)), Math.ceil(NAME_LINE * ratio) - 1),
    left: Math.round(left * ratio),
    top: Math.round(top * ratio),
    named: false,
    ratio,
  };
}

/** Most useful zoom steps: none once a cell is as large as it may be. */
export function canZoomIn(layout: MapLayout): boolean {
  return layout.cell < Math.round(MAX_CELL * layout.ratio) && layout.cell < NAME_LINE * 2 * layout.ratio;
}

/** Whole size, in CSS pixels. */
export function contentSize(layout: MapLayout): { width: number; height: number } {
  const side = layout.tokens * layout.cell;
  return {
    width: (layout.left + side) / layout.ratio + EDGE,
    height: (layout.top + side) / layout.ratio + EDGE,
  };
}

/** How far the map is scrolled, in device pixels. */
export interface Scroll {
  x: number;
  y: number;
}

export interface Cell {
  query: number;
  key: number;
}

/** The cell under a point of the window (CSS pixels from its corner), or null in the margins. */
export function cellAt(layout: MapLayout, scroll: Scroll, x: number, y: number): Cell | null {
  const deviceX = x * layout.ratio;
  const deviceY = y * layout.ratio;
  if (deviceX < layout.left || deviceY < layout.top) return null;
  const key = Math.floor((deviceX - layout.left + scroll.x) / layout.cell);
  const query = Math.floor((deviceY - layout.top + scroll.y) / layout.cell);
  return key < layout.tokens && query < layout.tokens ? { query, key } : null;
}

/** First and one-behind-last token that can be seen, along one side. */
export function visible(
  layout: MapLayout,
  margin: number,
  scroll: number,
  window: number,
): { start: number; stop: number } {
  const start = Math.max(0, Math.floor(scroll / layout.cell));
  const stop = Math.min(layout.tokens, Math.ceil((scroll + window - margin) / layout.cell));
  return { start, stop: Math.max(start, stop) };
}

/** Distance between numbered tokens on an axis whose names do not fit: 1, 2 or 5 times 10^n. */
export function tickStep(layout: MapLayout): number {
  const least = (34 * layout.ratio) / layout.cell;
  for (let power = 1; ; power *= 10) {
    for (const step of [power, 2 * power, 5 * power]) if (step >= least) return step;
  }
}

/** Scroll offset that brings a token into the window with as little movement as can be. */
export function reveal(
  layout: MapLayout,
  margin: number,
  scroll: number,
  window: number,
  token: number,
): number {
  const start = token * layout.cell;
  const end = start + layout.cell;
  const shown = window - margin;
  if (start < scroll) return start;
  return end > scroll + shown ? end - shown : scroll;
}
