/** Calls to the explorer's own server. */

import { decode, type Grid } from './binary';
import type { Failure, ModelInfo, Problem, TextRead } from './types';

/** The server refused; `problem` says why. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.sentence);
  }
}

/** No answer at all: the server has stopped. */
export class ServerGone extends Error {}

/** A range of tokens, `stop` not included. */
export interface Range {
  start: number;
  stop: number;
}

export class Client {
  constructor(private readonly token: string | null) {}

  async model(): Promise<ModelInfo> {
    return (await this.send('model')).json() as Promise<ModelInfo>;
  }

  /** Reads a text; `cut` reads only the beginning of one that is too long. */
  async read(text: string, cut: boolean, signal: AbortSignal): Promise<TextRead> {
    const answer = await this.send('texts', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ text, too_long: cut ? 'cut' : 'error' }),
      signal,
    });
    return answer.json() as Promise<TextRead>;
  }

  /** Probabilities of one head, queries `rows` by keys `columns`. */
  async tile(id: string, layer: number, head: number, rows: Range, columns: Range): Promise<Grid> {
    const query = `rows=${rows.start}:${rows.stop}&columns=${columns.start}:${columns.stop}`;
    const answer = await this.send(`texts/${id}/tiles/${layer}/${head}?${query}`);
    return decode(await answer.arrayBuffer(), 'probabilities');
  }

  /** Three statistics of every head. */
  async heads(id: string): Promise<Grid> {
    const answer = await this.send(`texts/${id}/heads`);
    return decode(await answer.arrayBuffer(), 'heads');
  }

  private async send(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.token !== null) headers.set('X-Unmask-Token', this.token);
    let answer: Response;
    try {
      answer = await fetch(`/api/${path}`, { ...init, headers });
    } catch (error) {
      if (error instanceof DOMException && error.name === 'AbortError') throw error;
      throw new ServerGone();
    }
    if (!answer.ok) throw new Refused(answer.status, await problemOf(answer));
    return answer;
  }
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    return ((await answer.json()) as Failure).error;
  } catch {
    const sentence = `the server answered ${answer.status} without saying why`;
    return { kind: 'Unexplained', sentence, total_tokens: null, max_tokens: null };
  }
}
