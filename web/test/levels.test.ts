/// <reference types="vite/client" />
import { describe, expect, it } from 'vitest';
import { axisOf } from '../src/draw/axes';
import { anyRightToLeft, directionOf, tokenElement } from '../src/draw/direction';
import { LEVEL_AXIS, levelName, levelPhrase } from '../src/draw/levels';
import { sinkKinds } from '../src/draw/sinks';
import { sorted } from '../src/draw/table';
import { pageTitle } from '../src/draw/title';

const sources = import.meta.glob<string>('../src/**/*.{svelte,ts}', { query: '?raw', import: 'default', eager: true });

describe('levels', () => {
  it('are the embeddings and then the outputs of layers, which count from 0', () => {
    const axis = axisOf([0, 1, 2, 3, 4, 5, 6], { about: 20, ...LEVEL_AXIS });
    expect(axis.marks.map(({ label }) => label)).toEqual(['emb.', '0', '1', '2', '3', '4', '5']);
    expect([0, 1, 12].map(levelName)).toEqual(['embeddings', 'layer 0', 'layer 11']);
    expect([0, 1].map(levelPhrase)).toEqual(['the embeddings', 'the output of layer 0']);
  });

  it('have one home: no view counts them in its own way', () => {
    expect(Object.keys(sources).length).toBeGreaterThan(100);
    const own = Object.keys(sources).filter((name) => /level \(0|[lL]evel === 0 \?/.test(sources[name] ?? ''));
    expect(own).toEqual(['../src/draw/levels.ts']);
  });

  it('are ordered by their layer in a table', () => {
    const rows = [11, 3, 0, 2].map((level) => ({ name: levelName(level) }));
    expect(sorted(rows, { column: 'name', down: false }).map(({ name }) => name)).toEqual(['embeddings', 'layer 1', 'layer 2', 'layer 10']);
  });
});

describe('a text from right to left', () => {
  it('is part of its line, so that its letters join and its words keep their order', () => {
    expect(tokenElement('the river')).toEqual({ this: 'button' });
    for (const text of ['שלום', 'he said مرحبا', 'ދިވެހި']) {
      expect(anyRightToLeft(text)).toBe(true);
      expect(tokenElement(text)).toEqual({ this: 'span', role: 'button' });
    }
  });

  it('begins where its first letter begins', () => {
    expect(['12 שלום hello', '"hello" שלום', '123', ''].map(directionOf)).toEqual(['rtl', 'ltr', 'ltr', 'ltr']);
  });
});

describe('the title of the page', () => {
  it('says view, head and the first words', () => {
    expect(pageTitle('Map', { layer: 3, head: 5 }, 'The  river\nbank')).toBe('Map 3.5: The river bank · unmask');
    expect(pageTitle('Tour', null, '')).toBe('Tour · unmask');
  });

  it('stops at a word where the text is long, and inside one only where it must', () => {
    expect(pageTitle('Words', null, 'The river bank was muddy, so we took the money')).toBe('Words: The river bank was muddy, so we took the… · unmask');
    expect(pageTitle('Words', null, '🙂'.repeat(50))).toBe(`Words: ${'🙂'.repeat(40)}… · unmask`);
  });
});

describe('sinks of all heads', () => {
  const heads = (...types: string[]) => types.map((type) => ({ type }));
  it('are counted in sentences that say what each kind does', () => {
    const said = sinkKinds(heads('no-op', 'no-op', 'broadcast', 'neither'));
    expect(said).toContain('In 2 heads of 4 the strongest sink has a short value vector');
    expect(said).toContain('In 1 head the sink collects');
    expect(sinkKinds(heads('neither'))).toMatch(/^In no head the strongest.*In no head the sink/);
  });
});
