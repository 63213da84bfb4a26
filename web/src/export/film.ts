/** A recording of a moving view as a GIF: frames drawn one by one, each with a line of words below. */

import { GifWriter } from './gif';
import { type Film, FILM_SIDE } from './registry';

/** A long flat picture may be wider than a square one. */
const MOST_WIDTH = 1280;
const STRIP = 26;
const MOST_BYTES = 16_000_000;
/** Frames that the colors are chosen from. */
const SAMPLES = 4;

/** `report` is called with frames so far; it may throw to stop. */
export async function recorded(film: Film, comment: string, report: (done: number, of: number) => void): Promise<Blob> {
  try {
    return await frames(film, comment, report);
  } finally {
    film.end?.();
  }
}

async function frames(film: Film, comment: string, report: (done: number, of: number) => void): Promise<Blob> {
  const canvas = document.createElement('canvas');
  const pen = canvas.getContext('2d', { willReadFrequently: true }) as CanvasRenderingContext2D;
  const style = getComputedStyle(document.documentElement);
  const [paper, ink] = ['--card', '--text'].map((name) => style.getPropertyValue(name).trim()) as [string, string];
  const font = `13px ${getComputedStyle(document.body).fontFamily}`;

  async function frame(at: number): Promise<Uint8ClampedArray> {
    const { picture, words } = await film.draw(at);
    if (at === 0) {
      const share = Math.min(1, MOST_WIDTH / picture.width, FILM_SIDE / Math.sqrt(picture.width * picture.height));
      canvas.width = Math.max(1, Math.round(picture.width * share));
      canvas.height = Math.max(1, Math.round(picture.height * share)) + STRIP;
    }
    const [width, height] = [canvas.width, canvas.height - STRIP];
    pen.fillStyle = paper;
    pen.fillRect(0, 0, width, canvas.height);
    pen.imageSmoothingQuality = 'high';
    pen.drawImage(picture, 0, 0, width, height);
    pen.fillStyle = ink;
    pen.font = font;
    pen.textBaseline = 'middle';
    pen.fillText(words, 10, height + STRIP / 2, width - 20);
    return pen.getImageData(0, 0, width, canvas.height).data;
  }

  const first = await frame(0);
  const samples = [first];
  for (let one = 1; one < Math.min(SAMPLES, film.frames); one++) samples.push(await frame(Math.floor((one * film.frames) / SAMPLES)));
  const writer = new GifWriter(canvas.width, canvas.height, film.delay, comment, samples);
  for (let at = 0; at < film.frames; at++) {
    writer.add(await frame(at));
    if (writer.size > MOST_BYTES) {
      throw new Error(`the recording is larger than ${MOST_BYTES / 1_000_000} MB; make the window smaller and record again`);
    }
    report(at + 1, film.frames);
    // The page can draw the progress, and be stopped.
    await new Promise((go) => setTimeout(go));
  }
  return writer.finish();
}
