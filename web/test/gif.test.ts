import { describe, expect, it } from 'vitest';
import { GifWriter } from '../src/export/gif';

const [WIDTH, HEIGHT] = [9, 5];

/** A frame of one color with a dot of another, that moves. */
function frame(dot: number): Uint8ClampedArray {
  const pixels = new Uint8ClampedArray(4 * WIDTH * HEIGHT);
  for (let at = 0; at < WIDTH * HEIGHT; at++) pixels.set(at === dot ? [200, 40, 0, 255] : [16, 32, 64, 255], 4 * at);
  return pixels;
}

/** LZW as GIF89a has it. */
function unpacked(data: number[], codeSize: number): number[] {
  const [clear, end] = [1 << codeSize, (1 << codeSize) + 1];
  let table: number[][] = [];
  let [size, before]: [number, number[] | null] = [codeSize + 1, null];
  const out: number[] = [];
  let bit = 0;
  for (;;) {
    let code = 0;
    for (let one = 0; one < size; one++, bit++) code |= (((data[bit >> 3] ?? 0) >> (bit & 7)) & 1) << one;
    if (code === end || bit > 8 * data.length + size) return out;
    if (code === clear) {
      table = Array.from({ length: clear + 2 }, (_, at) => [at]);
      [size, before] = [codeSize + 1, null];
      continue;
    }
    const entry: number[] = table[code] ?? [...(before ?? []), before?.[0] ?? 0];
    out.push(...entry);
    if (before) table.push([...before, entry[0] as number]);
    if (table.length === 1 << size && size < 12) size++;
    before = entry;
  }
}

/** The parts of a GIF, and its frames as a viewer composes them. */
function decoded(bytes: Uint8Array) {
  const ascii = (from: number, to: number) => String.fromCharCode(...bytes.subarray(from, to));
  const word = (at: number) => (bytes[at] as number) + 256 * (bytes[at + 1] as number);
  const colors = 2 << ((bytes[10] as number) & 7);
  const palette = Array.from({ length: colors }, (_, at) => [...bytes.subarray(13 + 3 * at, 16 + 3 * at)]);
  let at = 13 + 3 * colors;
  const blocks = () => {
    const found: number[] = [];
    for (let length = bytes[at++] as number; length > 0; length = bytes[at++] as number) {
      found.push(...bytes.subarray(at, at + length));
      at += length;
    }
    return found;
  };
  const made = { head: ascii(0, 6), size: [word(6), word(8)], loops: -1, comment: '', delays: [] as number[], frames: [] as number[][][] };
  let clear = -1;
  let shown: number[][] = Array.from({ length: WIDTH * HEIGHT }, () => []);
  while (bytes[at] !== 0x3b) {
    const kind = bytes[at++];
    if (kind === 0x21) {
      const label = bytes[at++];
      const start = at;
      const data = blocks();
      if (label === 0xff) made.loops = word(start + 14);
      if (label === 0xfe) made.comment = new TextDecoder().decode(Uint8Array.from(data));
      if (label === 0xf9) {
        made.delays.push(10 * ((data[1] ?? 0) + 256 * (data[2] ?? 0)));
        clear = (data[0] ?? 0) & 1 ? (data[3] ?? 0) : -1;
      }
    } else {
      expect(kind).toBe(0x2c);
      expect((bytes[at + 8] ?? 0) & 0x80).toBe(0);
      at += 9;
      const codeSize = bytes[at++] as number;
      const indexes = unpacked(blocks(), codeSize);
      expect(indexes).toHaveLength(WIDTH * HEIGHT);
      shown = shown.map((color, pixel) => (indexes[pixel] === clear ? color : (palette[indexes[pixel] as number] as number[])));
      made.frames.push(shown);
    }
  }
  return made;
}

describe('a recording', async () => {
  const dots = [0, 7, 44, 44];
  const comment = `model: één; ${'long '.repeat(80)}`;
  const writer = new GifWriter(WIDTH, HEIGHT, 80, comment, [frame(0)]);
  for (const dot of dots) writer.add(frame(dot));
  const gif = decoded(new Uint8Array(await writer.finish().arrayBuffer()));

  it('loops forever, with every frame, its time and the provenance', () => {
    expect([gif.head, gif.size, gif.loops]).toEqual(['GIF89a', [WIDTH, HEIGHT], 0]);
    expect(gif.delays).toEqual([80, 80, 80, 80]);
    expect(gif.comment).toBe(comment);
  });

  it('shows what was drawn', () => {
    dots.forEach((dot, number) => {
      const pixels = gif.frames[number] as number[][];
      pixels.forEach((color, at) => {
        const drawn = at === dot ? [200, 40, 0] : [16, 32, 64];
        color.forEach((value, part) => expect(Math.abs(value - (drawn[part] as number))).toBeLessThan(9));
      });
    });
  });
});
