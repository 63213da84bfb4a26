import { describe, expect, it } from 'vitest';
import type { Stamp, TextRead } from '../src/api/types';
import { escaped } from '../src/export/escape';
import { pathsOf } from '../src/export/page';
import { pythonOf } from '../src/export/python';
import { stampLines, stampText } from '../src/export/stamp';
import { DEFAULTS } from '../src/state/url';

const stamp = (model: string): Stamp => ({
  lines: [
    { name: 'model', value: model },
    { name: 'torch', value: '2.13.0' },
  ],
  load: `unmask.load("${model}")`,
  date: '2026-11-21 00:00:00 UTC',
});

describe('a saved page', () => {
  it('keeps what is about the texts that are shown, and what is about none', () => {
    const asked = ['session', 'texts/a', 'texts/b/heads', 'texts/old/heads', 'compare/a/b', 'compare/a/old', 'bank?word=old'];
    expect(pathsOf(asked, ['a', 'b'])).toEqual(['session', 'texts/a', 'texts/b/heads', 'compare/a/b', 'bank?word=old']);
  });
});

describe('the stamp', () => {
  it('says how attention is drawn, and of a second model what differs', () => {
    const view = { ...DEFAULTS, weight: 'norm' as const, layer: 1, head: 3 };
    const lines = stampLines([stamp('one'), stamp('two')], view, { scale: 'sqrt', gain: 2, clip: 0 }, 'Map', new Date(0));
    const text = stampText(lines);
    expect(text).toContain('view: Map, layer 1 head 3; model: one; torch: 2.13.0; compared with, model: two; weighting: norm');
    expect(text).toContain('brightness × 4');
    expect(text.endsWith('saved: 1970-01-01 00:00:00 UTC')).toBe(true);
  });
});

describe('Python', () => {
  const read = { model: 'one', text: 'a "quoted"\n\\ text 🙂', pair: null, heads: [3], global_spans: [] as [number, number][] } as TextRead;
  const shown = (view: string, more: Record<string, string> = {}) => ({
    view: { ...DEFAULTS, view },
    reads: [read],
    stamps: [stamp('one')],
    token: 2,
    canFill: true,
    option: (name: string, otherwise: string) => more[name] ?? otherwise,
  });

  it('writes texts so that Python reads them as they are', () => {
    expect(pythonOf(shown('map'))).toContain('model.attention("a \\"quoted\\"\\n\\\\ text 🙂")');
  });

  it('follows the choices of a view', () => {
    expect(pythonOf(shown('paths', { 'paths.fusion': 'max' }))).toContain('rollout(view.cache, 2, fusion="max")');
    expect(pythonOf(shown('map', { 'map.by': 'words' }))).toContain('word_map(maps, 0, 0');
    expect(pythonOf({ ...shown('map'), reads: [] })).toBeNull();
  });
});

describe('text in SVG', () => {
  it('is well-formed XML whatever was typed', () => {
    expect(escaped('a<b>&"c"\u0000\ud800')).toBe('a&lt;b&gt;&amp;&quot;c&quot;\ufffd\ufffd');
    expect(escaped('🙂')).toBe('🙂');
  });
});
