import { describe, expect, it, vi } from 'vitest';
import { decode } from '../src/api/binary';
import { SavedSource } from '../src/api/saved';
import { Refused } from '../src/api/source';
import { Cache } from '../src/state/answers.svelte';
import { cutTile } from '../src/state/head.svelte';
import { actionOf, BINDINGS } from '../src/state/keys';
import { wrap } from '../src/state/keys';
import { Lines } from '../src/state/rows.svelte';
import { Tiles } from '../src/state/tiles.svelte';
import { codeOf, probabilityOf } from '../src/draw/scale';
import { nameOf, type Place, type Tile } from '../src/draw/tiles';
import { DEFAULTS, formatHash, parseHash, POOLS, THEMES, type ViewState, spansOf, SPECIALS, WEIGHTS } from '../src/state/url';
import { SCALES } from '../src/draw/scale';

/** A number generator with a seed (mulberry32). */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

describe('address', () => {
  it('holds ranges that become global, and leaves out what is none', () => {
    expect(spansOf('4-9,x,20-31,7,-3-5')).toEqual([[4, 9], [20, 31]]);
    expect(spansOf('')).toEqual([]);
  });

  const state: ViewState = {
    text: 'a+b & c=#🙂\n%20',
    against: 'a-b & c=#🙂',
    againstPair: '+',
    global: '4-9,20-31',
    pair: 'and & this',
    model: 'a/b-c d',
    beside: 'e',
    cut: true,
    view: 'flow',
    layer: 3,
    head: 5,
    query: 0,
    key: 12,
    weight: 'norm',
    special: 'hide',
    pool: 'mean',
    scale: 'log',
    gain: 3,
    clip: 120,
    zoom: -4,
    top: 17,
    left: 400,
    theme: 'dark',
    more: { 'paths.level': '3', 'map.by': 'words' },
  };

  it('returns what was put in', () => {
    expect(parseHash(formatHash(state))).toEqual(state);
    expect(parseHash(formatHash(DEFAULTS))).toEqual(DEFAULTS);
    // Brightness that was set back by hand is not the automatic one.
    expect(formatHash({ ...DEFAULTS, gain: 0 })).toBe('#v=3&gain=0');
    expect(parseHash('#v=3&gain=0').gain).toBe(0);
    expect(formatHash(DEFAULTS)).toBe('#v=3');
  });

  it('returns any state that was put in', () => {
    const random = generator(7);
    const whole = (most: number) => Math.floor(random() * most);
    const pick = <T>(all: readonly T[]) => all[whole(all.length)] as T;
    const text = () => Array.from({ length: whole(12) }, () => String.fromCodePoint(32 + whole(random() < 0.5 ? 95 : 60000 - 32))).join('').replace(/[\ud800-\udfff]/g, '');
    for (let round = 0; round < 300; round++) {
      const drawn: ViewState = {
        text: text(), pair: text(), against: text(), againstPair: text(), global: '', model: text(), beside: text(),
        cut: random() < 0.5, view: pick(['overview', 'map', 'heads', 'tour']),
        layer: whole(30), head: whole(30),
        query: random() < 0.3 ? null : whole(9000), key: random() < 0.3 ? null : whole(9000),
        weight: pick(WEIGHTS), special: pick(SPECIALS), pool: pick(POOLS), scale: pick(SCALES), theme: pick(THEMES),
        gain: random() < 0.3 ? null : whole(13), clip: whole(255), zoom: random() < 0.3 ? null : whole(25) - 12,
        top: whole(9000), left: whole(9000),
        more: random() < 0.5 ? {} : { 'a.b': text(), 'c.d': String(whole(9)) },
      };
      expect(parseHash(formatHash(drawn))).toEqual(drawn);
    }
  });

  it('takes defaults for what it cannot read', () => {
    expect(parseHash('')).toEqual(DEFAULTS);
    expect(parseHash('#v=4&text=a')).toEqual(DEFAULTS);
    expect(parseHash('#v=3&layer=-1&head=x&query=1.5&scale=cube&theme=&zoom=99&gain=1e3&clip=999')).toEqual({
      ...DEFAULTS,
      zoom: 12,
      clip: 254,
    });
  });

  it('opens the overview of a text where no view is named, the first view without a text, and what an older address opened', () => {
    expect(parseHash('#v=3&text=a').view).toBe('overview');
    expect(parseHash('#v=3&text=a&view=map').view).toBe('map');
    expect(formatHash({ ...DEFAULTS, text: 'a', view: 'map' })).toContain('view=map');
    expect(parseHash('#v=2&text=a&layer=3').view).toBe('map');
    expect(parseHash('#v=2&text=a&view=heads').view).toBe('heads');
    // Without a text there was nothing to see.
    expect(parseHash('#v=2&theme=dark')).toEqual({ ...DEFAULTS, theme: 'dark' });
    expect(parseHash('#v=1&layer=2').view).toBe('start');
    expect(parseHash('#v=3').view).toBe('start');
    expect(parseHash(formatHash({ ...DEFAULTS, view: 'overview' })).view).toBe('overview');
  });

  it('reads what Python writes, and addresses of the first version', () => {
    expect(parseHash('#v=3&text=a%2Bb%20c').text).toBe('a+b c');
    expect(parseHash('#v=1&text=a%20b&layer=2&head=1&query=3&scale=log&zoom=4&side=table')).toEqual({
      ...DEFAULTS, view: 'map', text: 'a b', layer: 2, head: 1, query: 3, scale: 'log',
    });
  });
});

describe('keys', () => {
  const press = (key: string, modifiers: Partial<KeyboardEvent> = {}, altGr = false) =>
    ({ key, getModifierState: () => altGr, ...modifiers }) as unknown as KeyboardEvent;

  it('leaves arrows and shortcuts alone outside the pictures', () => {
    expect(actionOf(press('ArrowDown'), true, BINDINGS)).toEqual({ do: 'query', by: 1 });
    expect(actionOf(press('ArrowDown'), false, BINDINGS)).toBeNull();
    expect(actionOf(press('n', { ctrlKey: true }), true, BINDINGS)).toBeNull();
    const typed = press(']', { ctrlKey: true, altKey: true }, true);
    expect(actionOf(typed, false, BINDINGS)).toEqual({ do: 'layer', by: 1 });
  });

  it('goes round at both ends', () => {
    expect([wrap(-1, 5), wrap(5, 5), wrap(3, 5)]).toEqual([4, 0, 3]);
  });
});

/** A container of one array, written by hand. */
function container(magic: string, header: object, data: number[]): ArrayBuffer {
  const json = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil((8 + json.length) / 8) * 8 - 8;
  const buffer = new ArrayBuffer(8 + length + 4 * data.length);
  const bytes = new Uint8Array(buffer).fill(32, 8, 8 + length);
  bytes.set([...magic].map((letter) => letter.charCodeAt(0)));
  bytes.set(json, 8);
  new DataView(buffer).setUint32(4, length, true);
  new Float32Array(buffer, 8 + length).set(data);
  return buffer;
}

describe('binary', () => {
  const header = { arrays: [{ name: 'p', dtype: 'f4', shape: [1, 2], offset: 0 }], meta: { part: 'é' } };

  it('reads its own container and nothing else', () => {
    const { arrays, meta } = decode(container('UMK2', header, [0.25, 0.75]));
    expect(arrays.get('p')).toEqual({ shape: [1, 2], data: Float32Array.of(0.25, 0.75) });
    expect(meta).toEqual({ part: 'é' });
    expect(() => decode(container('UMK1', header, [0.25, 0.75]))).toThrow(RangeError);
    expect(() => decode(container('UMK2', header, [0.25]))).toThrow('longer');
    expect(() => decode(new ArrayBuffer(3))).toThrow('short');
  });
});

describe('a saved page', () => {
  const saved = SavedSource.of(
    JSON.stringify({
      hash: '#v=2',
      stamp: '',
      answers: {
        'texts/ab': { status: 200, type: 'application/json', data: '{"name":"é"}' },
        'texts/ab/heads': { status: 200, type: 'application/octet-stream', data: btoa('\u0000\u00ff') },
      },
    }),
  );

  it('answers what it holds and refuses the rest in words', async () => {
    expect(new TextDecoder().decode((await saved.get('texts/ab')).data)).toBe('{"name":"é"}');
    expect([...new Uint8Array((await saved.get('texts/ab/heads')).data)]).toEqual([0, 255]);
    expect(saved.texts).toEqual(['texts/ab']);
    await expect(saved.get('texts/cd')).rejects.toThrow(Refused);
    await expect(saved.post()).rejects.toThrow('saved');
  });
});

describe('cache', () => {
  it('drops what was used longest ago', async () => {
    const cache = new Cache(100);
    for (const name of ['a', 'b', 'c']) cache.put(name, Promise.resolve(name));
    cache.weigh('a', 40);
    cache.weigh('b', 40);
    expect(await cache.get('a')).toBe('a');
    cache.weigh('c', 40);
    expect(cache.get('b')).toBeUndefined();
    expect(await cache.get('a')).toBe('a');
    cache.weigh('c', 1000);
    expect(await cache.get('c')).toBe('c');
    expect(cache.get('a')).toBeUndefined();
  });
});

describe('tiles', () => {
  const tile = (place: Place): Tile => ({ ...place, rows: 1, columns: 1, codes: Uint8Array.of(7) });

  it('fetches a few at a time and forgets what is no longer in sight', async () => {
    const waiting = new Map<string, () => void>();
    const tiles = new Tiles('k', (place) => new Promise((resolve) => waiting.set(nameOf(place), () => resolve(tile(place)))));
    const at = (x: number): Place => ({ level: 0, y: 0, x });
    tiles.want([0, 1, 2, 3, 4].map(at));
    expect([...waiting.keys()]).toEqual(['0/0/0', '0/0/1', '0/0/2']);
    tiles.want([9].map(at));
    for (const answer of [...waiting.values()]) answer();
    await vi.waitFor(() => expect(waiting.size).toBe(4));
    expect([...waiting.keys()].at(-1)).toBe('0/0/9');
    waiting.get('0/0/9')?.();
    await vi.waitFor(() => expect(tiles.arrivals).toBe(4));
    expect(tiles.among([at(9), at(3)])).toHaveLength(1);
    tiles.want([at(9)]);
    expect(waiting.size).toBe(4);
  });

  it('pools exact values as the server does', () => {
    const random = generator(3);
    const count = 7;
    const values = Float32Array.from({ length: count * count }, () => random());
    const most = cutTile(values, count, { level: 1, y: 0, x: 0 }, 'max');
    const mean = cutTile(values, count, { level: 1, y: 0, x: 0 }, 'mean');
    expect([most.rows, most.columns]).toEqual([4, 4]);
    const cell = [2, 3].flatMap((row) => [4, 5].map((column) => values[row * count + column] as number));
    expect(most.codes[1 * 4 + 2]).toBe(codeOf(Math.max(...cell)));
    expect(mean.codes[1 * 4 + 2]).toBe(codeOf(cell.reduce((a, b) => a + b) / 4));
    // The last cell holds one token each way.
    expect(probabilityOf(mean.codes[15] as number)).toBeCloseTo(values[48] as number, 1);
  });
});

describe('lines', () => {
  it('asks for whole rows, several at once, when the pointer rests', async () => {
    const asked: [number, number][] = [];
    const lines = new Lines('k', 200, async (start, stop) => {
      asked.push([start, stop]);
      return Float32Array.from({ length: (stop - start) * 200 }, (_, at) => start * 200 + at);
    });
    expect(lines.get(150)).toBeUndefined();
    expect(lines.get(3)).toBeUndefined();
    await vi.waitFor(() => expect(lines.get(3)?.[5]).toBe(3 * 200 + 5));
    expect(asked).toEqual([[0, 200]]);
    expect(lines.get(150)?.[0]).toBe(150 * 200);
    expect(lines.get(200)).toBeUndefined();
  });
});
