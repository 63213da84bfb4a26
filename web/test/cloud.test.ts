import { describe, expect, it } from 'vitest';
import * as draw from '../src/draw/cloud';
import { hueBytes, kinds, nameRanks, receivedShares, sentencesOf, shareBytes } from '../src/draw/cloudcolors';
import { groupMeans, pathOf, rgbOf, type Scene } from '../src/draw/cloudscene';
import { palette } from '../src/draw/color';
import type { Token } from '../src/api/types';

const FRONT: draw.Camera = { yaw: 0, pitch: 0, zoom: 1 };

function shot(points: number[], more: Partial<draw.Shot> = {}): draw.Shot {
  const levels = more.units?.length ?? 1;
  const hidden = new Uint8Array(points.length / 3 / levels);
  return { points: Float32Array.from(points), units: new Float32Array(levels).fill(1), hidden, level: 0, camera: FRONT, width: 400, height: 200, ratio: 1, ...more };
}

function placed(given: draw.Shot): draw.Placed {
  return draw.place(given, draw.emptyPlaces(given.hidden.length));
}

function token(piece: string, more: Partial<Token> = {}): Token {
  return { id: 0, piece, surface: piece, start: 0, end: 1, special: false, in_pair: false, word: 0, category: 'word', ...more };
}

describe('the camera', () => {
  it('is written in an address and read again', () => {
    const camera = { yaw: -31, pitch: 12, zoom: 1.25 };
    expect(draw.cameraOf(draw.cameraWords(camera))).toEqual(camera);
    for (const wrong of ['', '1', '1,2', '1,,1', 'a,b,c', '1,2,3,4', '1,2,Infinity']) expect(draw.cameraOf(wrong)).toBeNull();
  });

  it('goes round, but not upside down, and zooms within limits', () => {
    expect(draw.steady({ yaw: 190, pitch: 120, zoom: 99 })).toEqual({ yaw: -170, pitch: 90, zoom: draw.ZOOM_RANGE[1] });
    expect(draw.steady({ yaw: -540, pitch: -91, zoom: 0 })).toEqual({ yaw: -180, pitch: -90, zoom: draw.ZOOM_RANGE[0] });
  });

  it('turns without changing any distance', () => {
    const m = draw.turnOf({ yaw: 33, pitch: -48, zoom: 1 });
    for (let row = 0; row < 3; row++) {
      for (let other = 0; other < 3; other++) {
        const dot = [0, 1, 2].reduce((sum, at) => sum + (m[3 * row + at] as number) * (m[3 * other + at] as number), 0);
        expect(dot).toBeCloseTo(row === other ? 1 : 0, 12);
      }
    }
  });
});

describe('placing points', () => {
  it('puts the middle in the middle, x to the right, y up, and what is near in front', () => {
    const { x, y, depth, radius, order } = placed(shot([0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, -1]));
    expect([x[0], y[0]]).toEqual([200, 100]);
    expect(x[1]).toBeGreaterThan(200);
    expect(y[2]).toBeLessThan(100);
    expect(radius[3] as number).toBeGreaterThan(radius[4] as number);
    expect(depth[3] as number).toBeGreaterThan(depth[4] as number);
    expect([order[0], order.at(-1)]).toEqual([4, 3]);
  });

  it('drags what is in front to the right when the yaw grows, and shows the top when the pitch does', () => {
    const turned = (camera: Partial<draw.Camera>) => placed(shot([0, 0, 1], { camera: { ...FRONT, ...camera } }));
    expect(turned({ yaw: 20 }).x[0]).toBeGreaterThan(200);
    expect(turned({ pitch: 20 }).y[0]).toBeGreaterThan(100);
  });

  it('agrees with the lens that draws paths and floors', () => {
    const camera = { yaw: 40, pitch: 25, zoom: 1.4 };
    const one = shot([0.3, -0.5, 0.8], { camera });
    const { x, y } = placed(one);
    const [across, down] = draw.lensOf(one)(0.3, -0.5, 0.8);
    expect(x[0]).toBeCloseTo(across, 3);
    expect(y[0]).toBeCloseTo(down, 3);
  });

  it('moves points in a straight line between two levels, each in its own units', () => {
    const points = [0, 0, 0, 2, 0, 0];
    const at = (level: number) => placed(shot(points, { units: Float32Array.of(1, 0.5), hidden: new Uint8Array(1), level })).x[0] as number;
    expect(at(0.5) - at(0)).toBeCloseTo((at(1) - at(0)) / 2, 4);
    expect(at(1)).toBeCloseTo(placed(shot([1, 0, 0])).x[0] as number, 4);
  });

  it('leaves hidden points out of order, units and reach', () => {
    const hidden = Uint8Array.of(0, 1, 0);
    const given = shot([0, 0, 0, 0, 0, 3, 1, 0, 0], { hidden });
    const all = placed(given);
    expect([...all.order].sort()).toEqual([0, 2]);
    expect(draw.pointAt(all, 200, 100, 10)).toBe(0);
    expect(draw.unitsOf(given.points, 1, hidden, false)[0]).toBeCloseTo(Math.SQRT2, 6);
  });

  it('has one unit for all levels where they are compared, else one for each', () => {
    const points = Float32Array.of(1, 0, 0, 4, 0, 0);
    expect([...draw.unitsOf(points, 2, new Uint8Array(1), false)]).toEqual([1, 0.25]);
    expect([...draw.unitsOf(points, 2, new Uint8Array(1), true)]).toEqual([0.25, 0.25]);
    expect([...draw.unitsOf(new Float32Array(3), 1, new Uint8Array(1), false)]).toEqual([1]);
  });

  it('sorts thousands of points as a comparison would', () => {
    const depth = Float32Array.from({ length: 5000 }, (_, at) => ((at * 7919) % 1024) / 1024);
    const order = draw.sortedByDepth(depth, new Uint8Array(5000));
    expect(new Set(order).size).toBe(5000);
    for (let at = 1; at < order.length; at++) expect(depth[order[at] as number] as number).toBeGreaterThanOrEqual(depth[order[at - 1] as number] as number);
  });
});

describe('the point under a place', () => {
  it('is the ball in front, else the nearest center within reach', () => {
    const front = placed(shot([0, 0, -1, 0, 0, 1, 2, 0, 0]));
    expect(draw.pointAt(front, 200, 100, 12)).toBe(1);
    const side = front.x[2] as number;
    expect(draw.pointAt(front, side + 11, 100, 12)).toBe(2);
    expect(draw.pointAt(front, side + 60, 100, 12)).toBeNull();
  });
});

describe('painting', () => {
  it('covers the far ball with the near one, and the fog takes the far one to the paper', () => {
    const given = shot([0, 0, -1.5, 0, 0, 1.5], { width: 60, height: 60 });
    const all = placed(given);
    const rgb = Uint8Array.of(255, 0, 0, 0, 0, 255);
    const pixels = new Uint8ClampedArray(4 * 60 * 60).fill(255);
    draw.paint(pixels, given, all, rgb, [255, 255, 255], 'light');
    const middle = 4 * (30 * 60 + 30);
    expect(pixels[middle + 2] as number).toBeGreaterThan(200);
    expect(pixels[middle] as number).toBeLessThan(160);
    expect([...pixels.subarray(0, 3)]).toEqual([255, 255, 255]);
    const [, far] = draw.fogged(rgb, 0, 0, [255, 255, 255]);
    expect(far).toBeGreaterThan(draw.fogged(rgb, 0, 1, [255, 255, 255])[1]);
  });

  it('stays inside the picture at its edges', () => {
    const given = shot([9, 0, 0, 0, 9, 0, -9, -9, 0], { width: 30, height: 30 });
    const pixels = new Uint8ClampedArray(4 * 30 * 30);
    expect(() => draw.paint(pixels, given, placed(given), new Uint8Array(9), [0, 0, 0], 'dark')).not.toThrow();
  });

  it('reads colors as a style sheet may have them', () => {
    expect(rgbOf('#1a1d25')).toEqual([26, 29, 37]);
    expect(rgbOf('#fff')).toEqual([255, 255, 255]);
  });
});

describe('names', () => {
  const names = ['the', 'mountain', 'river'];
  const measure = (text: string) => 7 * text.length;
  const room = { width: 400, height: 200, ratio: 1, most: 10 };

  it('do not overlap, and what is looked at comes first', () => {
    const all = placed(shot([0, 0, 0.5, 0, 0.02, 0.4, 2, 0, 0.4]));
    const some = draw.labelled(all, names, new Uint8Array(3), [1, 2, 0], [], measure, room);
    expect(some.map(({ text }) => text)).toEqual(['mountain', 'river']);
    const strong = draw.labelled(all, names, new Uint8Array(3), [1, 2, 0], [0], measure, room);
    expect(strong[0]).toMatchObject({ text: 'the', strong: true });
    expect(strong.map(({ text }) => text)).not.toContain('mountain');
  });

  it('rank long words first, and each once before any twice', () => {
    const tokens = ['a', 'river', 'mountain', 'river'].map((piece) => token(piece));
    expect([...nameRanks(tokens.map(({ piece }) => piece), tokens)]).toEqual([2, 1, 0, 3]);
  });
});

describe('colors', () => {
  const text = ['Dr', '.', 'No', '1', '?', '!', 'ing'].map((piece, at) => token(piece, { category: /\w/.test(piece) ? (at === 6 ? 'piece' : 'word') : 'punctuation' }));

  it('count sentences by the marks that end them', () => {
    expect(sentencesOf(text)).toEqual([0, 0, 1, 1, 1, 1, 2]);
  });

  it('know the kinds of tokens, and leave out of the legend what is not shown', () => {
    const all = [token('[CLS]', { special: true, category: 'special' }), ...text];
    const { legend, places } = kinds(all, (at) => at > 0);
    expect(legend.map(({ name, count }) => [name, count])).toEqual([['word', 2], ['later piece of a word', 1], ['punctuation', 3], ['number', 1]]);
    expect(places).toHaveLength(8);
    expect(new Set(places).size).toBe(5);
  });

  it('are bytes of the hues and of the color map', () => {
    expect([...hueBytes([0, 1], 'light')]).toEqual([0x1d, 0x5a, 0xa8, 0xb4, 0x50, 0x0b]);
    const colors = palette('dark');
    expect([...shareBytes([1], colors)]).toEqual([...colors.subarray(765, 768)]);
    expect([...shareBytes([0], colors)]).not.toEqual([...colors.subarray(0, 3)]);
  });

  it('take shares of the largest attention of those shown', () => {
    const shares = receivedShares([0.9, 0.01, 0.04], Uint8Array.of(1, 0, 0));
    expect(shares[1]).toBeCloseTo(0.5, 6);
    expect(shares[2]).toBe(1);
    expect([...receivedShares([0, 0], new Uint8Array(2))]).toEqual([0, 0]);
  });
});

describe('a scene', () => {
  const points = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 3, 0, 0, 0, 3, 0];
  const given = shot(points, { units: Float32Array.of(1, 1), hidden: new Uint8Array(3) });
  const scene = (level: number) =>
    ({ shot: { ...given, level }, groups: { of: [0, 0, 1], rgb: new Uint8Array(6), names: ['a', 'b'] } }) as unknown as Scene;

  it('draws the path of a point through its place at every level', () => {
    const path = pathOf(scene(0), 1);
    expect(path).toHaveLength(2);
    expect(path[0]?.[0]).toBeCloseTo(placed(given).x[1] as number, 3);
    expect(path[1]?.[0]).toBeCloseTo(placed({ ...given, level: 1 }).x[1] as number, 3);
  });

  it('marks the mean of each group, between levels too', () => {
    const [first, second] = groupMeans(scene(0));
    expect(first?.[0]).toBeCloseTo(draw.lensOf(given)(0.5, 0, 0)[0], 6);
    expect(second?.[1]).toBeCloseTo(draw.lensOf(given)(0, 1, 0)[1], 6);
    expect(groupMeans(scene(0.5))[1]?.[1]).toBeCloseTo(draw.lensOf(given)(0, 2, 0)[1], 6);
  });
});
