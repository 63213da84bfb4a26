/** A part of the page as one SVG: text and charts as vectors, cells as an image; and that as a PNG. */

import { escaped } from './escape';
import { vectorOf } from './registry';

interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

const STYLES = [
  'fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-opacity', 'stroke-dasharray', 'stroke-linecap',
  'stroke-linejoin', 'opacity', 'font-family', 'font-size', 'font-weight', 'font-style', 'text-anchor',
  'dominant-baseline', 'paint-order', 'visibility', 'display',
];
const LINE = 18;
const SIDE = 16;

/** An element and all in it as they are seen now, with lines of words below. */
export function pictureOf(root: Element, caption: readonly string[]): string {
  const frame = root.getBoundingClientRect();
  const width = Math.ceil(frame.width) + 2 * SIDE;
  const style = getComputedStyle(document.documentElement);
  const [paper, muted] = ['--paper', '--muted'].map((name) => style.getPropertyValue(name).trim());
  const family = escaped(getComputedStyle(document.body).fontFamily);
  const pen = document.createElement('canvas').getContext('2d') as CanvasRenderingContext2D;
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const fits = (line: string) => pen.measureText(line).width <= width - 2 * SIDE;
  const lines = caption.flatMap((line) => folded(line, fits));
  const below = Math.ceil(frame.height) + 2 * SIDE;
  const height = below + LINE * lines.length + (lines.length > 0 ? SIDE / 2 : 0);
  const words = lines.map((line, at) => `<text x="${SIDE}" y="${below + LINE * (at + 0.5)}">${escaped(line)}</text>`);
  const walk = new Walk(frame);
  walk.element(root, { left: frame.left, top: frame.top, right: frame.right, bottom: frame.bottom });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<desc>${escaped(caption.join(' '))}</desc><rect width="100%" height="100%" fill="${paper}"/>` +
    `<g transform="translate(${SIDE} ${SIDE})">${walk.parts.join('')}</g>` +
    `<g font-size="12" font-family="${family}" fill="${muted}" data-stamp="">${words.join('')}</g></svg>`
  );
}

/** An SVG as pixels, `ratio` of them along each of its own. */
export async function pixelsOf(svg: string, ratio = 2): Promise<Blob> {
  const canvas = await canvasOf(svg, ratio);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('the picture is too large for this browser'))), 'image/png'),
  );
}

/** An SVG on a canvas. */
export async function canvasOf(svg: string, ratio: number): Promise<HTMLCanvasElement> {
  const image = new Image();
  const bytes = new TextEncoder().encode(svg);
  let binary = '';
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  image.src = `data:image/svg+xml;base64,${btoa(binary)}`;
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width * ratio, image.height * ratio];
  const context = canvas.getContext('2d') as CanvasRenderingContext2D;
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

class Walk {
  readonly parts: string[] = [];
  private clips = 0;

  constructor(private readonly frame: DOMRect) {}

  element(element: Element, seen: Box): void {
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (style.display === 'none' || style.visibility === 'hidden' || style.opacity === '0' || hidden(element)) return;
    if (style.display !== 'contents' && box.width * box.height > 0 && !meets(box, seen)) return;
    if (element instanceof SVGSVGElement) return this.clipped(box, seen, () => this.svg(element, box));
    if (element instanceof HTMLCanvasElement) return this.clipped(box, seen, () => this.canvas(element, box, style));
    if (element instanceof HTMLInputElement) return;
    this.surface(box, style);
    if (element instanceof HTMLSelectElement) {
      const left = box.left + (Number.parseFloat(style.paddingLeft) || 0) + 4;
      return this.words(element.selectedOptions[0]?.text ?? '', { left, top: box.top, height: box.height }, style);
    }
    const within = style.overflow === 'visible' ? seen : common(seen, box);
    for (const child of element.childNodes) {
      if (child instanceof Element) this.element(child, within);
      else if (child instanceof Text) this.text(child, style, within);
    }
  }

  private place(box: { left: number; top: number }): [number, number] {
    return [round(box.left - this.frame.left), round(box.top - this.frame.top)];
  }

  private clipped(box: Box, seen: Box, draw: () => void): void {
    if (box.left >= seen.left && box.top >= seen.top && box.right <= seen.right && box.bottom <= seen.bottom) return draw();
    const part = common(box, seen);
    const id = `seen-${++this.clips}`;
    const [x, y] = this.place(part);
    const size = `width="${round(part.right - part.left)}" height="${round(part.bottom - part.top)}"`;
    this.parts.push(`<clipPath id="${id}"><rect x="${x}" y="${y}" ${size}/></clipPath><g clip-path="url(#${id})">`);
    draw();
    this.parts.push('</g>');
  }

  /** Background and border. */
  private surface(box: DOMRect, style: CSSStyleDeclaration): void {
    const filled = !/^(transparent|rgba\(.*, 0\))$/.test(style.backgroundColor);
    const border = Number.parseFloat(style.borderTopWidth) || 0;
    const framed = border > 0 && style.borderTopStyle !== 'none' && style.borderLeftWidth === style.borderTopWidth;
    if (box.width * box.height === 0) return;
    const [x, y] = this.place(box);
    const gradient = this.gradient(style.backgroundImage);
    if (!filled && !framed && gradient === null) return this.rings(x, y, box, style);
    const half = framed ? border / 2 : 0;
    const size = `width="${round(Math.max(0, box.width - 2 * half))}" height="${round(Math.max(0, box.height - 2 * half))}"`;
    const fill = gradient ?? (filled ? escaped(style.backgroundColor) : 'none');
    const stroke = framed ? ` stroke="${escaped(style.borderTopColor)}" stroke-width="${border}"` : '';
    const radius = Math.min(Number.parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
    this.parts.push(`<rect x="${x + half}" y="${y + half}" ${size} rx="${radius}" fill="${fill}"${stroke}/>`);
    this.rings(x, y, box, style);
  }

  /** Frames around what is chosen: an outline outside, shadows without blur inside. */
  private rings(x: number, y: number, box: DOMRect, style: CSSStyleDeclaration): void {
    const ring = (wide: number, out: number, color: string) => {
      const size = `width="${round(Math.max(0, box.width + 2 * out))}" height="${round(Math.max(0, box.height + 2 * out))}"`;
      const pen = `fill="none" stroke="${escaped(color)}" stroke-width="${wide}"`;
      this.parts.push(`<rect x="${x - out}" y="${y - out}" ${size} rx="3" ${pen}/>`);
    };
    const wide = Number.parseFloat(style.outlineWidth) || 0;
    const offset = Number.parseFloat(style.outlineOffset) || 0;
    if (style.outlineStyle !== 'none' && wide > 0) ring(wide, offset + wide / 2, style.outlineColor);
    const shadows = [...style.boxShadow.matchAll(/(\w+\([^()]*\)) 0px 0px 0px (\d+)px inset/g)];
    // The first lies on top.
    for (const [, color = '', size = '0'] of shadows.reverse()) ring(Number(size), -Number(size) / 2, color);
  }

  /** A background that runs through colors from left to right, as legends have, by its name. */
  private gradient(image: string): string | null {
    if (!/^linear-gradient\((90deg|to right)/.test(image)) return null;
    const colors = image.match(/(?:rgba?|oklab|oklch|color)\([^()]*\)/g) ?? [];
    if (colors.length < 2) return null;
    const stops = colors.map((color, at) => `<stop offset="${round(at / (colors.length - 1))}" stop-color="${escaped(color)}"/>`);
    const id = `gradient-${++this.clips}`;
    this.parts.push(`<linearGradient id="${id}">${stops.join('')}</linearGradient>`);
    return `url(#${id})`;
  }

  private svg(element: SVGSVGElement, box: DOMRect): void {
    const copy = element.cloneNode(true) as SVGSVGElement;
    const [from, to] = [element.querySelectorAll('*'), copy.querySelectorAll('*')];
    from.forEach((one, at) => inlined(one, to[at] as Element));
    const [x, y] = this.place(box);
    for (const [name, value] of [['x', x], ['y', y], ['width', box.width], ['height', box.height]] as const) {
      copy.setAttribute(name, String(round(value)));
    }
    inlined(element, copy);
    copy.setAttribute('overflow', 'visible');
    this.parts.push(new XMLSerializer().serializeToString(copy));
  }

  private canvas(canvas: HTMLCanvasElement, box: DOMRect, style: CSSStyleDeclaration): void {
    if (canvas.width * canvas.height === 0) return;
    const [x, y] = this.place(box);
    const vector = vectorOf(canvas);
    if (vector !== null) {
      this.parts.push(`<g transform="translate(${x} ${y}) scale(${box.width / canvas.width} ${box.height / canvas.height})">${vector}</g>`);
      return;
    }
    const how = style.imageRendering === 'pixelated' ? ' image-rendering="pixelated"' : '';
    const size = `width="${round(box.width)}" height="${round(box.height)}" preserveAspectRatio="none"`;
    this.parts.push(`<image x="${x}" y="${y}" ${size}${how} href="${canvas.toDataURL()}"/>`);
  }

  /** The lines of a text as they are broken. */
  private text(node: Text, style: CSSStyleDeclaration, seen: Box): void {
    if (!node.data.trim()) return;
    const range = document.createRange();
    const lines: { words: string; box: DOMRect }[] = [];
    for (const { index, 0: word } of node.data.matchAll(/\S+\s*/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.trimEnd().length);
      const box = range.getBoundingClientRect();
      const last = lines.at(-1);
      if (last && Math.abs(last.box.top - box.top) < box.height / 2) last.words += word;
      else if (box.width > 0) lines.push({ words: word, box });
    }
    for (const { words, box } of lines) if (meets(box, seen)) this.words(words.trimEnd(), box, style);
  }

  private words(words: string, box: Pick<DOMRect, 'left' | 'top' | 'height'>, style: CSSStyleDeclaration): void {
    const [x, y] = this.place(box);
    const size = Number.parseFloat(style.fontSize);
    const font = `font-family="${escaped(style.fontFamily)}" font-size="${size}" font-weight="${style.fontWeight}"`;
    const down = round(y + box.height / 2 + 0.35 * size);
    this.parts.push(`<text x="${x}" y="${down}" ${font} fill="${escaped(style.color)}">${escaped(words.replace(/\s+/g, ' '))}</text>`);
  }
}

function inlined(from: Element, to: Element): void {
  const style = getComputedStyle(from);
  // Attributes, because the page's policy allows no style that is written out.
  for (const name of STYLES) to.setAttribute(name, style.getPropertyValue(name));
  for (const name of ['class', 'style', 'role', 'tabindex']) to.removeAttribute(name);
}

/** Written for those who hear the page alone. */
function hidden(element: Element): boolean {
  return element.classList.contains('unseen');
}

function meets(one: Box, other: Box): boolean {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

function common(one: Box, other: Box): Box {
  return {
    left: Math.max(one.left, other.left),
    top: Math.max(one.top, other.top),
    right: Math.min(one.right, other.right),
    bottom: Math.min(one.bottom, other.bottom),
  };
}

function folded(line: string, fits: (line: string) => boolean): string[] {
  const lines: string[] = [''];
  for (const word of line.split(' ')) {
    const last = lines.at(-1) as string;
    if (last !== '' && !fits(`${last} ${word}`)) lines.push(word);
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`;
  }
  return lines;
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
