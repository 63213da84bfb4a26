/** A looping GIF: one palette for all frames, and of every frame what differs from the one before. */

import { applyPalette, type Encoder, GIFEncoder, quantize, type Rgb } from 'gifenc';

/** One entry of the palette stands for "as before". */
const COLORS = 255;
/** Bytes of the header, and of the extension that says how often the frames are repeated. */
const HEADER = 13;
const LOOP = 19;

export class GifWriter {
  private readonly encoder: Encoder = GIFEncoder();
  private readonly palette: Rgb[];
  private before: Uint8Array | null = null;

  /** `samples`: pixels of typical frames, red first, four bytes each; `delay` in milliseconds; `comment` is kept inside the file. */
  constructor(
    private readonly width: number,
    private readonly height: number,
    private readonly delay: number,
    private readonly comment: string,
    samples: readonly Uint8ClampedArray[],
  ) {
    const all = new Uint8Array(samples.reduce((sum, one) => sum + one.length, 0));
    let at = 0;
    for (const one of samples) {
      all.set(one, at);
      at += one.length;
    }
    this.palette = quantize(all, COLORS);
  }

  add(pixels: Uint8ClampedArray): void {
    const { width, height, delay, palette, before } = this;
    const indexes = applyPalette(pixels, palette);
    const same = palette.length;
    if (before === null) {
      this.encoder.writeFrame(indexes, width, height, { palette: [...palette, [0, 0, 0]], delay, repeat: 0, dispose: 1 });
    } else {
      const changed = indexes.map((index, at) => (index === before[at] ? same : index));
      this.encoder.writeFrame(changed, width, height, { delay, transparent: true, transparentIndex: same, dispose: 1 });
    }
    this.before = indexes;
  }

  /** Bytes so far. */
  get size(): number {
    return this.encoder.stream.bytesView().length;
  }

  /** The file. The comment stands before the first frame, where programs look for it. */
  finish(): Blob {
    this.encoder.finish();
    const bytes = this.encoder.bytes();
    const flags = bytes[10] as number;
    const frames = HEADER + 3 * (2 << (flags & 7)) + LOOP;
    return new Blob([bytes.subarray(0, frames), remark(this.comment), bytes.subarray(frames)], { type: 'image/gif' });
  }
}

/** A comment extension: blocks of at most 255 bytes. */
function remark(comment: string): Uint8Array<ArrayBuffer> {
  const text = new TextEncoder().encode(comment);
  const bytes = [0x21, 0xfe];
  for (let from = 0; from < text.length; from += 255) {
    const block = text.subarray(from, from + 255);
    bytes.push(block.length, ...block);
  }
  return Uint8Array.from([...bytes, 0]);
}
