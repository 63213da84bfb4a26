/** Answers that were written into this very file: a page that needs no server. */

import type { LiveEngine } from '../live/reading';
import type { TextRead } from './types';
import { type Answer, problem, Refused, type Source } from './source';

/** One recorded answer; `data` is text for JSON and base64 for everything else. */
export interface SavedAnswer {
  status: number;
  type: string;
  data: string;
}

/** The published name of the model that comes with a package, under the name "default". */
const DEFAULT_NAME = 'sentence-transformers/all-MiniLM-L6-v2';
const LONGEST_IN_SHELL = 300;

declare global {
  interface Window {
    /** In a file that holds a model: src/live/main.ts. */
    unmaskLive?: LiveEngine;
  }
}

export interface SavedPage {
  /** The state of the address that was looked at. */
  hash: string;
  answers: Record<string, SavedAnswer>;
  /** What the numbers were made with, in one line. */
  stamp: string;
  /** Ids of the views that it holds; files of before have none here, and hold what was looked at. */
  views?: readonly string[];
}

export class SavedSource implements Source {
  readonly live = false;

  constructor(readonly page: SavedPage) {}

  static of(json: string): SavedSource {
    return new SavedSource(JSON.parse(json) as SavedPage);
  }

  /** Paths of the texts in this file, `texts/{id}`. */
  get texts(): string[] {
    return Object.keys(this.page.answers).filter((path) => /^texts\/[^/?]+$/.test(path));
  }

  /** Whether it holds a model, which reads any short text. */
  get computes(): boolean {
    return window.unmaskLive !== undefined;
  }

  async get(path: string): Promise<Answer> {
    const found = this.page.answers[path];
    if (!found && path.startsWith('live?') && window.unmaskLive) return window.unmaskLive.get(path);
    if (!found) throw this.notSaved();
    return { status: found.status, type: found.type, data: bytesOf(found) };
  }

  async post(): Promise<Answer> {
    throw this.notSaved();
  }

  async remove(): Promise<Answer> {
    throw this.notSaved();
  }

  /** What shows the same text live, for a shell. A long text is left out, to be pasted into the page. */
  get command(): string {
    const reads = this.texts.map((path) => JSON.parse(this.page.answers[path]?.data ?? '{}') as TextRead);
    const models = reads.map(commandName);
    const text = new URLSearchParams(this.page.hash.replace(/^#/, '')).get('text') ?? '';
    const typed = text === '' || text.length > LONGEST_IN_SHELL ? [] : [`'${text.replaceAll("'", "'\\''")}'`];
    return ['unmask explore', ...typed, ...new Set(models.map((model) => `--model ${model}`))].join(' ');
  }

  private notSaved(): Refused {
    return new Refused(404, problem('NotSaved', `this is not saved in this file; open it live with: ${this.command}`));
  }
}

/** What a model is called on the command line. */
export function commandName({ model, revision }: { model: string; revision: string | null }): string {
  return model === DEFAULT_NAME && revision === null ? 'default' : model;
}

function bytesOf(answer: SavedAnswer): ArrayBuffer {
  if (/^(application\/json|text\/)/.test(answer.type)) {
    return new TextEncoder().encode(answer.data).buffer as ArrayBuffer;
  }
  const binary = atob(answer.data);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes.buffer;
}
