/**
 * An encoder in the page: its layers one after the other, each a few calls of the module `live.wasm`.
 *
 * Axes: T tokens; D width; L layers; H heads. Places in the module's memory are bytes.
 */

import type { Arrays, NumberArray, Numbers } from '../api/binary';

interface NormSpec {
  centered: boolean;
  eps: number;
}

interface LayerSpec {
  /** Number of the layer's weights; layers can share them. */
  weights: number;
  norm_first: boolean;
  attention_norm: boolean;
  norm: NormSpec;
  heads: number;
  /** Heads of keys and values. */
  shared: number;
  head_width: number;
  radius: number;
  rotary: { theta: number; pairs: number; interleaved: boolean; scale: number } | null;
  /** Number of the table of terms that are added by distance, -1 for none. */
  distances: number;
  activation: number;
  gated: boolean;
}

export interface EncoderSpec {
  width: number;
  embedding: {
    width: number;
    positions: { offset: number; left_out: number | null } | null;
    norm: NormSpec | null;
    project: 'before' | 'after' | null;
  };
  layers: LayerSpec[];
  final_norm: NormSpec | null;
}

/**
 * The residual stream (L + 1, T, D), attention of all heads (heads, T, T), norms of values (heads, T), and word
 * embeddings (T, E).
 */
export interface Pass {
  states: Float32Array;
  attention: Float32Array;
  norms: Float32Array;
  words: Float32Array;
}

type Call = (...values: number[]) => void;

interface Kernels {
  memory: WebAssembly.Memory;
  __heap_base: WebAssembly.Global;
  pack_floats: Call;
  pack_bytes: Call;
  linear: Call;
  norm: Call;
  add: Call;
  activate: Call;
  gate: Call;
  rotate: Call;
  attend: Call;
  value_norms: Call;
}

/** A weight in panels, see `live.cpp`. */
interface Linear {
  panels: number;
  inputs: number;
  outputs: number;
}

const PANEL = 8;
const PAGE = 65536;
const FLOAT = 4;
/** In place of a radius: a token attends to itself and to earlier ones. */
const BEFORE = -2;
/** What is read a row at a time. */
const TABLE = /^embedding\.(words|positions|segments)\.weight/;

function panelFloats(rows: number, columns: number): number {
  return Math.ceil(rows / PANEL) * PANEL * columns;
}

export class Encoder {
  private readonly linears = new Map<string, Linear>();
  private readonly vectors = new Map<string, number>();
  /** Terms that are added by distance: where they lie, and the distances up to which they reach. */
  private readonly distances = new Map<number, { place: number; reach: number }>();
  private free: number;
  /** Where memory for one text begins, after all weights. */
  private readonly scratch: number;

  private constructor(
    private readonly kernels: Kernels,
    readonly spec: EncoderSpec,
    private readonly stored: Map<string, NumberArray>,
  ) {
    this.free = Number(kernels.__heap_base.value);
    for (const [name, { shape, data }] of stored) {
      const [, table] = /^distances\.(\d+)$/.exec(name) ?? [];
      if (name === 'module' || /\.(rows|columns)$/.test(name) || TABLE.test(name)) continue;
      if (table) this.distances.set(Number(table), { place: this.place(data), reach: (shape[1]! + 1) / 2 });
      else if (shape.length === 2) this.pack(name.slice(0, -'.weight'.length));
      else this.vectors.set(name, this.place(data));
    }
    this.scratch = this.free;
    // What was packed is needed no more; the tables of the embedding are.
    for (const name of [...stored.keys()]) if (!TABLE.test(name)) stored.delete(name);
  }

  /** Compiles the module of the container and lays the weights out. */
  static async of(model: Arrays<{ encoder: EncoderSpec }>): Promise<Encoder> {
    const module = model.arrays.get('module') as NumberArray<Uint8Array>;
    const { instance } = await WebAssembly.instantiate(module.data.slice());
    return new Encoder(instance.exports as unknown as Kernels, model.meta.encoder, model.arrays);
  }

  /** One text, by its ids and token types; `hidden`: no token attends to a later one. */
  read(ids: readonly number[], types: readonly number[], hidden = false): Pass {
    const { spec, kernels } = this;
    this.free = this.scratch;
    const count = ids.length;
    const size = count * spec.width;
    const heads = spec.layers.reduce((sum, layer) => sum + layer.heads, 0);
    const states = this.room((spec.layers.length + 1) * size);
    const attention = this.room(heads * count * count);
    const norms = this.room(heads * count);
    this.embed(ids, types, states);
    const begin = this.free;
    let head = 0;
    spec.layers.forEach((each, number) => {
      const layer = hidden ? { ...each, radius: BEFORE } : each;
      this.free = begin;
      const to = states + (number + 1) * size * FLOAT;
      this.layer(layer, count, to - size * FLOAT, to, attention + head * count * count * FLOAT, norms + head * count * FLOAT);
      head += layer.heads;
    });
    const last = states + spec.layers.length * size * FLOAT;
    if (spec.final_norm) this.norm('final_norm', spec.final_norm, last, count, spec.width, last);
    const taken = (place: number, length: number) => new Float32Array(kernels.memory.buffer, place, length).slice();
    return {
      states: taken(states, (spec.layers.length + 1) * size),
      attention: taken(attention, heads * count * count),
      norms: taken(norms, heads * count),
      words: this.addRows('embedding.words.weight', ids, new Float32Array(count * spec.embedding.width)),
    };
  }

  private embed(ids: readonly number[], types: readonly number[], to: number): void {
    const { embedding, width } = this.spec;
    const sum = this.room(ids.length * embedding.width);
    const x = new Float32Array(this.kernels.memory.buffer, sum, ids.length * embedding.width);
    x.fill(0);
    this.addRows('embedding.words.weight', ids, x);
    if (this.stored.has('embedding.segments.weight')) this.addRows('embedding.segments.weight', types, x);
    if (embedding.positions) this.addRows('embedding.positions.weight', places(ids, embedding.positions), x);
    const projected = embedding.project ? this.room(ids.length * width) : sum;
    if (embedding.project === 'before') this.linear('embedding.projection', sum, ids.length, projected);
    const from = embedding.project === 'before' ? projected : sum;
    const normed = embedding.project === 'after' ? from : to;
    const size = embedding.project === 'after' ? embedding.width : width;
    if (embedding.norm) this.norm('embedding.norm', embedding.norm, from, ids.length, size, normed);
    else if (normed !== from) this.copy(from, normed, ids.length * size);
    if (embedding.project === 'after') this.linear('embedding.projection', normed, ids.length, to);
  }

  private layer(spec: LayerSpec, count: number, x: number, y: number, attention: number, norms: number): void {
    const { kernels } = this;
    const { width } = this.spec;
    const size = count * width;
    const name = `layers.${spec.weights}`;
    const read = spec.norm_first && spec.attention_norm ? this.room(size) : x;
    if (read !== x) this.norm(`${name}.attention_norm`, spec.norm, x, count, width, read);
    this.mix(spec, name, read, count, y, attention, norms);
    kernels.add(y, x, size);
    if (!spec.norm_first) this.norm(`${name}.attention_norm`, spec.norm, y, count, width, y);
    const input = spec.norm_first ? this.room(size) : y;
    if (spec.norm_first) this.norm(`${name}.feedforward_norm`, spec.norm, y, count, width, input);
    const inner = this.weight(`${name}.feedforward.inner`).outputs;
    const outer = this.weight(`${name}.feedforward.outer`).inputs;
    const between = this.room(count * inner);
    const added = this.room(size);
    this.linear(`${name}.feedforward.inner`, input, count, between);
    const activated = spec.gated ? this.room(count * outer) : between;
    if (spec.gated) kernels.gate(between, count, outer, spec.activation, activated);
    else kernels.activate(between, count * inner, spec.activation);
    this.linear(`${name}.feedforward.outer`, activated, count, added);
    kernels.add(y, added, size);
    if (!spec.norm_first) this.norm(`${name}.feedforward_norm`, spec.norm, y, count, width, y);
  }

  /** The attention of a layer, before its residual: `x` to `y`. */
  private mix(
    spec: LayerSpec,
    name: string,
    x: number,
    count: number,
    y: number,
    attention: number,
    norms: number,
  ): void {
    const { kernels } = this;
    const { heads, shared, head_width: width } = spec;
    const stride = (heads + 2 * shared) * width;
    const projected = this.room(count * stride);
    const mixed = this.room(count * heads * width);
    const panels = this.room(Math.max(panelFloats(count, width), panelFloats(width, count)));
    const out = this.weight(`${name}.attention.out`);
    const added = this.room(count * out.outputs);
    this.linear(`${name}.attention.qkv`, x, count, projected);
    if (spec.rotary) {
      const { pairs, interleaved } = spec.rotary;
      const [cosines, sines] = this.angles(spec.rotary, count);
      // Keys lie after queries.
      kernels.rotate(projected, stride, count, heads + shared, width, pairs, Number(interleaved), cosines, sines);
    }
    const { place: terms, reach } = this.distances.get(spec.distances) ?? { place: 0, reach: 0 };
    const scale = 1 / Math.sqrt(width);
    kernels.attend(projected, count, heads, shared, width, scale, spec.radius, terms, reach, panels, attention, mixed);
    kernels.value_norms(projected, count, heads, shared, width, out.panels, out.outputs, added, norms);
    this.linear(`${name}.attention.out`, mixed, count, y);
  }

  /** Cosines and sines of rotary positions, (T, pairs) each. */
  private angles({ theta, pairs, scale }: NonNullable<LayerSpec['rotary']>, count: number): [number, number] {
    const waves: [number, number] = [this.room(count * pairs), this.room(count * pairs)];
    const [cosines, sines] = waves.map((place) => new Float32Array(this.kernels.memory.buffer, place, count * pairs));
    for (let at = 0; at < count * pairs; at++) {
      const angle = (Math.floor(at / pairs) / scale) * theta ** (-(at % pairs) / pairs);
      cosines![at] = Math.cos(angle);
      sines![at] = Math.sin(angle);
    }
    return waves;
  }

  private linear(name: string, x: number, count: number, y: number): void {
    const { panels, inputs, outputs } = this.weight(name);
    this.kernels.linear(x, count, panels, inputs, this.vectors.get(`${name}.bias`) ?? 0, y, outputs);
  }

  private norm(name: string, spec: NormSpec, x: number, count: number, width: number, y: number): void {
    const weight = this.vectors.get(`${name}.weight`) ?? 0;
    this.kernels.norm(x, count, width, Number(spec.centered), spec.eps, weight, this.vectors.get(`${name}.bias`) ?? 0, y);
  }

  private weight(name: string): Linear {
    const weight = this.linears.get(name);
    if (!weight) throw new RangeError(`the file holds no weight ${name}`);
    return weight;
  }

  /** Adds the row of each number of a table to the rows of `x`, which it returns. */
  private addRows(name: string, rows: readonly number[], x: Float32Array): Float32Array {
    const { shape, data } = this.stored.get(name)!;
    const width = shape[1]!;
    const { ofRows, ofColumns } = this.scales(name);
    const values = ofRows ? new Int8Array(data.buffer, data.byteOffset, data.length) : data;
    rows.forEach((row, token) => {
      const scale = ofRows ? ofRows[row]! : 1;
      for (let d = 0; d < width; d++) {
        x[token * width + d]! += values[row * width + d]! * scale * (ofColumns ? ofColumns[d]! : 1);
      }
    });
    return x;
  }

  private pack(name: string): void {
    const { shape, data } = this.stored.get(`${name}.weight`)!;
    const { ofRows, ofColumns } = this.scales(`${name}.weight`);
    const [outputs, inputs] = shape as [number, number];
    const panels = this.room(panelFloats(outputs, inputs));
    const after = this.free;
    const source = this.place(data);
    if (ofRows && ofColumns) {
      this.kernels.pack_bytes(source, this.place(ofRows), this.place(ofColumns), outputs, inputs, panels);
    } else {
      this.kernels.pack_floats(source, outputs, inputs, panels);
    }
    this.free = after;
    this.linears.set(name, { panels, inputs, outputs });
  }

  /** The scales of an int8 weight; none of one that is float32. */
  private scales(name: string): { ofRows?: Numbers; ofColumns?: Numbers } {
    const [ofRows, ofColumns] = ['rows', 'columns'].map((of) => this.stored.get(`${name}.${of}`)?.data);
    return { ofRows, ofColumns };
  }

  /** Copies numbers to the module's memory. */
  private place(data: Numbers): number {
    const place = this.room(Math.ceil(data.byteLength / FLOAT));
    new Uint8Array(this.kernels.memory.buffer, place, data.byteLength).set(
      new Uint8Array(data.buffer, data.byteOffset, data.byteLength),
    );
    return place;
  }

  private copy(from: number, to: number, floats: number): void {
    new Uint8Array(this.kernels.memory.buffer).copyWithin(to, from, from + floats * FLOAT);
  }

  /** Room for so many floats; memory grows, and views of it that were made before are then of no use. */
  private room(floats: number): number {
    const place = Math.ceil(this.free / 16) * 16;
    this.free = place + floats * FLOAT;
    const { memory } = this.kernels;
    const missing = this.free - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
    return place;
  }
}

/** The row of each token in the table of positions; tokens of the id `left_out` are not counted. */
function places(ids: readonly number[], { offset, left_out }: { offset: number; left_out: number | null }): number[] {
  let next = offset;
  return ids.map((id) => (id === left_out ? offset - 1 : next++));
}
