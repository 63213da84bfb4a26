import { describe, expect, it } from 'vitest';
import type { Token } from '../src/api/types';
import { COLORS, palette, type Tone } from '../src/draw/color';
import {
  cellAt,
  coarsestLevel,
  contentSize,
  fittedZoom,
  held,
  layoutMap,
  levelOf,
  reveal,
  scaleOf,
  type Space,
  tickStep,
  visible,
  zoomsOf,
} from '../src/draw/layout';
import { drawAxes, type Ink } from '../src/draw/map';
import {
  automaticGain, codeOf, colorCode, colorIndexes, differenceCode, differencePixels, FLOOR, largestDifference, MOST_GAIN, pixelTable, probabilityOf, SCALES, ticks, ticksApart, tintWords,
  weightCode,
} from '../src/draw/scale';
import { stacked } from '../src/draw/stack';
import { PAGE, pageOf } from '../src/draw/strip';
import { codeAt, nameOf, placesIn } from '../src/draw/tiles';
import {
  exactWords,
  probabilityWords,
  segments,
  sentenceWords,
  shortWords,
  utf16Offsets,
} from '../src/draw/words';

describe('the axes of a map', () => {
  it('are named, whether the tokens have room for their names or not', () => {
    const ink: Ink = { paper: '', text: '', muted: '', query: '', key: '', font: '' };
    for (const tokens of [18, 4000]) {
      const written: string[] = [];
      const canvas = { width: 800, height: 600 };
      const known: Record<string, unknown> = { canvas, measureText: () => ({ width: 10 }), fillText: (words: string) => written.push(words) };
      const context = new Proxy({}, { get: (_, name) => known[name as string] ?? (() => {}), set: () => true });
      const layout = layoutMap({ tokens, width: 800, height: 600, ratio: 1, zoom: null, nameWidth: 40 });
      drawAxes(context as CanvasRenderingContext2D, layout, { x: 0, y: 0 }, Array(tokens).fill('name'), ink);
      expect(written).toContain('key →');
      expect(written).toContain('query ↓');
    }
  });
});

describe('scale', () => {
  it.each(SCALES)('%s runs over all colors, in order', (scale) => {
    expect(colorCode(scale, 0)).toBe(0);
    expect(colorCode(scale, 1)).toBe(255);
    expect(colorCode(scale, 1.0000001)).toBe(255);
    let before = 0;
    for (let step = 0; step <= 1000; step++) {
      const code = colorCode(scale, step / 1000);
      expect(code).toBeGreaterThanOrEqual(before);
      before = code;
    }
  });

  it('reads every code as the probability it stands for', () => {
    expect([0, 1, 255].map(probabilityOf)).toEqual([0, expect.closeTo(FLOOR, 12), 1]);
    for (let code = 0; code <= 255; code++) expect(codeOf(probabilityOf(code) * 1.0000001)).toBe(code);
    expect([0.5e-6, Number.NaN, 2].map(codeOf)).toEqual([0, 0, 255]);
    // Neighboring codes are 5.6 % apart.
    expect(probabilityOf(100) / probabilityOf(99)).toBeCloseTo(Math.exp(Math.log(1e6) / 254), 9);
  });

  it('strengthens and hides by the table alone', () => {
    const plain = colorIndexes({ scale: 'linear', gain: 0, clip: 0 });
    const strong = colorIndexes({ scale: 'linear', gain: 2, clip: 0 });
    const code = codeOf(0.1);
    expect(plain[code]).toBe(colorCode('linear', probabilityOf(code)));
    expect(strong[code]).toBe(colorCode('linear', 4 * probabilityOf(code)));
    expect(strong[codeOf(0.5)]).toBe(255);
    const clipped = colorIndexes({ scale: 'log', gain: 0, clip: 100 });
    expect([clipped[99], clipped[100]]).toEqual([0, colorCode('log', probabilityOf(100))]);
    expect(plain[0]).toBe(0);
  });

  it('brightens long texts by itself, where cells show means more than where they show the largest', () => {
    expect([1, 18, 362, 724].map((tokens) => automaticGain(tokens, 'sqrt', 'max'))).toEqual([0, 0, 0, 0]);
    expect([725, 2048, 4587, 8192].map((tokens) => automaticGain(tokens, 'linear', 'max'))).toEqual([1, 2, 3, 4]);
    expect([64, 128, 4096].map((tokens) => automaticGain(tokens, 'sqrt', 'mean'))).toEqual([0, 1, 6]);
    expect(automaticGain(8192, 'log', 'max')).toBe(0);
    expect(automaticGain(1e9, 'sqrt', 'mean')).toBe(MOST_GAIN);
  });

  it('colors differences by their size, in two hues from the middle', () => {
    const tint = { scale: 'sqrt', gain: 1, clip: codeOf(0.01) } as const;
    expect(weightCode(tint, 0.125)).toBe(128);
    expect([0.005, 0].map((weight) => weightCode(tint, weight))).toEqual([0, 0]);
    expect([0.5, -0.5, 0.125, -0.125].map((weight) => differenceCode(tint, weight))).toEqual([255, 0, 192, 64]);
    expect(differenceCode(tint, 0.005)).toBe(differenceCode(tint, 0));
  });

  it('says in words how a picture is colored', () => {
    expect(tintWords({ scale: 'sqrt', gain: 0, clip: 0 })).toBe('square-root scale');
    expect(tintWords({ scale: 'log', gain: 3, clip: 128 })).toBe('logarithmic scale, brightness × 8, hidden below 0.0010');
  });

  it('makes pixels of the colors, red first', () => {
    const colors = palette('light');
    const table = pixelTable(colors, { scale: 'sqrt', gain: 0, clip: 0 });
    const bytes = new Uint8Array(Uint32Array.of(table[255] as number).buffer);
    expect([...bytes]).toEqual([...colors.subarray(-3), 255]);
  });

  it('colors the difference of two maps by its sign and size', () => {
    const hues = Uint8Array.from({ length: 768 }, (_, at) => Math.floor(at / 3));
    const [now, before] = [Uint8Array.of(255, 255, 0, 200), Uint8Array.of(255, 0, 255, 0)];
    const most = largestDifference(now.subarray(3), before.subarray(3));
    expect(most).toBe(probabilityOf(200));
    const red = (pixels: Uint32Array) => [...pixels].map((pixel) => pixel & 255);
    expect(red(differencePixels(now, before, hues, 1))).toEqual([128, 255, 0, differenceCode({ scale: 'sqrt', gain: 0, clip: 0 }, most)]);
    expect(red(differencePixels(now, before, hues, most))[3]).toBe(255);
  });

  it('places its marks in order', () => {
    for (const scale of SCALES) {
      const places = ticks(scale).map((tick) => tick.place);
      expect(places).toEqual([...places].sort((a, b) => a - b));
      expect([places[0], places.at(-1)]).toEqual([0, expect.closeTo(1, 12)]);
    }
    expect(ticks('linear', 2).at(-1)?.label).toBe('≥ 0.25');
  });

  it('has as many marks as have room, and always both ends', () => {
    const all = ticks('sqrt', 2);
    expect(ticksApart(all, 600)).toEqual(all);
    for (const width of [90, 130, 160, 240]) {
      const kept = ticksApart(all, width);
      expect(kept.at(0)).toEqual(all.at(0));
      expect(kept.at(-1)).toEqual(all.at(-1));
      const ends = kept.map(({ place: at, label }) => [at * width - 3.3 * label.length, at * width + 3.3 * label.length] as const);
      for (let at = 1; at < ends.length; at++) expect(ends[at]?.[0]).toBeGreaterThan(ends[at - 1]?.[1] ?? 0);
    }
  });
});

/** CIE lightness of a color: what is left of it without color vision. */
function lightness(colors: Uint8Array, code: number): number {
  const linear = [...colors.subarray(3 * code, 3 * code + 3)].map((byte) => {
    const value = byte / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const [red = 0, green = 0, blue = 0] = linear;
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.008856 ? 116 * Math.cbrt(luminance) - 16 : 903.3 * luminance;
}

describe('color', () => {
  it.each(['light', 'dark'] as Tone[])('%s changes lightness evenly', (tone) => {
    const colors = palette(tone);
    const steps: number[] = [];
    for (let code = 8; code < COLORS; code += 8) {
      steps.push(lightness(colors, code) - lightness(colors, code - 8));
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

const space: Space = { tokens: 10, width: 600, height: 500, ratio: 1, zoom: null, nameWidth: 40 };

describe('layout', () => {
  it('has cells of whole pixels, and fits', () => {
    for (const ratio of [1, 1.25, 2]) {
      for (const tokens of [1, 2, 10, 64, 200, 400, 3000, 8192]) {
        const layout = layoutMap({ ...space, tokens, ratio });
        const size = contentSize(layout);
        expect(Number.isInteger(layout.cell) && layout.cell >= 1).toBe(true);
        expect(layout.level).toBeLessThanOrEqual(coarsestLevel(tokens));
        expect(size.width <= space.width && size.height <= space.height).toBe(true);
      }
    }
  });

  it('has steps of half an octave', () => {
    for (let zoom = -12; zoom < 12; zoom++) {
      const grown = scaleOf(zoom + 1) / scaleOf(zoom);
      expect(grown === 1.5 || Math.abs(grown - 4 / 3) < 1e-12).toBe(true);
      expect(Number.isInteger(scaleOf(zoom) * 2 ** levelOf(zoom))).toBe(true);
    }
    expect([0, 2, 3, -1, -2].map(levelOf)).toEqual([0, 0, 0, 2, 1]);
  });

  it('offers only zooms whose tiles there are', () => {
    expect(zoomsOf(200)).toEqual([0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    expect(zoomsOf(8192)[0]).toBe(-10);
  });

  it('names tokens only where a name has room', () => {
    expect(layoutMap(space).named).toBe(true);
    expect(layoutMap({ ...space, tokens: 100 }).named).toBe(false);
    expect(layoutMap({ ...space, tokens: 100, zoom: 10 }).named).toBe(true);
  });

  it('is never smaller than fitted', () => {
    for (const tokens of [3, 100, 512, 5000]) {
      const fitted = layoutMap({ ...space, tokens, zoom: fittedZoom({ ...space, tokens }) });
      let before = 0;
      for (let zoom = -12; zoom <= 12; zoom++) {
        const { scale } = layoutMap({ ...space, tokens, zoom });
        expect(scale).toBeGreaterThanOrEqual(Math.max(before, fitted.scale));
        before = scale;
      }
    }
  });

  it('finds the cell under a point, scrolled or not', () => {
    const layout = layoutMap({ ...space, tokens: 100, ratio: 2 });
    const x = (layout.left + 7.5 * layout.scale) / 2;
    const y = (layout.top + 3.5 * layout.scale) / 2;
    expect(cellAt(layout, { x: 0, y: 0 }, x, y)).toEqual({ query: 3, key: 7 });
    const scroll = { x: 10 * layout.scale, y: 20 * layout.scale };
    expect(cellAt(layout, scroll, x, y)).toEqual({ query: 23, key: 17 });
    expect(cellAt(layout, scroll, 1, y)).toBeNull();
    expect(cellAt(layout, { x: 95 * layout.scale, y: 0 }, x, y)).toBeNull();
  });

  it('knows what can be seen, brings a token into sight, and holds one under the pointer', () => {
    const layout = { ...layoutMap({ ...space, tokens: 100, zoom: 6 }), scale: 10, cell: 10, top: 30 };
    expect(visible(layout, layout.top, 0, 130)).toEqual({ start: 0, stop: 10 });
    expect(visible(layout, layout.top, 25, 130)).toEqual({ start: 2, stop: 13 });
    expect(reveal(layout, layout.top, 0, 130, 5)).toBe(0);
    expect(reveal(layout, layout.top, 0, 130, 12)).toBe(30);
    expect(reveal(layout, layout.top, 300, 130, 12)).toBe(120);
    expect(held(layout, 40, 100)).toBe(300);
    expect(held(layout, 4, 100)).toBe(0);
  });

  it('numbers an axis in round steps', () => {
    expect([1, 4, 11].map((scale) => tickStep({ ...layoutMap(space), scale }))).toEqual([50, 20, 5]);
  });
});

describe('tiles', () => {
  const layout = layoutMap({ ...space, tokens: 2000, zoom: 2 });

  it('are those in the window, the middle first', () => {
    const places = placesIn(layout, { x: 0, y: 600 }, layout.left + 600, layout.top + 300);
    expect(places.map(nameOf).sort()).toEqual(['0/1/0', '0/1/1']);
    const large = placesIn(layout, { x: 0, y: 0 }, 1600, 1600);
    expect(large.map(nameOf)[0]).toBe('0/1/1');
    expect(new Set(large.map(nameOf)).size).toBe(large.length);
  });

  it('end with the text', () => {
    const places = placesIn(layout, { x: 3900, y: 3900 }, 5000, 5000);
    expect(Math.max(...places.map(({ x }) => x))).toBe(Math.ceil(2000 / 256) - 1);
  });

  it('give the code of a token at any level', () => {
    const codes = Uint8Array.from({ length: 16 }, (_, at) => at);
    const here = new Map([['1/0/0', { level: 1, y: 0, x: 0, rows: 4, columns: 4, codes }]]);
    expect(codeAt(here, 1, 3, 5)).toBe(1 * 4 + 2);
    expect(codeAt(here, 0, 3, 5)).toBeUndefined();
  });
});

describe('stacked bars', () => {
  it('fill the bar whatever the masses sum to', () => {
    const { layers } = stacked(['a', 'b'], [{ layer: 3, mass: { a: 0.9, b: 0.3 } }]);
    expect(layers[0]?.parts.map(({ share }) => share)).toEqual([0.75, 0.25]);
    expect(layers[0]?.parts[1]?.from).toBe(0.75);
  });
});

describe('pages of a long text', () => {
  const parts = Array.from({ length: 5 * PAGE }, (_, at) => ({
    token: at % 2 === 0 ? at / 2 : null, text: String(at), special: false, cut: false,
  }));

  it('hold everything once, in order', () => {
    const pages = [0, 1, 2].flatMap((page) => pageOf(parts, page));
    expect(pages.map(({ text }) => text)).toEqual(parts.map(({ text }) => text));
    expect(pageOf(parts, 1).filter(({ token }) => token !== null)).toHaveLength(PAGE);
    expect(pageOf(parts.slice(0, 9), 0)).toHaveLength(9);
  });
});

function token(surface: string, start: number, end: number, special = false): Token {
  return { id: 0, piece: surface, surface, start, end, special, in_pair: false, word: 0, category: 'word' };
}

describe('words', () => {
  it('counts code points where a string counts UTF-16 units', () => {
    expect([...utf16Offsets('a🙂b')]).toEqual([0, 1, 3, 4]);
  });

  it('keeps every character of the text', () => {
    const text = '🙂 a  b!';
    const found = segments(
      text,
      '',
      [token('[CLS]', 0, 0, true), token('🙂', 0, 1), token('a', 2, 3), token('b', 5, 6), token('!', 6, 7), token('[SEP]', 0, 0, true)],
      false,
    );
    expect(found.map((part) => part.text)).toEqual(['[CLS]', '🙂', ' ', 'a', '  ', 'b', '!', '[SEP]']);
    expect(found.map((part) => part.token)).toEqual([0, 1, null, 2, null, 3, 4, 5]);
  });

  it('shows a pair as two texts, each with its own offsets', () => {
    const second = { ...token('c', 1, 2), in_pair: true };
    const found = segments('a b', ' c!', [token('a', 0, 1), token('b', 2, 3), token('[SEP]', 0, 0, true), second], false);
    expect(found.map((part) => part.text)).toEqual(['a', ' ', 'b', '[SEP]', ' ', 'c', '!']);
  });

  it('marks what was cut, behind the closing special token', () => {
    const found = segments('a b c ', '', [token('a', 0, 1), token('[SEP]', 0, 0, true)], true);
    expect(found.map((part) => [part.text, part.cut])).toEqual([
      ['a', false],
      ['[SEP]', false],
      [' b c ', true],
    ]);
  });

  it('shows tokens that share characters, and spaces inside a token', () => {
    const found = segments('🙂 x', '', [token('🙂', 0, 1), token('🙂', 0, 1), token(' x', 1, 3)], false);
    expect(found.map((part) => part.text)).toEqual(['🙂', '🙂', '␣x']);
  });

  it('writes numbers and sentences', () => {
    expect([0, 0.31274, 0.00099].map(probabilityWords)).toEqual(['0.0000', '0.3127', '9.90e-4']);
    expect([0, 0.31274, 1e-12].map(shortWords)).toEqual(['0.0000', '0.3127', '1.0e-12']);
    expect(exactWords(Math.fround(0.3127))).toBe('0.3127');
    expect(sentenceWords('it is so')).toBe('It is so.');
    expect(sentenceWords('Is it?')).toBe('Is it?');
  });
});
