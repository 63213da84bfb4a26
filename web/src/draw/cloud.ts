/** A cloud of points in space: turned, projected, sorted by depth and painted as balls. No page is touched here. */

import type { Tone } from './color';

export interface Camera {
  /** Degrees around the upright axis, and up. */
  yaw: number;
  pitch: number;
  zoom: number;
}

export const HOME: Camera = { yaw: 28, pitch: 16, zoom: 1 };
export const ZOOM_RANGE = [0.4, 6] as const;
/** Distance of the eye from the middle, where 1 is the cloud's root-mean-square radius. */
const EYE = 7;
/** Share of the smaller side of the picture that one unit takes. */
const UNIT = 0.275;

/** The camera written in an address, "28,16,1"; null for anything else. */
export function cameraOf(written: string): Camera | null {
  const [yaw = NaN, pitch = NaN, zoom = NaN, ...more] = written.split(',').map((part) => (part === '' ? NaN : Number(part)));
  return Number.isFinite(yaw + pitch + zoom) && more.length === 0 ? steady({ yaw, pitch, zoom }) : null;
}

export function cameraWords({ yaw, pitch, zoom }: Camera): string {
  return `${Math.round(yaw)},${Math.round(pitch)},${Number(zoom.toFixed(2))}`;
}

/** The camera within its limits: it goes round, and does not turn upside down. */
export function steady({ yaw, pitch, zoom }: Camera): Camera {
  return {
    yaw: ((((yaw + 180) % 360) + 360) % 360) - 180,
    pitch: Math.min(90, Math.max(-90, pitch)),
    zoom: Math.min(ZOOM_RANGE[1], Math.max(ZOOM_RANGE[0], zoom)),
  };
}

/** Where points lie in a picture, in its pixels. Depth runs from the far end, 0, to the near one, 1. */
export interface Placed {
  x: Float32Array;
  y: Float32Array;
  depth: Float32Array;
  radius: Float32Array;
  /** Points that are shown, the farthest first. */
  order: Uint32Array;
}

/** One over the root-mean-square distance from the middle at each level, of points that are not left out. */
export function unitsOf(points: Float32Array, levels: number, hidden: Uint8Array, common: boolean): Float32Array {
  const count = hidden.length;
  const squares = new Float64Array(levels);
  let shown = 0;
  for (let at = 0; at < count; at++) shown += hidden[at] ? 0 : 1;
  for (let level = 0; level < levels; level++) {
    for (let at = 0; at < count; at++) {
      if (hidden[at]) continue;
      const p = 3 * (level * count + at);
      squares[level] = (squares[level] as number) + (points[p] as number) ** 2 + (points[p + 1] as number) ** 2 + (points[p + 2] as number) ** 2;
    }
  }
  const most = squares.reduce((one, next) => Math.max(one, next), 0);
  return Float32Array.from(squares, (own) => {
    const square = common ? most : own;
    return square > 0 && shown > 0 ? 1 / Math.sqrt(square / shown) : 1;
  });
}

/** Size of the balls in CSS pixels, in the middle of the cloud: fewer are larger. */
export function ballSize(count: number, area: number): number {
  return Math.min(9, Math.max(1.7, 0.17 * Math.sqrt(area / Math.max(1, count))));
}

export interface Shot {
  points: Float32Array;
  units: Float32Array;
  hidden: Uint8Array;
  /** The level shown; between two, points are on their way. */
  level: number;
  camera: Camera;
  /** Pixels of the picture, and how many make one CSS pixel. */
  width: number;
  height: number;
  ratio: number;
}

/** Projects one place in space: across, down, nearness (1 in the middle). */
export type Lens = (x: number, y: number, z: number) => [number, number, number];

export function lensOf({ camera, width, height }: Pick<Shot, 'camera' | 'width' | 'height'>): Lens {
  const [m, cx, cy, unit] = [turnOf(camera), width / 2, height / 2, UNIT * Math.min(width, height) * camera.zoom];
  return (x, y, z) => {
    const near = EYE / (EYE - (m[6] * x + m[7] * y + m[8] * z));
    return [cx + unit * near * (m[0] * x + m[1] * y + m[2] * z), cy - unit * near * (m[3] * x + m[4] * y + m[5] * z), near];
  };
}

type Turn = readonly [number, number, number, number, number, number, number, number, number];

/** The rotation: around the upright axis (y), then up. */
export function turnOf({ yaw, pitch }: Camera): Turn {
  const [a, b] = [(yaw * Math.PI) / 180, (pitch * Math.PI) / 180];
  const [ca, sa, cb, sb] = [Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b)];
  return [ca, 0, sa, sa * sb, cb, -ca * sb, -sa * cb, sb, ca * cb];
}

/** Places all points; `into` is reused from picture to picture. */
export function place(shot: Shot, into: Placed): Placed {
  const { points, units, hidden, level, camera, width, height, ratio } = shot;
  const count = hidden.length;
  const low = Math.floor(level);
  const mix = level - low;
  const [first, second] = [3 * low * count, 3 * Math.min(units.length - 1, low + 1) * count];
  const [here, there] = [(1 - mix) * (units[low] ?? 1), mix * (units[low + 1] ?? 0)];
  const [m0, m1, m2, m3, m4, m5, m6, m7, m8] = turnOf(camera);
  const unit = UNIT * Math.min(width, height) * camera.zoom;
  const size = ballSize(count, (width * height) / ratio ** 2) * ratio * Math.sqrt(camera.zoom);
  const [cx, cy] = [width / 2, height / 2];
  for (let at = 0, p = first, q = second; at < count; at++, p += 3, q += 3) {
    const x = here * (points[p] as number) + there * (points[q] as number);
    const y = here * (points[p + 1] as number) + there * (points[q + 1] as number);
    const z = here * (points[p + 2] as number) + there * (points[q + 2] as number);
    const deep = m6 * x + m7 * y + m8 * z;
    const near = EYE / Math.max(0.5, EYE - deep);
    into.x[at] = cx + unit * near * (m0 * x + m1 * y + m2 * z);
    into.y[at] = cy - unit * near * (m3 * x + m4 * y + m5 * z);
    into.depth[at] = Math.min(1, Math.max(0, 0.5 + deep / 5));
    into.radius[at] = size * near;
  }
  into.order = sortedByDepth(into.depth, hidden);
  return into;
}

export function emptyPlaces(count: number): Placed {
  const floats = () => new Float32Array(count);
  return { x: floats(), y: floats(), depth: floats(), radius: floats(), order: new Uint32Array(0) };
}

const STEPS = 1024;

/** Points that are shown, the farthest first: by counting, which is linear. */
export function sortedByDepth(depth: Float32Array, hidden: Uint8Array): Uint32Array {
  const starts = new Uint32Array(STEPS + 1);
  const step = (at: number) => Math.min(STEPS - 1, Math.floor((depth[at] as number) * STEPS));
  for (let at = 0; at < depth.length; at++) if (!hidden[at]) starts[step(at) + 1] = (starts[step(at) + 1] as number) + 1;
  for (let at = 0; at < STEPS; at++) starts[at + 1] = (starts[at + 1] as number) + (starts[at] as number);
  const order = new Uint32Array(starts[STEPS] as number);
  for (let at = 0; at < depth.length; at++) {
    if (hidden[at]) continue;
    const slot = step(at);
    order[starts[slot] as number] = at;
    starts[slot] = (starts[slot] as number) + 1;
  }
  return order;
}

/** The point under a place, the nearest to the viewer of those within reach; null: none. */
export function pointAt(placed: Placed, x: number, y: number, reach: number): number | null {
  let best: number | null = null;
  let least = Infinity;
  for (const at of placed.order) {
    const far = Math.hypot((placed.x[at] as number) - x, (placed.y[at] as number) - y);
    const radius = placed.radius[at] as number;
    if (far > Math.max(reach, radius)) continue;
    // A ball under the pointer hides those behind it; between balls the nearest center wins.
    const rank = far <= radius ? -1 - (placed.depth[at] as number) : far;
    if (rank <= least) [best, least] = [at, rank];
  }
  return best;
}

/** A ball as pixels: how much of each it covers, and how much lighter or darker than its color it is. */
interface Stamp {
  side: number;
  cover: Uint8Array;
  light: Int16Array;
}

const PHASES = 3;
const stamps = new Map<number, Stamp>();

function stampOf(radius: number, fx: number, fy: number, halo: boolean): Stamp {
  const size = Math.max(3, Math.min(160, Math.round(4 * radius)));
  const key = ((size * PHASES + fx) * PHASES + fy) * 2 + (halo ? 1 : 0);
  let stamp = stamps.get(key);
  if (!stamp) stamps.set(key, (stamp = stampFor(size / 4, fx / PHASES, fy / PHASES, halo)));
  return stamp;
}

function stampFor(radius: number, fx: number, fy: number, halo: boolean): Stamp {
  const reach = Math.ceil((halo ? 2.6 : 1) * radius + 1.5);
  const side = 2 * reach + 1;
  const cover = new Uint8Array(side * side);
  const light = new Int16Array(side * side);
  for (let row = 0; row < side; row++) {
    for (let column = 0; column < side; column++) {
      const [x, y] = [column - reach - fx, row - reach - fy];
      const far = Math.hypot(x, y);
      const inside = Math.min(1, Math.max(0, radius + 0.5 - far));
      const glow = halo && far > radius ? 0.2 * Math.max(0, 1 - (far - radius) / (1.6 * radius)) ** 2 : 0;
      cover[row * side + column] = Math.round(255 * Math.max(inside, glow));
      // Lit from the upper left; small balls are flat.
      const shine = Math.max(0, 1 - Math.hypot(x + 0.36 * radius, y + 0.4 * radius) / (0.95 * radius)) ** 1.6;
      const rim = Math.min(1, far / radius) ** 4;
      light[row * side + column] = inside > 0 && radius > 2.2 ? Math.round(105 * shine - 58 * rim) : 0;
    }
  }
  return { side, cover, light };
}

/** Share of the paper that the farthest points take on. */
const FOG = 0.68;
/** More points than this have no halo, which costs the most pixels. */
const MOST_HALOS = 1500;

/** A point's color with the fog of its depth, as it is painted. */
export function fogged(rgb: Uint8Array, at: number, depth: number, paper: readonly number[]): [number, number, number] {
  const fog = FOG * (1 - depth) ** 1.4;
  const channel = (which: 0 | 1 | 2) => {
    const own = rgb[3 * at + which] as number;
    return own + ((paper[which] as number) - own) * fog;
  };
  return [channel(0), channel(1), channel(2)];
}

/** Paints all points into the pixels (red, green, blue, alpha) of a picture. */
export function paint(
  pixels: Uint8ClampedArray,
  { width, height }: { width: number; height: number },
  placed: Placed,
  rgb: Uint8Array,
  paper: readonly number[],
  tone: Tone,
): void {
  const halo = tone === 'dark' && placed.order.length <= MOST_HALOS;
  for (const at of placed.order) {
    const [px, py] = [placed.x[at] as number, placed.y[at] as number];
    const [left, top] = [Math.floor(px), Math.floor(py)];
    const phase = (part: number) => Math.min(PHASES - 1, Math.floor(part * PHASES));
    const { side, cover, light } = stampOf(placed.radius[at] as number, phase(px - left), phase(py - top), halo);
    const reach = (side - 1) / 2;
    const [x0, y0] = [left - reach, top - reach];
    if (x0 >= width || y0 >= height || x0 + side <= 0 || y0 + side <= 0) continue;
    const [red, green, blue] = fogged(rgb, at, placed.depth[at] as number, paper);
    const [fromX, toX] = [Math.max(0, -x0), Math.min(side, width - x0)];
    const [fromY, toY] = [Math.max(0, -y0), Math.min(side, height - y0)];
    for (let row = fromY; row < toY; row++) {
      let s = row * side + fromX;
      let d = 4 * ((y0 + row) * width + x0 + fromX);
      for (let column = fromX; column < toX; column++, s++, d += 4) {
        const c = cover[s] as number;
        if (c === 0) continue;
        const l = light[s] as number;
        const share = c / 255;
        pixels[d] = (pixels[d] as number) + (red + l - (pixels[d] as number)) * share;
        pixels[d + 1] = (pixels[d + 1] as number) + (green + l - (pixels[d + 1] as number)) * share;
        pixels[d + 2] = (pixels[d + 2] as number) + (blue + l - (pixels[d + 2] as number)) * share;
      }
    }
  }
}

export interface Label {
  at: number;
  x: number;
  y: number;
  text: string;
  /** 0: far and faint, 1: near. */
  depth: number;
  strong: boolean;
}

/** Names that have room, those of `ranked` first; names do not overlap each other. */
export function labelled(
  placed: Placed,
  names: readonly string[],
  hidden: Uint8Array,
  ranked: ArrayLike<number>,
  strong: readonly number[],
  measure: (text: string) => number,
  { width, height, ratio, most }: { width: number; height: number; ratio: number; most: number },
): Label[] {
  const found: Label[] = [];
  const boxes: [number, number, number, number][] = [];
  const line = 15 * ratio;
  const add = (at: number, must: boolean) => {
    const text = names[at] ?? '';
    if (hidden[at] || text === '' || (!must && (placed.depth[at] as number) < 0.42)) return;
    const wide = measure(text);
    const y = placed.y[at] as number;
    const gap = (placed.radius[at] as number) + 4 * ratio;
    let x = (placed.x[at] as number) + gap;
    if (x + wide > width) x = (placed.x[at] as number) - gap - wide;
    const box: [number, number, number, number] = [x - 3 * ratio, y - line / 2, x + wide + 3 * ratio, y + line / 2];
    if (!must && (box[0] < 0 || box[2] > width || box[1] < 0 || box[3] > height)) return;
    if (!must && boxes.some((one) => one[0] < box[2] && box[0] < one[2] && one[1] < box[3] && box[1] < one[3])) return;
    boxes.push(box);
    found.push({ at, x, y, text, depth: placed.depth[at] as number, strong: must });
  };
  for (const at of strong) add(at, true);
  for (let rank = 0; rank < ranked.length && found.length < most; rank++) {
    const at = ranked[rank] as number;
    if (!strong.includes(at)) add(at, false);
  }
  return found;
}
