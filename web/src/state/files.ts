/** Files whose text becomes the page's text: .txt and .md are read here, a PDF by the explorer's own server. */

import { problem, Refused, ServerGone } from '../api/source';
import type { PdfText } from '../api/types';
import { bytesWords } from '../draw/axes';
import type { Explorer } from './explorer.svelte';
import { DEFAULTS, OF_TEXT } from './url';

const TEXT = /\.(txt|text|md|markdown)$/i;
const PDF = /\.pdf$/i;

/** A file that gives no text, and the sentence that says why. */
export class Unreadable extends Error {}

/** Whether files can be opened: not in a page that was saved to disk. A PDF needs a server. */
export function opensFiles(explorer: Explorer): { text: boolean; pdf: boolean } {
  const { source } = explorer;
  return { text: source.live, pdf: source.live && source.upload !== undefined };
}

/** "a .txt, .md or .pdf file": what can be opened here. */
export function kindsWords(pdf: boolean): string {
  return pdf ? 'a .txt, .md or .pdf file' : 'a .txt or .md file';
}

/** Lets the reader choose a file, and opens it. */
export function chooseFile(explorer: Explorer): void {
  const input = document.createElement('input');
  input.type = 'file';
  input.accept = ['.txt', '.text', '.md', '.markdown', ...(opensFiles(explorer).pdf ? ['.pdf'] : [])].join(',');
  input.onchange = () => void openFiles(explorer, [...(input.files ?? [])]);
  input.click();
}

/** Which opening is the last: one that takes longer does not replace what was opened after it. */
let latest = 0;

/** Makes the text of a file the text of the page; what cannot be opened is refused in one sentence, and changes nothing. */
export async function openFiles(explorer: Explorer, files: readonly File[]): Promise<void> {
  const number = ++latest;
  const before = explorer.view.text;
  explorer.problem = null;
  explorer.busy = true;
  try {
    const { text, note } = await textOf(files, {
      most: explorer.session?.limits.body_bytes ?? 1e6,
      mostPdf: explorer.session?.limits.pdf_bytes ?? 0,
      pdf: opensFiles(explorer).pdf ? (file) => explorer.upload<PdfText>(`pdf?name=${encodeURIComponent(file.name)}`, file) : null,
    });
    if (number !== latest || explorer.view.text !== before) return;
    // A search has no text of its own to show.
    if (['search', DEFAULTS.view].includes(explorer.view.view)) explorer.change({ view: OF_TEXT });
    await explorer.read(text);
    explorer.editing = explorer.problem !== null;
    explorer.fileNote = note;
  } catch (error) {
    if (number !== latest) return;
    explorer.busy = false;
    if (error instanceof Unreadable) explorer.problem = problem('Unreadable', error.message);
    else if (error instanceof Refused && error.status !== 401) explorer.problem = error.problem;
    // The page says that the server is silent, or locked.
    else if (!(error instanceof ServerGone || error instanceof Refused)) throw error;
  }
}

interface Means {
  /** Most bytes of a text, and of a PDF file. */
  most: number;
  mostPdf: number;
  /** Reads a PDF; null where nothing can. */
  pdf: ((file: File) => Promise<PdfText>) | null;
}

/** The text of the one file that was given, and what was left out of it. */
export async function textOf(files: readonly File[], { most, mostPdf, pdf }: Means): Promise<{ text: string; note: string }> {
  const [file] = files;
  if (!file) throw new Unreadable(`nothing was given that is a file; give ${kindsWords(pdf !== null)}`);
  if (files.length > 1) throw new Unreadable(`${files.length} files were given, and the page shows one text; give one file at a time`);
  const name = `“${file.name.length > 60 ? `${file.name.slice(0, 57)}…` : file.name}”`;
  const isPdf = PDF.test(file.name);
  if (!TEXT.test(file.name) && !isPdf) throw new Unreadable(`${name} cannot be opened; give ${kindsWords(pdf !== null)}, or paste the text`);
  if (isPdf && !pdf) throw new Unreadable(`${name} cannot be opened here: a PDF is read by the server of “unmask explore”; give ${kindsWords(false)}`);
  const limit = isPdf ? mostPdf : most;
  if (file.size > limit) throw new Unreadable(`${name} has ${bytesWords(file.size)}, and the limit is ${bytesWords(limit)}; give a part of it`);
  let note = '';
  let text: string;
  if (isPdf && pdf) {
    const found = await pdf(file);
    text = found.text;
    if (found.without_text > 0) {
      const pages = found.without_text === 1 ? '1 page holds a picture' : `${found.without_text} pages hold pictures`;
      note = `${pages} and no text, of the ${found.pages} pages of ${name}, and ${found.without_text === 1 ? 'was' : 'were'} left out.`;
    }
  } else {
    text = decoded(await bytesOf(file, name), name);
  }
  if (text.trim() === '') throw new Unreadable(`${name} holds no text; give another file`);
  const size = new TextEncoder().encode(JSON.stringify(text)).length + 1024;
  if (size > most) throw new Unreadable(`${name} has ${bytesWords(size)} of text, and the limit is ${bytesWords(most)}; give a part of it`);
  return { text, note };
}

async function bytesOf(file: File, name: string): Promise<ArrayBuffer> {
  try {
    return await file.arrayBuffer();
  } catch {
    // A folder with such a name, or a file that is gone.
    throw new Unreadable(`${name} cannot be read; it is a folder, or was moved or changed meanwhile`);
  }
}

/** UTF-8, and nothing else: another encoding would give other characters without a word. */
function decoded(bytes: ArrayBuffer, name: string): string {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new Unreadable(`${name} is not UTF-8 text; save it as UTF-8 first`);
  }
  if (text.includes('\0')) throw new Unreadable(`${name} is not text: it holds a zero byte`);
  return text.replace(/\r\n?/g, '\n');
}
