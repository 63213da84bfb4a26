/** Painting the axes of a map and the marks of the query and key in focus. */

import { type Cell, type MapLayout, type Scroll, tickStep, visible } from './layout';

/** The page's colors that a canvas needs. */
export interface Ink {
  paper: string;
  text: string;
  muted: string;
  query: string;
  key: string;
  font: string;
}

/** The ink of the page's present tone. */
export function inkOf(ratio: number, family: string): Ink {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  return {
    paper: of('--card'),
    text: of('--text'),
    muted: of('--muted'),
    query: of('--query'),
    key: of('--key'),
    font: `${Math.round(12 * ratio)}px ${family}`,
  };
}

/** The context of a canvas of a size in device pixels, with nothing on it; null where it has no size. */
export function cleared(
  canvas: HTMLCanvasElement | undefined,
  width: number,
  height: number,
): CanvasRenderingContext2D | null {
  if (!canvas || width <= 0 || height <= 0) return null;
  const [wide, high] = [Math.round(width), Math.round(height)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext('2d');
  context?.clearRect(0, 0, wide, high);
  return context;
}

/** Draws the names of both axes and of the tokens, or token numbers at even steps where names do not fit. */
export function drawAxes(
  context: CanvasRenderingContext2D,
  layout: MapLayout,
  scroll: Scroll,
  names: readonly string[],
  ink: Ink,
): void {
  const { width, height } = context.canvas;
  const { scale, left, top, ratio } = layout;
  const step = layout.named ? 1 : tickStep(layout);
  const gap = Math.round(5 * ratio);
  const name = (token: number) => (layout.named ? (names[token] ?? '') : String(token));
  context.font = ink.font;
  context.fillStyle = layout.named ? ink.text : ink.muted;
  context.textBaseline = 'middle';

  const rows = visible(layout, top, scroll.y, height);
  context.save();
  clipTo(context, 0, top, left, height - top);
  context.textAlign = 'right';
  for (let token = ceilTo(rows.start, step); token < rows.stop; token += step) {
    // A number at the very edge moves inside, where all of it can be seen.
    const y = Math.max(top + 5 * ratio, top + (token + 0.5) * scale - scroll.y);
    context.fillText(name(token), left - gap, y);
  }
  context.restore();

  const columns = visible(layout, left, scroll.x, width);
  context.save();
  clipTo(context, left, 0, width - left, top);
  for (let token = ceilTo(columns.start, step); token < columns.stop; token += step) {
    const x = left + (token + 0.5) * scale - scroll.x;
    context.save();
    context.translate(x, top - gap);
    if (layout.named) {
      context.rotate(-Math.PI / 2);
      context.textAlign = 'left';
    } else {
      context.textAlign = 'center';
      const half = context.measureText(name(token)).width / 2;
      context.translate(Math.max(left + half - x, Math.min(0, width - half - x)), -gap);
    }
    context.fillText(name(token), 0, 0);
    context.restore();
  }
  context.restore();
  context.fillStyle = ink.muted;
  context.textAlign = 'right';
  context.fillText('key →', left - gap, top - Math.round(24 * ratio));
  context.fillText('query ↓', left - gap, top - Math.round(9 * ratio));
}

/** Draws the bands of a row and a column, either of which may be absent, and their names. */
export function drawCross(
  context: CanvasRenderingContext2D,
  layout: MapLayout,
  scroll: Scroll,
  cross: Partial<Cell>,
  names: readonly string[],
  ink: Ink,
  strong: boolean,
): void {
  const { width, height } = context.canvas;
  const { left, top, ratio, scale } = layout;
  // On a coarse map the band is as wide as the cell that holds the token.
  const step = 2 ** layout.level;
  const cell = layout.cell;
  const start = (token: number) => Math.floor(token / step) * cell;
  const whole = layout.tokens * scale;
  const line = Math.max(1, Math.round((strong ? 1.5 : 1) * ratio));
  context.font = ink.font;
  context.textBaseline = 'middle';
  context.lineWidth = line;
  const { query, key } = cross;
  if (query !== undefined) {
    const y = top + start(query) - scroll.y;
    context.save();
    clipTo(context, 0, top - line, width, height - top + line);
    outline(context, left, y, Math.min(width - left, whole - scroll.x), cell, line, ink.query);
    const tag = layout.named ? '' : `${query} `;
    // A row at the edge keeps its whole name in sight.
    const middle = y + cell > top ? Math.max(y + cell / 2, top + 8 * ratio) : y + cell / 2;
    chip(context, tag + names[query], left - 3 * ratio, middle, 'right', ink.query, ink.paper, ratio, left);
    context.restore();
  }
  if (key !== undefined) {
    const x = left + start(key) - scroll.x;
    context.save();
    clipTo(context, left - line, 0, width - left + line, height);
    outline(context, x, top, cell, Math.min(height - top, whole - scroll.y), line, ink.key);
    context.translate(x + cell / 2, top - 3 * ratio);
    if (layout.named) {
      context.rotate(-Math.PI / 2);
      chip(context, names[key] ?? '', 0, 0, 'left', ink.key, ink.paper, ratio, top);
    } else {
      const tag = `${key} ${names[key]}`;
      const half = context.measureText(tag).width / 2 + 6 * ratio;
      // The whole name stays in sight at both ends of the axis.
      const x0 = x + cell / 2;
      const shift = Math.max(left + half - x0, Math.min(0, width - half - x0));
      chip(context, tag, shift, -9 * ratio, 'center', ink.key, ink.paper, ratio, width - left);
    }
    context.restore();
  }
}

/** A frame just outside the band, so that no cell of it is covered. */
function outline(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  width: number,
  height: number,
  line: number,
  color: string,
): void {
  context.strokeStyle = color;
  context.strokeRect(x - line / 2, y - line / 2, width + line, height + line);
}

function chip(
  context: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  align: 'left' | 'right' | 'center',
  color: string,
  paper: string,
  ratio: number,
  room: number,
): void {
  const padding = 3 * ratio;
  const shown = shorten(context, text, room - 4 * padding);
  const width = context.measureText(shown).width + 2 * padding;
  const start = align === 'left' ? x : align === 'right' ? x - width : x - width / 2;
  const high = 16 * ratio;
  context.fillStyle = color;
  context.beginPath();
  context.roundRect(start, y - high / 2, width, high, 3 * ratio);
  context.fill();
  context.fillStyle = paper;
  context.textAlign = 'left';
  context.fillText(shown, start + padding, y);
}

/** The text, cut with an ellipsis to a width. */
export function shorten(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  const characters = [...text];
  while (characters.length > 1 && context.measureText(`${characters.join('')}…`).width > room) {
    characters.pop();
  }
  return `${characters.join('')}…`;
}

function clipTo(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  width: number,
  height: number,
): void {
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
}

function ceilTo(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}
