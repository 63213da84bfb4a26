/** Asking the API: answers are kept, texts the server lost are sent again, silence is noticed. */

import { decode } from '../api/binary';
import type { PageRequest } from '../api/request';
import { accepted, type Answer, jsonOf, Refused, ServerGone, type Source } from '../api/source';
import type { TextRead } from '../api/types';
import { bodyOf, type Reading, type Sent } from './reading.svelte';

const MOST_BYTES = 96 * 2 ** 20;

/** Answers that are kept, bounded by their bytes; what was used longest ago leaves first. */
export class Cache {
  private readonly held = new Map<string, { value: Promise<unknown>; bytes: number }>();
  private bytes = 0;

  constructor(private readonly most = MOST_BYTES) {}

  /** The answer of a path, if it is here or on its way. */
  get<T>(path: string): Promise<T> | undefined {
    const found = this.held.get(path);
    if (!found) return undefined;
    this.held.delete(path);
    this.held.set(path, found);
    return found.value as Promise<T>;
  }

  /** Keeps an answer that is on its way. */
  put(path: string, value: Promise<unknown>): void {
    this.drop(path);
    this.held.set(path, { value, bytes: 0 });
  }

  /** Says how large an answer became; older ones make room for it. */
  weigh(path: string, bytes: number): void {
    const found = this.held.get(path);
    if (!found) return;
    this.bytes += bytes - found.bytes;
    found.bytes = bytes;
    for (const [other, entry] of this.held) {
      if (this.bytes <= this.most) return;
      if (other !== path && entry.bytes > 0) this.drop(other);
    }
  }

  drop(path: string): void {
    const found = this.held.get(path);
    if (!found) return;
    this.bytes -= found.bytes;
    this.held.delete(path);
  }
}

/** What the page does when the server is not as it was. */
export interface Alarms {
  /** The texts that are shown. */
  readings: () => Reading[];
  /** No answer came. */
  lost: () => void;
  /** The launch token is not, or no longer, valid. */
  locked: () => void;
  /** A text was sent again: its analysis begins anew. */
  begun: (reading: Reading) => void;
}

export class Answers {
  /** Counts the times the server came back: whatever asks depends on it, and asks again. */
  revivals = $state(0);
  /** Paths of all answers that were shown, for a page that is saved to disk. */
  readonly asked = new Set<string>();
  private readonly cache = new Cache();

  constructor(
    private readonly source: Source,
    private readonly alarms: Alarms,
  ) {}

  /** The answer of a request. One that grows while its text is measured is kept only after that. */
  async get<T>({ path, binary, grows }: PageRequest<T>): Promise<T> {
    void this.revivals;
    const held = this.cache.get<T>(path);
    if (held) return held;
    const settled = !grows || this.readingsOf(path).every((reading) => reading.complete);
    const asked = this.holding(path);
    asked.then(
      ({ data }) => {
        this.asked.add(path);
        if (settled) this.cache.weigh(path, data.byteLength);
        else this.cache.drop(path);
      },
      () => this.cache.drop(path),
    );
    const value = asked.then((answer) => (binary ? (decode(answer.data) as T) : jsonOf<T>(answer)));
    this.cache.put(path, value);
    return value;
  }

  /** An answer in JSON that is not kept. */
  async fresh<T>({ path }: PageRequest<T>): Promise<T> {
    const answer = await this.holding(path);
    this.asked.add(path);
    return jsonOf<T>(answer);
  }

  async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    return jsonOf<T>(accepted(await this.watched(() => this.source.post(path, body, signal))));
  }

  /** Posts a file; only to a source that takes one. */
  async upload<T>(path: string, file: Blob): Promise<T> {
    const { source } = this;
    return jsonOf<T>(accepted(await this.watched(() => source.upload?.(path, file) ?? Promise.reject(new ServerGone()))));
  }

  async remove(path: string): Promise<void> {
    accepted(await this.watched(() => this.source.remove(path)));
  }

  /** Sends a text to be read. */
  send(sent: Sent, signal?: AbortSignal): Promise<TextRead> {
    return this.post<TextRead>('texts', bodyOf(sent), signal);
  }

  /** Asks about texts; one the server no longer holds is sent again, and the request too. */
  private async holding(path: string): Promise<Answer> {
    const request = () => this.watched(() => this.source.get(path));
    try {
      return accepted(await request());
    } catch (error) {
      if (!(error instanceof Refused && error.problem.kind === 'UnknownText')) throw error;
      const readings = this.readingsOf(path);
      if (readings.length === 0) throw error;
      await Promise.all(readings.map((reading) => this.send({ ...reading.sent })));
      for (const reading of readings) this.alarms.begun(reading);
      return accepted(await request());
    }
  }

  private readingsOf(path: string): Reading[] {
    const parts = path.split(/[/?&=]/);
    return this.alarms.readings().filter(({ id }) => parts.includes(id));
  }

  private async watched(request: () => Promise<Answer>): Promise<Answer> {
    try {
      const answer = await request();
      if (answer.status === 401) this.alarms.locked();
      return answer;
    } catch (error) {
      if (error instanceof ServerGone) this.alarms.lost();
      throw error;
    }
  }
}
