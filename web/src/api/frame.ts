/**
 * Answers through the page around this one: a notebook holds this page in a frame.
 * Out goes {unmask: 1, id, method, path, body}; back comes {unmask: 1, id, status, type, data}.
 */

import { type Answer, ServerGone, type Source } from './source';

interface Reply {
  unmask?: number;
  id?: number;
  status: number;
  type: string;
  data: ArrayBuffer | null;
}

export class FrameSource implements Source {
  readonly live = true;
  /** What is looked at first: a frame's address cannot say it. */
  readonly hash = document.querySelector<HTMLMetaElement>('meta[name="unmask-source"]')?.dataset.hash ?? '';
  private readonly waiting = new Map<number, (reply: Reply) => void>();
  private last = 0;

  constructor(private readonly outer: Window = window.parent) {
    window.addEventListener('message', (event: MessageEvent<Reply>) => {
      if (event.source !== this.outer || event.data?.unmask !== 1) return;
      this.waiting.get(event.data.id ?? -1)?.(event.data);
    });
  }

  get(path: string, signal?: AbortSignal): Promise<Answer> {
    return this.send('GET', path, null, signal);
  }

  post(path: string, body: unknown, signal?: AbortSignal): Promise<Answer> {
    return this.send('POST', path, body, signal);
  }

  remove(path: string): Promise<Answer> {
    return this.send('DELETE', path, null);
  }

  private send(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<Answer> {
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      const stop = () => {
        this.waiting.delete(id);
        reject(new DOMException('no longer wanted', 'AbortError'));
      };
      if (signal?.aborted) return stop();
      signal?.addEventListener('abort', stop, { once: true });
      this.waiting.set(id, ({ status, type, data }) => {
        this.waiting.delete(id);
        signal?.removeEventListener('abort', stop);
        if (data === null) reject(new ServerGone());
        else resolve({ status, type, data });
      });
      this.outer.postMessage({ unmask: 1, id, method, path, body }, '*');
    });
  }
}
