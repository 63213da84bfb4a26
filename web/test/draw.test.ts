import { describe, expect, it } from 'vitest';
import type { Token } from '../src/api/types';
import { COLOURS, palette, type Tone } from '../src/draw/colour';
import { curve, flowRows, largest, WHOLE_TEXT } from '../src/draw/flow';
import {
  cellAt,
  contentSize,
  layoutMap,
  reveal,
  type Space,
  tickStep,
  visible,
} from '../src/draw/layout';
import { colourCode, LOG_FLOOR, SCALES, ticks } from '../src/draw/scale';
import {
  exactWords,
  probabilityWords,
  segments,
  sentenceWords,
  shortWords,
  utf16Offsets,
} from '../src/draw/words';

describe('scale', () => {
  it.each(SCALES)('%s runs over all colours, in order', (scale) => {
    expect(colourCode(scale, 0)).toBe(0);
    expect(colourCode(scale, 1)).toBe(255);
    expect(colourCode(scale, 1.0000001)).toBe(255);
    let before = 0;
    for (let step = 0; step <= 1000; step++) {
      const code = colourCode(scale, step / 1000);
      expect(code).toBeGreaterThanOrEqual(before);
      before = code;
    }
  });

  it('has its first colour up to the floor of the logarithm', () => {
    expect(colourCode('log', LOG_FLOOR)).toBe(0);
    expect(colourCode('log', 0.01)).toBe(128);
  });

  it('places its marks in order', () => {
    for (const scale of SCALES) {
      const places = ticks(scale).map((tick) => tick.place);
      expect(places).toEqual([...places].sort((a, b) => a - b));
      expect([places[0], places.at(-1)]).toEqual([0, 1]);
    }
  });
});

/** CIE lightness of a colour: what is left of it without colour vision. */
function lightness(colours: Uint8Array, code: number): number {
  const linear = [...colours.subarray(3 * code, 3 * code + 3)].map((byte) => {
    const value = byte / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const [red = 0, green = 0, blue = 0] = linear;
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.008856 ? 116 * Math.cbrt(luminance) - 16 : 903.3 * luminance;
}

describe('colour', () => {
  it.each(['light', 'dark'] as Tone[])('%s changes lightness evenly', (tone) => {
    const colours = palette(tone);
    const steps: number[] = [];
    for (let code = 8; code < COLOURS; code += 8) {
      steps.push(lightness(colours, code) - lightness(colours, code - 8));
    }
    const sign = tone === 'dark' ? 1 : -1;
    for (const step of steps) {
      expect(sign * step).toBeGreaterThan(1.2);
      expect(sign * step).toBeLessThan(5);
    }
  });

  it('runs the other way on a light page', () => {
    const [light, dark] = [palette('light'), palette('dark')];
    expect([...light.subarray(0, 3)]).toEqual([...dark.subarray(-3)]);
    expect(lightness(light, 0)).toBeGreaterThan(95);
    expect(lightness(dark, 0)).toBeLessThan(12);
  });
});

const space: Space = { tokens: 10, width: 600, height: 500, ratio: 1, zoom: 0, nameWidth: 40 };

describe('layout', () => {
  it('has whole cells and fits', () => {
    for (const ratio of [1, 1.25, 2]) {
      for (const tokens of [1, 2, 10, 64, 200, 400]) {
        const layout = layoutMap({ ...space, tokens, ratio });
        const size = contentSize(layout);
        expect(Number.isInteger(layout.cell) && layout.cell >= 1).toBe(true);
        expect(Math.min(size.width / space.width, size.height / space.height)).toBeLessThan(1.01);
      }
    }
  });

  it('names tokens only where a name has room', () => {
    expect(layoutMap(space).named).toBe(true);
    expect(layoutMap({ ...space, tokens: 100 }).named).toBe(false);
    expect(layoutMap({ ...space, tokens: 100, zoom: 3 }).named).toBe(true);
  });

  it('never shrinks a cell when zoomed', () => {
    for (const tokens of [3, 30, 38, 40, 100, 512, 5000]) {
      let before = 0;
      for (let zoom = 0; zoom <= 5; zoom++) {
        const { cell } = layoutMap({ ...space, tokens, zoom });
        expect(cell).toBeGreaterThanOrEqual(before);
        before = cell;
      }
    }
  });

  it('finds the cell under a point, scrolled or not', () => {
    const layout = layoutMap({ ...space, tokens: 100, ratio: 2 });
    const x = (layout.left + 7.5 * layout.cell) / 2;
    const y = (layout.top + 3.5 * layout.cell) / 2;
    expect(cellAt(layout, { x: 0, y: 0 }, x, y)).toEqual({ query: 3, key: 7 });
    const scroll = { x: 10 * layout.cell, y: 20 * layout.cell };
    expect(cellAt(layout, scroll, x, y)).toEqual({ query: 23, key: 17 });
    expect(cellAt(layout, scroll, 1, y)).toBeNull();
    expect(cellAt(layout, { x: 95 * layout.cell, y: 0 }, x, y)).toBeNull();
  });

  it('knows what can be seen and brings a token into sight', () => {
    const layout = { ...layoutMap({ ...space, tokens: 100 }), cell: 10, top: 30 };
    expect(visible(layout, layout.top, 0, 130)).toEqual({ start: 0, stop: 10 });
    expect(visible(layout, layout.top, 25, 130)).toEqual({ start: 2, stop: 13 });
    expect(reveal(layout, layout.top, 0, 130, 5)).toBe(0);
    expect(reveal(layout, layout.top, 0, 130, 12)).toBe(30);
    expect(reveal(layout, layout.top, 300, 130, 12)).toBe(120);
  });

  it('numbers an axis in round steps', () => {
    expect([1, 4, 11].map((cell) => tickStep({ ...layoutMap(space), cell }))).toEqual([50, 10, 5]);
  });
});

describe('flow', () => {
  it('takes the largest, ties in order', () => {
    const values = Float32Array.of(0.1, 0.5, 0.1, 0.3, 0.5);
    expect(largest(values, 3).map((edge) => edge.token)).toEqual([1, 4, 3]);
    expect(largest(values, 4).map((edge) => edge.token)).toEqual([1, 4, 3, 0]);
    expect(largest(values, 9)).toHaveLength(5);
  });

  it('shows short texts whole and long ones with gaps that add up', () => {
    expect(flowRows(WHOLE_TEXT, [])).toHaveLength(WHOLE_TEXT);
    const rows = flowRows(100, [7, 3, 99, 4, 3]);
    expect(rows).toEqual([
      { gap: 3 },
      { token: 3 },
      { token: 4 },
      { gap: 2 },
      { token: 7 },
      { gap: 91 },
      { token: 99 },
    ]);
  });

  it('draws curves that end level', () => {
    expect(curve(0, 1, 10, 5)).toBe('M0,1C5,1 5,5 10,5');
  });
});

function token(surface: string, start: number, end: number, special = false): Token {
  return { id: 0, piece: surface, surface, start, end, special };
}

describe('words', () => {
  it('counts code points where a string counts UTF-16 units', () => {
    expect([...utf16Offsets('a🙂b')]).toEqual([0, 1, 3, 4]);
  });

  it('keeps every character of the text', () => {
    const text = '🙂 a  b!';
    const found = segments(
      text,
      [token('[CLS]', 0, 0, true), token('🙂', 0, 1), token('a', 2, 3), token('b', 5, 6), token('!', 6, 7), token('[SEP]', 0, 0, true)],
      false,
    );
    expect(found.map((part) => part.text)).toEqual(['[CLS]', '🙂', ' ', 'a', '  ', 'b', '!', '[SEP]']);
    expect(found.map((part) => part.token)).toEqual([0, 1, null, 2, null, 3, 4, 5]);
  });

  it('marks what was cut, behind the closing special token', () => {
    const found = segments('a b c ', [token('a', 0, 1), token('[SEP]', 0, 0, true)], true);
    expect(found.map((part) => [part.text, part.cut])).toEqual([
      ['a', false],
      ['[SEP]', false],
      [' b c ', true],
    ]);
  });

  it('shows tokens that share characters, and spaces inside a token', () => {
    const found = segments('🙂 x', [token('🙂', 0, 1), token('🙂', 0, 1), token(' x', 1, 3)], false);
    expect(found.map((part) => part.text)).toEqual(['🙂', '🙂', '␣x']);
  });

  it('writes numbers and sentences', () => {
    expect([0, 0.31274, 0.00099].map(probabilityWords)).toEqual(['0.0000', '0.3127', '9.90e-4']);
    expect([0, 0.31274, 1e-12].map(shortWords)).toEqual(['0.0000', '0.3127', '1.0e-12']);
    expect(exactWords(Math.fround(0.3127))).toBe('0.312700003');
    expect(sentenceWords('it is so')).toBe('It is so.');
    expect(sentenceWords('Is it?')).toBe('Is it?');
  });
});
