import { describe, expect, it, vi } from 'vitest';
import { decode } from '../src/api/binary';
import { actionOf, BINDINGS } from '../src/state/keys';
import { Matrix, TILE } from '../src/state/matrix';
import { DEFAULTS, formatHash, parseHash, type ViewState } from '../src/state/url';

describe('address', () => {
  it('returns what was put in', () => {
    const state: ViewState = {
      text: 'a+b & c=#🙂\n%20',
      cut: true,
      layer: 3,
      head: 5,
      query: 0,
      key: 12,
      scale: 'log',
      measure: 'distance',
      side: 'table',
      zoom: 2,
      theme: 'dark',
    };
    expect(parseHash(formatHash(state))).toEqual(state);
    expect(parseHash(formatHash(DEFAULTS))).toEqual(DEFAULTS);
    expect(formatHash(DEFAULTS)).toBe('#v=1');
  });

  it('takes defaults for what it cannot read', () => {
    expect(parseHash('')).toEqual(DEFAULTS);
    expect(parseHash('#v=2&text=a')).toEqual(DEFAULTS);
    expect(parseHash('#v=1&layer=-1&head=x&query=1.5&scale=cube&theme=&zoom=99')).toEqual({
      ...DEFAULTS,
      zoom: 5,
    });
  });

  it('reads what Python writes', () => {
    expect(parseHash('#v=1&text=a%2Bb%20c').text).toBe('a+b c');
  });
});

describe('keys', () => {
  const press = (key: string, modifiers: Partial<KeyboardEvent> = {}, altGr = false) =>
    ({ key, getModifierState: () => altGr, ...modifiers }) as unknown as KeyboardEvent;

  it('has one action for a key', () => {
    expect(new Set(BINDINGS.map(({ key }) => key)).size).toBe(BINDINGS.length);
  });

  it('leaves arrows and shortcuts alone outside the map', () => {
    expect(actionOf(press('ArrowDown'), true)).toEqual({ do: 'query', by: 1 });
    expect(actionOf(press('ArrowDown'), false)).toBeNull();
    expect(actionOf(press('t', { ctrlKey: true }), true)).toBeNull();
    expect(actionOf(press(']', { ctrlKey: true, altKey: true }, true), false)).toEqual({
      do: 'layer',
      by: 1,
    });
  });
});

function answer(rows: number, columns: number, kind: number, values: number[]): ArrayBuffer {
  const buffer = new ArrayBuffer(16 + 4 * values.length);
  const view = new DataView(buffer);
  [...'UMK1'].forEach((letter, at) => {
    view.setUint8(at, letter.charCodeAt(0));
  });
  [rows, columns, kind].forEach((value, at) => {
    view.setUint32(4 + 4 * at, value, true);
  });
  values.forEach((value, at) => {
    view.setFloat32(16 + 4 * at, value, true);
  });
  return buffer;
}

describe('binary', () => {
  it('reads its own kind and nothing else', () => {
    const grid = decode(answer(1, 2, 1, [0.25, 0.75]), 'probabilities');
    expect(grid).toEqual({ rows: 1, columns: 2, values: Float32Array.of(0.25, 0.75) });
    expect(decode(answer(1, 1, 2, [1, 2, 3]), 'heads').values).toHaveLength(3);
    expect(() => decode(answer(1, 2, 2, [1, 2]), 'probabilities')).toThrow('not probabilities');
    expect(() => decode(answer(1, 2, 1, [1]), 'probabilities')).toThrow('header');
    expect(() => decode(new ArrayBuffer(3), 'heads')).toThrow('short');
  });
});

describe('matrix', () => {
  const at = (query: number, key: number) => query * 10_000 + key;

  function made(tokens: number) {
    const load = vi.fn(async (rows: { start: number; stop: number }, columns: { start: number; stop: number }) => {
      const values: number[] = [];
      for (let row = rows.start; row < rows.stop; row++) {
        for (let column = columns.start; column < columns.stop; column++) values.push(at(row, column));
      }
      return Float32Array.from(values);
    });
    const arrived = vi.fn();
    return { matrix: new Matrix(0, 0, tokens, load, arrived, () => {}), load, arrived };
  }

  it('asks once for a short text and has everything then', async () => {
    const { matrix, load, arrived } = made(20);
    expect(matrix.within({ start: 0, stop: 5 }, { start: 3, stop: 9 })).toEqual([]);
    expect(matrix.row(3)).toBeUndefined();
    expect(matrix.value(3, 4)).toBeUndefined();
    await vi.waitFor(() => expect(arrived).toHaveBeenCalled());
    expect(matrix.value(3, 4)).toBe(at(3, 4));
    expect(matrix.row(3)?.[19]).toBe(at(3, 19));
    expect(matrix.column(3)?.[19]).toBe(at(19, 3));
    expect(load).toHaveBeenCalledTimes(1);
  });

  it('asks for the tiles and lines of a long text as they are needed', async () => {
    const tokens = 2 * TILE + 10;
    const { matrix, load, arrived } = made(tokens);
    const edge = { start: TILE - 2, stop: TILE + 2 };
    matrix.within(edge, { start: 0, stop: 4 });
    matrix.row(tokens - 1);
    await vi.waitFor(() => expect(arrived).toHaveBeenCalledTimes(3));
    expect(matrix.within(edge, { start: 0, stop: 4 })).toHaveLength(2);
    expect(matrix.value(TILE + 1, 3)).toBe(at(TILE + 1, 3));
    expect(matrix.value(TILE + 1, TILE)).toBeUndefined();
    expect(matrix.row(tokens - 1)).toHaveLength(tokens);
    matrix.within({ start: tokens - 1, stop: tokens }, { start: tokens - 1, stop: tokens });
    await vi.waitFor(() => expect(arrived).toHaveBeenCalledTimes(4));
    expect(matrix.value(tokens - 1, tokens - 1)).toBe(at(tokens - 1, tokens - 1));
    expect(load).toHaveBeenCalledTimes(4);
  });
});
