/** The map's two canvases as vectors: cells stay an image, names, numbers and marks become SVG. */

import type { Cell, MapLayout, Scroll } from '../draw/layout';
import { drawAxes, drawCross, type Ink } from '../draw/map';
import { SvgContext } from './svgcontext';

/** Cells as they are on the canvas, with vector axes. */
export function cellsVector(
  canvas: HTMLCanvasElement,
  layout: MapLayout,
  scroll: Scroll,
  names: readonly string[],
  ink: Ink,
): string {
  const { left, top, scale, tokens } = layout;
  const side = (from: number, size: number, offset: number) =>
    Math.max(1, Math.min(size - from, Math.ceil(tokens * scale) - offset));
  const [width, height] = [side(left, canvas.width, scroll.x), side(top, canvas.height, scroll.y)];
  const cut = document.createElement('canvas');
  [cut.width, cut.height] = [width, height];
  cut.getContext('2d')?.drawImage(canvas, left, top, width, height, 0, 0, width, height);
  const image = `<image x="${left}" y="${top}" width="${width}" height="${height}" image-rendering="pixelated" href="${cut.toDataURL()}"/>`;
  const context = new SvgContext(canvas);
  drawAxes(context as unknown as CanvasRenderingContext2D, layout, scroll, names, ink);
  return image + context.markup;
}

/** The bands of the row and the column that are looked at. */
export function marksVector(
  canvas: HTMLCanvasElement,
  layout: MapLayout,
  scroll: Scroll,
  cross: Partial<Cell>,
  names: readonly string[],
  ink: Ink,
): string {
  const context = new SvgContext(canvas);
  drawCross(context as unknown as CanvasRenderingContext2D, layout, scroll, cross, names, ink, true);
  return context.markup;
}
