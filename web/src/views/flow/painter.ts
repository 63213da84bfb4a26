/** Lines on a canvas, drawn in slices of frames: the page answers while thousands of them appear. */

import { blank, draw, faded, type Lines, type Picture, shape } from '../../draw/lines';

/** Time of a frame that lines may take. */
const SLICE_MS = 7;
/** Where all lines take much longer than a slice, the strongest of them are seen at first. */
const STRONGEST = 120;
/** What is left of the lines that others stand out from. */
const FAINT = 0.12;

/** What is drawn: all lines, those that stand out from them or null, and on what. */
export interface Scene {
  all: Lines;
  lit: Lines | null;
  width: number;
  height: number;
  paper: number;
}

/** The rows of the picture that the canvas shows. */
export interface Sight {
  top: number;
  height: number;
}

export class Painter {
  private scene: Scene | null = null;
  /** The picture of all lines, as far as it is drawn. */
  private whole: { picture: Picture; next: number } | null = null;
  private ground: Picture | null = null;
  private last: Picture | null = null;
  private sight: Sight = { top: 0, height: 0 };
  private form = shape(1);
  private steps: Iterator<void> | null = null;
  private frame = 0;
  private until = 0;

  constructor(private readonly canvas: HTMLCanvasElement) {}

  /** Draws this from the next frame on; what it shares with the last scene stays. */
  show(scene: Scene): void {
    const last = this.scene;
    const same = last && (['all', 'width', 'height', 'paper'] as const).every((name) => last[name] === scene[name]);
    if (!same) [this.whole, this.ground] = [null, null];
    if (last?.width !== scene.width) this.form = shape(scene.width);
    this.scene = scene;
    this.steps = this.drawn(scene);
    this.canvas.dataset.drawn = '';
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.go());
  }

  /** Shows these rows, as they are drawn so far. */
  look(sight: Sight): void {
    this.sight = sight;
    if (this.last) this.put(this.last);
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
    [this.frame, this.steps] = [0, null];
  }

  private go(): void {
    this.until = performance.now() + SLICE_MS;
    this.frame = this.steps?.next().done === false ? requestAnimationFrame(() => this.go()) : 0;
  }

  private *drawn({ all, lit, width, height, paper }: Scene): Generator<void> {
    if (width <= 0 || height <= 0) return;
    this.whole ??= { picture: blank(width, height, paper), next: 0 };
    if (this.whole.next < all.count) yield* this.ahead(lit ? blank(width, height, paper) : this.whole.picture, lit ?? all);
    while (this.whole.next < all.count) {
      this.whole.next = this.lines(this.whole.picture, all, this.whole.next);
      if (this.whole.next < all.count) yield;
    }
    if (lit) {
      this.ground ??= faded(this.whole.picture, paper, FAINT);
      if (lit.count > 2 * STRONGEST) yield* this.ahead(this.ground, lit);
      const picture = copied(this.ground);
      for (let next = 0; (next = this.lines(picture, lit, next)) < lit.count; ) yield;
      this.put(picture);
    } else this.put(this.whole.picture);
    this.canvas.dataset.drawn = `${all.count} ${lit?.count ?? ''}`;
  }

  /** The strongest lines, to be seen until all are drawn. */
  private *ahead(ground: Picture, lines: Lines): Generator<void> {
    const picture = copied(ground);
    draw(picture, lines, this.form, Math.max(0, lines.count - STRONGEST), () => false);
    this.put(picture);
    yield;
  }

  private lines(picture: Picture, lines: Lines, first: number): number {
    return draw(picture, lines, this.form, first, () => performance.now() > this.until);
  }

  private put(picture: Picture): void {
    this.last = picture;
    const { canvas, sight } = this;
    const { width, height, pixels } = picture;
    if (canvas.width !== width || canvas.height !== sight.height) [canvas.width, canvas.height] = [width, sight.height];
    const image = new ImageData(new Uint8ClampedArray(pixels.buffer as ArrayBuffer), width, height);
    canvas.getContext('2d')?.putImageData(image, 0, -sight.top, 0, sight.top, width, sight.height);
  }
}

function copied({ width, height, pixels }: Picture): Picture {
  return { width, height, pixels: pixels.slice() };
}
