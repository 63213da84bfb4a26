/** Attention as bytes, as in unmask/explorer/binary.py: a 16-byte header, then float32 values. */

const MAGIC = 0x314b4d55; // "UMK1", little-endian
const HEADER_BYTES = 16;

/** What the values of an answer are, and how many stand in a cell. */
export const KINDS = {
  probabilities: { code: 1, perCell: 1 },
  heads: { code: 2, perCell: 3 },
} as const;

/** Values in row order: `rows` x `columns` cells. */
export interface Grid {
  rows: number;
  columns: number;
  values: Float32Array;
}

/** Reads an answer of the given kind; throws on anything else. */
export function decode(buffer: ArrayBuffer, kind: keyof typeof KINDS): Grid {
  const { code, perCell } = KINDS[kind];
  if (buffer.byteLength < HEADER_BYTES) throw new RangeError('the answer is cut short');
  const header = new DataView(buffer);
  const rows = header.getUint32(4, true);
  const columns = header.getUint32(8, true);
  if (header.getUint32(0, true) !== MAGIC || header.getUint32(12, true) !== code) {
    throw new RangeError(`the answer is not ${kind}`);
  }
  const count = rows * columns * perCell;
  if (buffer.byteLength !== HEADER_BYTES + 4 * count) {
    throw new RangeError('the answer is not as long as its header says');
  }
  // Float32Array reads in the machine's order; every machine a browser runs on is little-endian.
  return { rows, columns, values: new Float32Array(buffer, HEADER_BYTES, count) };
}
