import { describe, expect, it } from 'vitest';
import { commandsFor } from '../src/state/commands';
import type { Explorer } from '../src/state/explorer.svelte';
import { kindsWords, opensFiles, textOf, Unreadable } from '../src/state/files';

const file = (name: string, ...parts: BlobPart[]) => new File(parts, name);
const means = { most: 10_000, mostPdf: 20_000, pdf: async () => ({ text: 'of a page', pages: 3, without_text: 0 }) };

const refusal = async (given: readonly File[], other = {}) => {
  const error = await textOf(given, { ...means, ...other }).catch((one: unknown) => one);
  expect(error).toBeInstanceOf(Unreadable);
  return (error as Unreadable).message;
};

describe('a file that is opened', () => {
  it('is offered by a page with a server, without PDF by a notebook, and not at all by a saved file', () => {
    const offered = (source: object) => {
      const explorer = { source, models: [], view: {}, a: null } as unknown as Explorer;
      const listed = commandsFor(explorer, 'open a', []).map(({ title }) => title);
      return [opensFiles(explorer), listed];
    };
    expect(offered({ live: true, upload: () => null })).toEqual([{ text: true, pdf: true }, ['Open a .txt, .md or .pdf file']]);
    expect(offered({ live: true })).toEqual([{ text: true, pdf: false }, ['Open a .txt or .md file']]);
    expect(offered({ live: false, upload: () => null })).toEqual([{ text: false, pdf: false }, []]);
  });

  it('gives its own text, as UTF-8 and with plain line ends', async () => {
    expect(await textOf([file('a.txt', 'Café 東京\r\nnext\rlast')], means)).toEqual({ text: 'Café 東京\nnext\nlast', note: '' });
    expect((await textOf([file('NOTES.MD', '\ufeff# A title')], means)).text).toBe('# A title');
  });

  it('is read by the server where it is a PDF, and what had no text is counted', async () => {
    expect(await textOf([file('a.PDF', '%PDF')], means)).toEqual({ text: 'of a page', note: '' });
    const some = { ...means, pdf: async () => ({ text: 'a', pages: 9, without_text: 2 }) };
    expect((await textOf([file('a.pdf', '%PDF')], some)).note).toBe('2 pages hold pictures and no text, of the 9 pages of “a.pdf”, and were left out.');
  });

  it('is refused in one sentence that names it and the way out', async () => {
    expect(await refusal([])).toContain(kindsWords(true));
    expect(await refusal([file('a.txt', 'a'), file('b.txt', 'b')])).toBe('2 files were given, and the page shows one text; give one file at a time');
    expect(await refusal([file('photo.png', 'a')])).toBe('“photo.png” cannot be opened; give a .txt, .md or .pdf file, or paste the text');
    expect(await refusal([file('notes.txt.exe', 'a')])).toContain('cannot be opened');
    expect(await refusal([file('old.txt', new Uint8Array([0x43, 0x61, 0x66, 0xe9]))])).toBe('“old.txt” is not UTF-8 text; save it as UTF-8 first');
    expect(await refusal([file('old.txt', new Uint8Array([0xff, 0xfe, 0x41, 0]))])).toContain('not UTF-8');
    expect(await refusal([file('zero.txt', 'a\0b')])).toContain('a zero byte');
    expect(await refusal([file('empty.txt', ' \n')])).toBe('“empty.txt” holds no text; give another file');
    expect(await refusal([file('a.pdf', '%PDF')], { pdf: null })).toContain('read by the server of “unmask explore”; give a .txt or .md file');
  });

  it('has a limit, as a file and as the text that is sent', async () => {
    expect(await refusal([file('a.txt', 'a'.repeat(10_001))])).toBe('“a.txt” has 10 kB, and the limit is 10 kB; give a part of it');
    expect(await refusal([file('a.pdf', 'a'.repeat(20_001))])).toContain('the limit is 20 kB');
    // Every quotation mark is two characters when it is sent.
    expect(await refusal([file('a.txt', '"'.repeat(5_000))])).toContain('11 kB of text');
    const long = { ...means, pdf: async () => ({ text: 'a'.repeat(10_000), pages: 1, without_text: 0 }) };
    expect(await refusal([file('a.pdf', '%PDF')], long)).toContain('of text');
  });
});
