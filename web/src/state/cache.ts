/** Answers that are kept, bounded by their bytes; what was used longest ago leaves first. */

const MOST_BYTES = 96 * 2 ** 20;

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
