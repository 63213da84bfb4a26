/** A cloud as vectors: a circle for each point, in the pixels of its canvas. */

import { fogged } from '../draw/cloud';
import { floorLines, groupColor, groupMeans, namesOf, pathOf, type Place, rgbOf, type Scene } from '../draw/cloudscene';
import { escaped } from './escape';

const MOST_SHINING = 2000;
const SHINE =
  '<radialGradient id="shine" cx="0.34" cy="0.3" r="0.75"><stop offset="0" stop-color="#fff" stop-opacity="0.55"/>' +
  '<stop offset="0.45" stop-color="#fff" stop-opacity="0"/><stop offset="0.7" stop-color="#000" stop-opacity="0"/>' +
  '<stop offset="1" stop-color="#000" stop-opacity="0.3"/></radialGradient>';

export function cloudVector(scene: Scene): string {
  const { shot, placed, rgb, style, groups, lit, chosen } = scene;
  const { width, height, ratio } = shot;
  const parts = [`<svg width="${width}" height="${height}" overflow="hidden"><rect width="${width}" height="${height}" fill="${style.paper}"/>`];
  const line = (places: readonly Place[], color: string, wide: number, more = '') =>
    parts.push(`<polyline points="${places.map(([x, y]) => `${short(x)},${short(y)}`).join(' ')}" fill="none" stroke="${color}" stroke-width="${short(wide)}" ${more}/>`);
  const circle = (x: number, y: number, radius: number, look: string) =>
    parts.push(`<circle cx="${short(x)}" cy="${short(y)}" r="${short(radius)}" ${look}/>`);
  // A light on each ball, unless there are too many to open the file.
  const shining = placed.order.length <= MOST_SHINING;
  if (shining) parts.push(SHINE);
  for (const one of floorLines(scene)) line(one, style.line, ratio);
  const paper = rgbOf(style.paper);
  for (const at of placed.order) {
    const [x, y, radius] = [placed.x[at] as number, placed.y[at] as number, placed.radius[at] as number];
    if (x < -radius || y < -radius || x > width + radius || y > height + radius) continue;
    const color = fogged(rgb, at, placed.depth[at] as number, paper);
    const hex = (shade: number) => `#${color.map((one) => Math.round(one * shade).toString(16).padStart(2, '0')).join('')}`;
    circle(x, y, radius, `fill="${hex(1)}" stroke="${hex(0.8)}" stroke-width="${short(0.12 * radius)}"`);
    if (shining) circle(x, y, radius, 'fill="url(#shine)"');
  }
  if (groups) {
    const means = groupMeans(scene);
    line(means, style.text, 1.5 * ratio, `stroke-dasharray="${5 * ratio} ${4 * ratio}"`);
    means.forEach(([x, y], group) => circle(x, y, 11 * ratio, `fill="none" stroke="${groupColor(groups, group)}" stroke-width="${3 * ratio}"`));
  }
  for (const at of new Set([...lit, ...(chosen === null ? [] : [chosen])])) {
    if (shot.hidden[at]) continue;
    const path = pathOf(scene, at);
    line(path, style.query, 1.6 * ratio, 'opacity="0.75"');
    for (const [x, y] of path) circle(x, y, 2.4 * ratio, `fill="${style.query}"`);
    circle(placed.x[at] as number, placed.y[at] as number, (placed.radius[at] as number) + 3.5 * ratio, `fill="none" stroke="${style.query}" stroke-width="${2.2 * ratio}"`);
  }
  const family = escaped(style.family);
  const pen = document.createElement('canvas').getContext('2d') as CanvasRenderingContext2D;
  pen.font = `${12.5 * ratio}px ${style.family}`;
  for (const { x, y, text, strong, depth } of namesOf(scene, (words) => pen.measureText(words).width)) {
    const size = (strong ? 14 : 12.5) * ratio;
    parts.push(
      `<text x="${short(x)}" y="${short(y + 0.35 * size)}" font-family="${family}" font-size="${size}" font-weight="${strong ? 600 : 400}" fill="${style.text}" ` +
        `stroke="${style.paper}" stroke-width="${3.2 * ratio}" paint-order="stroke" stroke-linejoin="round" opacity="${short(strong ? 1 : Math.min(1, 0.35 + 0.9 * depth))}">${escaped(text)}</text>`,
    );
  }
  return `${parts.join('')}</svg>`;
}

function short(value: number): string {
  return String(Math.round(100 * value) / 100);
}
