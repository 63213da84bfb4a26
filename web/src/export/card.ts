/** A card of 1200 x 630 pixels, the size that pages show of a link: a sentence, the picture, and whose it is. */

import { canvasOf, pictureOf } from './picture';

const [WIDTH, HEIGHT, SIDE] = [1200, 630, 56];
const LINES = 3;

/** What is on the card: the sentence of the open view, and the element that is its picture. */
function contentOf(stage: Element): { sentence: string; picture: Element | null } {
  const sentence = stage.querySelector('[data-card=sentence]')?.textContent?.trim() ?? document.title;
  return { sentence, picture: stage.querySelector('[data-card=picture]') ?? stage.querySelector(':is(.picture, .view) :is(canvas, svg), canvas, svg') };
}

function folded(pen: CanvasRenderingContext2D, text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1);
    if (last !== undefined && pen.measureText(`${last} ${word}`).width <= width) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** The card of a view, as PNG. */
export async function cardOf(stage: Element, model: string, text: string): Promise<Blob> {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [WIDTH, HEIGHT];
  const pen = canvas.getContext('2d') as CanvasRenderingContext2D;
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const serif = color('serif');
  pen.fillStyle = color('paper');
  pen.fillRect(0, 0, WIDTH, HEIGHT);
  const { sentence, picture } = contentOf(stage);

  let size = 44;
  let lines: string[];
  do {
    pen.font = `${size}px ${serif}`;
    lines = folded(pen, sentence, WIDTH - 2 * SIDE);
    size -= 2;
  } while (lines.length > LINES && size > 26);
  pen.fillStyle = color('text');
  pen.textBaseline = 'top';
  let y = SIDE - 8;
  for (const line of lines.slice(0, LINES + 1)) {
    pen.fillText(line, SIDE, y);
    y += (size + 2) * 1.28;
  }

  const foot = HEIGHT - SIDE - 26;
  if (picture) {
    const drawn = await canvasOf(pictureOf(picture, []), 2);
    const scale = Math.min((WIDTH - 2 * SIDE) / drawn.width, (foot - y - 28) / drawn.height);
    const [width, height] = [drawn.width * scale, drawn.height * scale];
    pen.drawImage(drawn, (WIDTH - width) / 2, y + 12 + (foot - y - 28 - height) / 2, width, height);
  }
  pen.fillStyle = color('text');
  pen.font = `700 30px ${serif}`;
  pen.fillText('unmask', SIDE, foot);
  const mark = pen.measureText('unmask').width;
  pen.fillStyle = color('muted');
  pen.font = `20px ${color('sans')}`;
  const said = [model, text === '' ? '' : `“${text}”`].filter(Boolean).join('  ·  ');
  let shown = said;
  while (shown.length > 8 && pen.measureText(shown).width > WIDTH - 2 * SIDE - mark - 24) shown = `${shown.slice(0, -2)}…`;
  pen.fillText(shown, SIDE + mark + 24, foot + 8);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('this browser cannot draw the card'))), 'image/png'));
}
