/** The level that every picture of the geometry shows, kept in the address, and playing through all of them. */

import type { Explorer } from '../../state/explorer.svelte';

const STEP_MS = 1150;

export class Levels {
  playing = $state(false);
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly explorerOf: () => Explorer,
    private readonly counted: () => number,
  ) {}

  private get explorer(): Explorer {
    return this.explorerOf();
  }

  get count(): number {
    return this.counted();
  }

  /** The level of the address; without one, the last. */
  get chosen(): number {
    const last = Math.max(0, this.count - 1);
    const written = this.explorer.option('geometry.level', '');
    return /^\d+$/.test(written) ? Math.min(last, Number(written)) : last;
  }

  /** Shows a level; by hand, which ends what plays. */
  choose(level: number): void {
    this.pause();
    this.explorer.setOption('geometry.level', String(level));
  }

  pause(): void {
    clearTimeout(this.timer);
    this.playing = false;
  }

  /** From the level shown to the last; from the first, where the last is shown. */
  play(): void {
    if (this.playing) return this.pause();
    this.playing = true;
    if (this.chosen === this.count - 1) this.quietly(0);
    this.timer = setTimeout(() => this.next(), STEP_MS);
  }

  private next(): void {
    if (!this.playing) return;
    this.quietly(this.chosen + 1);
    if (this.chosen >= this.count - 1) this.playing = false;
    else this.timer = setTimeout(() => this.next(), STEP_MS);
  }

  private quietly(level: number): void {
    const more = { ...this.explorer.view.more, 'geometry.level': String(level) };
    this.explorer.change({ more }, true);
  }
}
