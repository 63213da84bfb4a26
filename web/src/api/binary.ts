/** Arrays as bytes, the container "UMK2"; unmask/explorer/wire/binary.py describes it. */

const MAGIC = 0x324b4d55; // "UMK2", little-endian

/** Numbers in row order, with the length of each axis. */
export interface NumberArray<Data extends Numbers = Numbers> {
  shape: number[];
  data: Data;
}

export type Numbers = Uint8Array | Int32Array | Float32Array;

export interface Arrays<Meta = Record<string, unknown>> {
  arrays: Map<string, NumberArray>;
  meta: Meta;
}

interface Described {
  name: string;
  dtype: string;
  shape: number[];
  offset: number;
}

/** Reads a container; throws on anything else. The arrays are views of `buffer`, not copies. */
export function decode<Meta = Record<string, unknown>>(buffer: ArrayBuffer): Arrays<Meta> {
  if (buffer.byteLength < 8) throw new RangeError('the answer is cut short');
  const view = new DataView(buffer);
  if (view.getUint32(0, true) !== MAGIC) throw new RangeError('the answer holds no arrays');
  const start = 8 + view.getUint32(4, true);
  if (start > buffer.byteLength) throw new RangeError('the answer is cut short');
  const text = new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8));
  const header = JSON.parse(text) as { arrays: Described[]; meta: Meta };
  const arrays = new Map<string, NumberArray>();
  for (const one of header.arrays) {
    arrays.set(one.name, { shape: one.shape, data: read(buffer, start + one.offset, one) });
  }
  return { arrays, meta: header.meta };
}

/** The array of a name; throws where the answer has none. */
export function arrayOf(answer: Arrays<unknown>, name: string): NumberArray {
  const found = answer.arrays.get(name);
  if (!found) throw new RangeError(`the answer has no array ${name}`);
  return found;
}

/** The array of a name as float32; throws where there is none or it is of another type. */
export function floatsOf(answer: Arrays<unknown>, name: string): NumberArray<Float32Array> {
  const { shape, data } = arrayOf(answer, name);
  if (!(data instanceof Float32Array)) throw new RangeError(`the array ${name} is not float32`);
  return { shape, data };
}

/** The array of a name as uint8, likewise. */
export function bytesOf(answer: Arrays<unknown>, name: string): NumberArray<Uint8Array> {
  const { shape, data } = arrayOf(answer, name);
  if (!(data instanceof Uint8Array)) throw new RangeError(`the array ${name} is not uint8`);
  return { shape, data };
}

/** The array of a name as int32, likewise. */
export function integersOf(answer: Arrays<unknown>, name: string): NumberArray<Int32Array> {
  const { shape, data } = arrayOf(answer, name);
  if (!(data instanceof Int32Array)) throw new RangeError(`the array ${name} is not int32`);
  return { shape, data };
}

function read(buffer: ArrayBuffer, offset: number, { name, dtype, shape }: Described): Numbers {
  const count = shape.reduce((product, length) => product * length, 1);
  const size = dtype === 'u1' ? 1 : 4;
  if (offset + count * size > buffer.byteLength) {
    throw new RangeError(`the array ${name} is longer than the answer`);
  }
  // Typed arrays read in the machine's order; every machine a browser runs on is little-endian.
  if (dtype === 'u1') return new Uint8Array(buffer, offset, count);
  if (dtype === 'i4') return new Int32Array(buffer, offset, count);
  if (dtype === 'f4') return new Float32Array(buffer, offset, count);
  throw new RangeError(`the array ${name} has the unknown type ${dtype}`);
}
