/** Answers of the server that sent this page. */

import { type Answer, ServerGone, type Source } from './source';

export class HttpSource implements Source {
  readonly live = true;

  /** `token`: of the launch, as far as it is known. */
  constructor(public token: string | null) {}

  get(path: string, signal?: AbortSignal): Promise<Answer> {
    return this.send(path, { signal });
  }

  post(path: string, body: unknown, signal?: AbortSignal): Promise<Answer> {
    const headers = { 'Content-Type': 'application/json' };
    return this.send(path, { method: 'POST', body: JSON.stringify(body), headers, signal });
  }

  upload(path: string, file: Blob): Promise<Answer> {
    // Named here: a browser that does not know the ending sends another type, or none.
    return this.send(path, { method: 'POST', body: file, headers: { 'Content-Type': 'application/pdf' } });
  }

  remove(path: string): Promise<Answer> {
    return this.send(path, { method: 'DELETE' });
  }

  private async send(path: string, init: RequestInit): Promise<Answer> {
    const headers = new Headers(init.headers);
    if (this.token !== null) headers.set('X-Unmask-Token', this.token);
    try {
      const answer = await fetch(`/api/${path}`, { ...init, headers });
      const type = answer.headers.get('Content-Type') ?? '';
      return { status: answer.status, type, data: await answer.arrayBuffer() };
    } catch (error) {
      if (error instanceof DOMException && error.name === 'AbortError') throw error;
      throw new ServerGone();
    }
  }
}
