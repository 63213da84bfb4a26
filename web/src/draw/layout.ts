/**
 * Where the cells of the map lie. All lengths are device pixels and whole, so every cell is crisp.
 *
 * Zoom counts half octaves: 2^(zoom / 2) device pixels a token where zoom is even, 1.5 times the
 * octave below where it is odd. Where a token is less than a pixel, or not a whole number of them, a
 * cell stands for 2^level tokens and still is 1 to 3 pixels wide.
 */

export interface MapLayout {
  /** Tokens on each side. */
  tokens: number;
  zoom: number;
  /** A cell stands for 2^level x 2^level tokens. */
  level: number;
  /** Side of a cell. */
  cell: number;
  /** Device pixels a token. */
  scale: number;
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
  /** Half octaves; null: the largest at which all tokens fit. */
  zoom: number | null;
  /** CSS width of the longest name. */
  nameWidth: number;
}

export const LEAST_ZOOM = -12;
export const MOST_ZOOM = 12;
/** A name needs a line of this many CSS pixels. */
export const NAME_LINE = 12;
/** A fitted cell grows no larger than this, in CSS pixels. */
const FIT_CELL = 40;
const NAME_GAP = 14;
const PLAIN_MARGIN = { left: 92, top: 34 };
/** On a narrow page numbers have less room. */
const NARROW = { width: 420, left: 58 };
/** Room behind the last cell for the frame of its row or column. */
const EDGE = 2;

/** Device pixels a token at a zoom. */
export function scaleOf(zoom: number): number {
  return zoom % 2 === 0 ? 2 ** (zoom / 2) : 1.5 * 2 ** ((zoom - 1) / 2);
}

/** The finest level at which a cell is a whole number of pixels. */
export function levelOf(zoom: number): number {
  const scale = scaleOf(zoom);
  let level = 0;
  while (!Number.isInteger(scale * 2 ** level)) level++;
  return level;
}

/** The coarsest level of a text: all of it is one tile of 256 x 256 cells. */
export function coarsestLevel(tokens: number): number {
  let level = 0;
  while (Math.ceil(tokens / 2 ** level) > 256) level++;
  return level;
}

/**
 * The layout at the asked zoom, or the largest that fits, never smaller than fitted. Fitted cells may be
 * any whole number of pixels.
 */
export function layoutMap(space: Space): MapLayout {
  const fitted = fittedZoom(space);
  const zooms = zoomsOf(space.tokens);
  const wanted = space.zoom === null ? fitted : Math.max(fitted, Math.min(space.zoom, MOST_ZOOM));
  let layout = layoutAt(space, zooms.find((zoom) => zoom >= wanted) ?? MOST_ZOOM);
  while (space.zoom === null && layout.scale >= 2) {
    const larger = layoutAt(space, layout.zoom, layout.scale + 1);
    if (!fits(space, larger)) break;
    layout = larger;
  }
  return layout;
}

function fits(space: Space, layout: MapLayout): boolean {
  const { width, height } = contentSize(layout);
  return layout.scale <= FIT_CELL * space.ratio && width <= space.width && height <= space.height;
}

/** The zooms at which a text has whole cells. */
export function zoomsOf(tokens: number): number[] {
  const most = coarsestLevel(tokens);
  const all: number[] = [];
  for (let zoom = LEAST_ZOOM; zoom <= MOST_ZOOM; zoom++) if (levelOf(zoom) <= most) all.push(zoom);
  return all;
}

/** The largest zoom at which all tokens fit. */
export function fittedZoom(space: Space): number {
  const zooms = zoomsOf(space.tokens);
  return zooms.filter((zoom) => fits(space, layoutAt(space, zoom))).at(-1) ?? zooms[0] ?? 0;
}

function layoutAt(space: Space, zoom: number, scale = scaleOf(zoom)): MapLayout {
  const { tokens, ratio } = space;
  const level = levelOf(zoom);
  const named = scale >= NAME_LINE * ratio;
  const margin = space.nameWidth + NAME_GAP;
  const plain = space.width < NARROW.width ? { ...PLAIN_MARGIN, left: NARROW.left } : PLAIN_MARGIN;
  // The title of the axis of queries has room beside names of a letter, too.
  const { left, top } = named ? { left: Math.max(margin, NARROW.left), top: margin } : plain;
  return {
    tokens,
    zoom,
    level,
    cell: scale * 2 ** level,
    scale,
    left: Math.round(left * ratio),
    top: Math.round(top * ratio),
    named,
    ratio,
  };
}

/** Cells on each side. */
export function cellsOf(layout: MapLayout): number {
  return Math.ceil(layout.tokens / 2 ** layout.level);
}

/** Whole size, in CSS pixels. */
export function contentSize(layout: MapLayout): { width: number; height: number } {
  const side = cellsOf(layout) * layout.cell;
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

/** A query and a key; on a coarse map the first tokens of their cells. */
export interface Cell {
  query: number;
  key: number;
}

/** The tokens under a point of the window (CSS pixels from its corner), or null in the margins. */
export function cellAt(layout: MapLayout, scroll: Scroll, x: number, y: number): Cell | null {
  const deviceX = x * layout.ratio;
  const deviceY = y * layout.ratio;
  if (deviceX < layout.left || deviceY < layout.top) return null;
  const key = Math.floor((deviceX - layout.left + scroll.x) / layout.scale);
  const query = Math.floor((deviceY - layout.top + scroll.y) / layout.scale);
  return key < layout.tokens && query < layout.tokens ? { query, key } : null;
}

export interface Range {
  start: number;
  stop: number;
}

/** First and one-behind-last token that can be seen, along one side. */
export function visible(layout: MapLayout, margin: number, scroll: number, window: number): Range {
  const start = Math.max(0, Math.floor(scroll / layout.scale));
  const stop = Math.min(layout.tokens, Math.ceil((scroll + window - margin) / layout.scale));
  return { start, stop: Math.max(start, stop) };
}

/** Distance between numbered tokens on an axis whose names do not fit: 1, 2 or 5 times 10^n. */
export function tickStep(layout: MapLayout): number {
  const least = (46 * layout.ratio) / layout.scale;
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
  const start = token * layout.scale;
  const end = start + Math.max(1, layout.scale);
  const shown = window - margin;
  if (start < scroll) return Math.floor(start);
  return end > scroll + shown ? Math.ceil(end - shown) : scroll;
}

/** Scroll offset after a zoom at which a token stays under a point, `at` device pixels from the margin. */
export function held(layout: MapLayout, token: number, at: number): number {
  return Math.max(0, Math.round(token * layout.scale - at));
}
