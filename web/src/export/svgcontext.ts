/**
 * A canvas's drawing context that writes SVG: what draws axes on the screen draws them as vectors too.
 * It knows the calls that `draw/map.ts` makes.
 */

import { escaped } from './escape';

interface State {
  font: string;
  fillStyle: string;
  strokeStyle: string;
  textAlign: string;
  textBaseline: string;
  lineWidth: number;
  /** Attributes of transforms and clips, opened by `save` and closed by `restore`. */
  open: number;
}

const ANCHORS: Record<string, string> = { right: 'end', center: 'middle', left: 'start' };

export class SvgContext {
  font = '12px sans-serif';
  fillStyle = '#000';
  strokeStyle = '#000';
  textAlign = 'left';
  textBaseline = 'alphabetic';
  lineWidth = 1;
  imageSmoothingEnabled = false;
  private readonly parts: string[] = [];
  private readonly states: State[] = [];
  private open = 0;
  private path = '';
  private static clips = 0;
  private readonly measure = document.createElement('canvas').getContext('2d') as CanvasRenderingContext2D;

  constructor(readonly canvas: { width: number; height: number }) {}

  /** What was drawn, in device pixels of the canvas. */
  get markup(): string {
    return this.parts.join('') + '</g>'.repeat(this.open);
  }

  save(): void {
    const { font, fillStyle, strokeStyle, textAlign, textBaseline, lineWidth, open } = this;
    this.states.push({ font, fillStyle, strokeStyle, textAlign, textBaseline, lineWidth, open });
  }

  restore(): void {
    const state = this.states.pop();
    if (!state) return;
    this.parts.push('</g>'.repeat(this.open - state.open));
    Object.assign(this, state);
  }

  beginPath(): void {
    this.path = '';
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.path = `<rect x="${x}" y="${y}" width="${Math.max(0, width)}" height="${Math.max(0, height)}"`;
  }

  roundRect(x: number, y: number, width: number, height: number, radius: number): void {
    this.rect(x, y, width, height);
    this.path += ` rx="${radius}"`;
  }

  clip(): void {
    const id = `clip-${++SvgContext.clips}`;
    this.parts.push(`<clipPath id="${id}">${this.path}/></clipPath>`);
    this.group(`clip-path="url(#${id})"`);
  }

  fill(): void {
    this.parts.push(`${this.path} fill="${escaped(this.fillStyle)}"/>`);
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    this.rect(x, y, width, height);
    const pen = `fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${this.lineWidth}"`;
    this.parts.push(`${this.path} ${pen}/>`);
  }

  translate(x: number, y: number): void {
    this.group(`transform="translate(${x} ${y})"`);
  }

  rotate(angle: number): void {
    this.group(`transform="rotate(${(angle * 180) / Math.PI})"`);
  }

  fillText(text: string, x: number, y: number): void {
    const [, size = '12', family = 'sans-serif'] = /^([\d.]+)px (.*)$/.exec(this.font) ?? [];
    const anchor = ANCHORS[this.textAlign] ?? 'start';
    const down = this.textBaseline === 'middle' ? 0.35 * Number(size) : 0;
    this.parts.push(
      `<text x="${x}" y="${y + down}" font-size="${size}" font-family="${escaped(family)}" ` +
        `text-anchor="${anchor}" fill="${escaped(this.fillStyle)}" xml:space="preserve">${escaped(text)}</text>`,
    );
  }

  measureText(text: string): { width: number } {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }

  private group(attributes: string): void {
    this.parts.push(`<g ${attributes}>`);
    this.open++;
  }
}
