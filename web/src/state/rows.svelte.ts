/** Exact values of one head by rows or by columns, fetched where they are looked at. */

import { Refused } from '../api/source';
import type { Problem } from '../api/types';

const MOST_LINES = 600;
/** Values in one request: whole rows, as many as this holds. */
export const AT_ONCE = 65_536;
/** A pointer that crosses rows asks only where it rests. */
const REST_MS = 40;

export class Lines {
  arrivals = $state(0);
  /** Why a line was refused, until one arrives. */
  problem: Problem | null = $state.raw(null);
  private readonly here = new Map<number, Float32Array>();
  private readonly asked = new Set<number>();
  private waiting: ReturnType<typeof setTimeout> | undefined;

  /** `fetchLines` gives lines start to stop one after another, `count` values each. */
  constructor(
    readonly key: string,
    readonly count: number,
    private readonly fetchLines: (start: number, stop: number) => Promise<Float32Array>,
  ) {}

  /** One line, (N,), if it is here; otherwise it is asked for. */
  get(line: number): Float32Array | undefined {
    void this.arrivals;
    const found = this.here.get(line);
    if (!found && line >= 0 && line < this.count) this.ask(line);
    return found;
  }

  private ask(line: number): void {
    const height = Math.max(1, Math.min(this.count, Math.floor(AT_ONCE / this.count)));
    const start = line - (line % height);
    if (this.asked.has(start)) return;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => void this.fetch(start, Math.min(this.count, start + height)), REST_MS);
  }

  private async fetch(start: number, stop: number): Promise<void> {
    this.asked.add(start);
    try {
      const values = await this.fetchLines(start, stop);
      const width = values.length / (stop - start);
      for (let line = start; line < stop; line++) {
        this.here.set(line, values.subarray((line - start) * width, (line - start + 1) * width));
      }
      while (this.here.size > Math.max(MOST_LINES, stop - start)) {
        const oldest = this.here.keys().next().value as number;
        this.here.delete(oldest);
        this.asked.clear();
      }
      this.arrivals++;
      this.problem = null;
    } catch (error) {
      if (error instanceof Refused) this.problem = error.problem;
      // The page says by its phase that the server is gone; a refused row stays unknown until then.
      setTimeout(() => this.asked.delete(start), 3000);
    }
  }
}
