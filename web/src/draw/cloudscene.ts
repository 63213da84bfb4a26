/** One picture of a cloud: floor, balls, paths, means of groups and names, on a canvas. */

import { type Label, labelled, lensOf, paint, type Placed, type Shot } from './cloud';
import type { Tone } from './color';

export interface Scene {
  shot: Shot;
  placed: Placed;
  rgb: Uint8Array;
  tone: Tone;
  names: readonly string[];
  ranked: Uint32Array;
  lit: readonly number[];
  chosen: number | null;
  groups: { of: readonly number[]; rgb: Uint8Array; names: readonly string[] } | null;
  style: { paper: string; line: string; text: string; muted: string; query: string; family: string };
  /** Nothing moves: there is time for all names. */
  calm: boolean;
}

export type Place = readonly [number, number];

const RINGS = [1, 2, 3];
const FLOOR = -1.75;
const MOST_NAMES = 46;
const MOVING_NAMES = 26;

/** Rings and spokes below the cloud: they say which way is up, and how large the level is. */
export function floorLines({ shot }: Scene): Place[][] {
  const lens = lensOf(shot);
  const at = (angle: number, far: number): Place => {
    const [x, y] = lens(far * Math.cos(angle), FLOOR, far * Math.sin(angle));
    return [x, y];
  };
  const rings = RINGS.map((far) => Array.from({ length: 73 }, (_, turn) => at((turn * Math.PI) / 36, far)));
  const spokes = Array.from({ length: 8 }, (_, turn) => [at((turn * Math.PI) / 4, 0.12), at((turn * Math.PI) / 4, RINGS.at(-1) ?? 1)]);
  return [...rings, ...spokes];
}

/** Where a point is at every level, as far as it is drawn as a path. */
export function pathOf({ shot }: Scene, point: number): Place[] {
  const lens = lensOf(shot);
  const count = shot.hidden.length;
  return Array.from(shot.units, (unit, level) => {
    const p = 3 * (level * count + point);
    const [x, y] = lens(unit * (shot.points[p] as number), unit * (shot.points[p + 1] as number), unit * (shot.points[p + 2] as number));
    return [x, y] as const;
  });
}

/** The mean of each group at the level shown. */
export function groupMeans({ shot, groups }: Scene): Place[] {
  if (!groups) return [];
  const low = Math.floor(shot.level);
  const mix = shot.level - low;
  const lens = lensOf(shot);
  return groups.names.map((_, group) => {
    const sum = [0, 0, 0];
    let members = 0;
    groups.of.forEach((one, point) => {
      if (one !== group || shot.hidden[point]) return;
      members++;
      for (let axis = 0; axis < 3; axis++) {
        const value = (level: number) => (shot.units[level] ?? 0) * (shot.points[3 * (level * groups.of.length + point) + axis] ?? 0);
        sum[axis] = (sum[axis] as number) + (1 - mix) * value(low) + (mix > 0 ? mix * value(low + 1) : 0);
      }
    });
    const [x, y] = lens(...(sum.map((one) => one / Math.max(1, members)) as [number, number, number]));
    return [x, y] as const;
  });
}

/** The names that are written, those of what is looked at first. */
export function namesOf(scene: Scene, measure: (text: string) => number): Label[] {
  const { shot, placed, names, ranked, lit, chosen } = scene;
  const strong = [...new Set([...lit, ...(chosen === null ? [] : [chosen])])];
  const most = Math.round((scene.calm ? MOST_NAMES : MOVING_NAMES) * Math.min(1, shot.width / shot.ratio / 900));
  return labelled(placed, names, shot.hidden, ranked, strong, measure, { width: shot.width, height: shot.height, ratio: shot.ratio, most });
}

export function fontOf({ style, shot }: Scene, strong: boolean): string {
  return `${strong ? '600 ' : ''}${(strong ? 14 : 12.5) * shot.ratio}px ${style.family}`;
}

export function groupColor(groups: NonNullable<Scene['groups']>, group: number): string {
  return `rgb(${groups.rgb.subarray(3 * group, 3 * group + 3).join(' ')})`;
}

/** Draws the picture on a canvas, which it sizes. */
export function inkedScene(canvas: HTMLCanvasElement, scene: Scene): void {
  const { shot, placed, rgb, tone, style, groups, lit, chosen } = scene;
  const { width, height, ratio } = shot;
  if (width < 2 || height < 2) return;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  // Pixels are read back for every picture, so they must not live in the memory of a graphics card.
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  if (!pen) return;
  pen.globalAlpha = 1;
  pen.fillStyle = style.paper;
  pen.fillRect(0, 0, width, height);
  pen.strokeStyle = style.line;
  pen.lineWidth = ratio;
  pen.beginPath();
  for (const line of floorLines(scene)) trace(pen, line);
  pen.stroke();
  const image = pen.getImageData(0, 0, width, height);
  paint(image.data, shot, placed, rgb, rgbOf(style.paper), tone);
  pen.putImageData(image, 0, 0);

  pen.lineJoin = 'round';
  if (groups) {
    const means = groupMeans(scene);
    pen.strokeStyle = style.text;
    pen.lineWidth = 1.5 * ratio;
    pen.setLineDash([5 * ratio, 4 * ratio]);
    pen.beginPath();
    trace(pen, means);
    pen.stroke();
    pen.setLineDash([]);
    means.forEach(([x, y], group) => {
      ring(pen, x, y, 11 * ratio, style.paper, 5 * ratio);
      ring(pen, x, y, 11 * ratio, groupColor(groups, group), 3 * ratio);
    });
  }
  for (const at of new Set([...lit, ...(chosen === null ? [] : [chosen])])) {
    if (shot.hidden[at]) continue;
    const path = pathOf(scene, at);
    pen.strokeStyle = style.query;
    pen.lineWidth = 1.6 * ratio;
    pen.globalAlpha = 0.75;
    pen.beginPath();
    trace(pen, path);
    pen.stroke();
    pen.fillStyle = style.query;
    for (const [x, y] of path) {
      pen.beginPath();
      pen.arc(x, y, 2.4 * ratio, 0, 2 * Math.PI);
      pen.fill();
    }
    pen.globalAlpha = 1;
    ring(pen, placed.x[at] as number, placed.y[at] as number, (placed.radius[at] as number) + 3.5 * ratio, style.query, 2.2 * ratio);
  }
  pen.textBaseline = 'middle';
  pen.font = fontOf(scene, false);
  pen.strokeStyle = style.paper;
  pen.lineWidth = 3.2 * ratio;
  for (const { x, y, text, strong, depth } of namesOf(scene, (text) => pen.measureText(text).width)) {
    pen.font = fontOf(scene, strong);
    pen.globalAlpha = strong ? 1 : Math.min(1, 0.35 + 0.9 * depth);
    pen.strokeText(text, x, y);
    pen.fillStyle = style.text;
    pen.fillText(text, x, y);
  }
  pen.globalAlpha = 1;
}

function trace(pen: CanvasRenderingContext2D, line: readonly Place[]): void {
  line.forEach(([x, y], at) => (at === 0 ? pen.moveTo(x, y) : pen.lineTo(x, y)));
}

function ring(pen: CanvasRenderingContext2D, x: number, y: number, radius: number, color: string, wide: number): void {
  pen.strokeStyle = color;
  pen.lineWidth = wide;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.stroke();
}

/** "#1a1d25" as bytes, and "#fff", as a style sheet that was made small has it. */
export function rgbOf(hex: string): [number, number, number] {
  const digits = hex.replace('#', '');
  const value = Number.parseInt(digits.length === 3 ? digits.replace(/./g, '$&$&') : digits, 16) || 0;
  return [value >> 16, (value >> 8) & 255, value & 255];
}
