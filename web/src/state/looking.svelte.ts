/** What is looked at: the view and its address, the pointer, and how two texts hang together. */

import type { WordPair } from '../api/types';
import { palette, type Tone } from '../draw/color';
import { automaticGain, pixelTable, type Tint } from '../draw/scale';
import { acrossTexts } from '../draw/edits';
import type { LiveText } from '../live/reading';
import type { Reading, Side } from './reading.svelte';
import { toneOf } from './tone.svelte';
import { DEFAULTS, formatHash, type ViewState, writeHash } from './url';

/** What the pointer is on: tokens of one side, either of which may be absent. */
export interface Spot {
  side: Side;
  query: number | null;
  key: number | null;
}

/** Changes closer together than this are one step for Back. */
const ONE_STEP_MS = 700;

export abstract class Looking {
  view: ViewState = $state.raw({ ...DEFAULTS });
  /** The text as the chosen model reads it, and as the model beside it does. */
  a: Reading | null = $state.raw(null);
  b: Reading | null = $state.raw(null);
  /** The text compared with, in the model of A, and the words of both side by side once they are known. */
  before: Reading | null = $state.raw(null);
  pairs: readonly WordPair[] = $state.raw([]);
  hover: Spot | null = $state.raw(null);
  /** The text that is shown or typed, where it is short: what its canvas draws at once. */
  live: LiveText | null = $state.raw(null);

  /** The readings of A and B; a model beside itself is one. */
  readings: readonly Reading[] = $derived(
    [this.a, this.b].filter((one, at): one is Reading => one !== null && (at === 0 || one.id !== this.a?.id)),
  );

  /** The query and key looked at, as tokens of A: under the pointer, else chosen. */
  query: number | null = $derived(this.litIn('a', 'query')[0] ?? null);
  key: number | null = $derived(this.litIn('a', 'key')[0] ?? null);
  /** Light or dark, and the 256 colors of a probability with it. */
  tone: Tone = $derived(toneOf(this.view.theme));
  colors: Uint8Array = $derived(palette(this.tone));
  /** Doublings of brightness that this text gets by itself, and those in force. */
  readonly autoGain: number = $derived(automaticGain(this.a?.count ?? 1, this.view.scale, this.view.pool));
  readonly gain: number = $derived(this.view.gain ?? this.autoGain);
  private readonly scale = $derived(this.view.scale);
  private readonly clip = $derived(this.view.clip);
  /** How probabilities are colored, and the pixel of every code of a tile. Both change only when colors do. */
  readonly tint: Tint = $derived({ scale: this.scale, gain: this.gain, clip: this.clip });
  readonly pixels: Uint32Array = $derived(pixelTable(this.colors, this.tint));

  private lastPush = 0;
  /** The head that was suggested last; the first head before one was. */
  private suggested: readonly [number, number] = [DEFAULTS.layer, DEFAULTS.head];
  private writing: ReturnType<typeof setTimeout> | undefined;

  /** Reads the text again, with the models that the view names now. */
  protected abstract reload(): void;

  /** Changes what is looked at, and the address with it; `quiet` is never a step of its own for Back. */
  change(part: Partial<ViewState>, quiet = false): void {
    const before = this.view;
    this.view = this.within({ ...this.view, ...part });
    const now = performance.now();
    const far = now - this.lastPush >= ONE_STEP_MS;
    const step = !quiet && (far || 'text' in part || 'view' in part);
    if (!quiet) this.lastPush = now;
    clearTimeout(this.writing);
    // The first change of a step is written at once, the many that follow it only when they rest.
    if (step) writeHash(formatHash(this.view), true);
    else this.writing = setTimeout(() => writeHash(formatHash(this.view), false), 120);
    const moved = this.view.model !== before.model || this.view.beside !== before.beside;
    if (moved && this.view.text !== '') this.reload();
  }

  /** Looks at a head worth seeing, unless the reader has chosen one. */
  suggest(layer: number, head: number): void {
    const [lastLayer, lastHead] = this.suggested;
    const chosen = this.view.layer !== lastLayer || this.view.head !== lastHead;
    this.suggested = [layer, head];
    const there = this.view.layer === layer && this.view.head === head;
    if (!chosen && !there) this.change({ layer, head }, true);
  }

  /** A view's own state, kept in the address under a name with a dot, `paths.level`. */
  option(name: string, otherwise: string): string {
    return this.view.more[name] ?? otherwise;
  }

  /** Null takes it out of the address; `quiet` is never a step of its own for Back. */
  setOption(name: string, value: string | null, quiet = false): void {
    const more = { ...this.view.more };
    if (value === null) delete more[name];
    else more[name] = value;
    this.change({ more }, quiet);
  }

  /** Puts the pointer on tokens; null takes it away. */
  point(spot: Partial<Spot> | null): void {
    const { hover } = this;
    if (!spot) {
      if (hover) this.hover = null;
      return;
    }
    const next = { side: spot.side ?? 'a', query: spot.query ?? null, key: spot.key ?? null };
    if (hover && hover.side === next.side && hover.query === next.query && hover.key === next.key) return;
    this.hover = next;
  }

  /** Pins tokens, given in the numbers of a side. */
  choose(spot: Partial<Spot>): void {
    const part: Partial<ViewState> = {};
    const here = (token: number) => this.across(spot.side ?? 'a', 'a', token)[0] ?? null;
    if (spot.query !== undefined) part.query = spot.query === null ? null : here(spot.query);
    if (spot.key !== undefined) part.key = spot.key === null ? null : here(spot.key);
    this.change(part);
  }

  /** Tokens of a side that are looked at, as query or as key; linked across models by characters. */
  litIn(side: Side, part: 'query' | 'key'): number[] {
    const { hover } = this;
    if (hover) {
      const token = hover[part] ?? (part === 'query' ? this.pinned('query', hover.side) : null);
      return token === null ? [] : this.across(hover.side, side, token);
    }
    const token = this.view[part];
    return token === null ? [] : this.across('a', side, token);
  }

  /** The tokens of one side that stand for a token of another: those that share its characters. */
  across(from: Side, to: Side, token: number): number[] {
    if (from === to) return [token];
    if (from === 'before' || to === 'before') {
      const mine = from === 'before' ? [token] : this.across(from, 'a', token);
      if (!this.a || !this.before) return [];
      const reads = { before: this.before.read, after: this.a.read };
      if (to === 'before') return mine.flatMap((one) => acrossTexts(this.pairs, reads, one, 'after'));
      return acrossTexts(this.pairs, reads, token, 'before').flatMap((one) => this.across('a', to, one));
    }
    const [here, there] = [this[from], this[to]];
    const found = here?.read.tokens[token];
    if (!found || !there || found.special) return [];
    return there.overlapping(found.start, found.end, found.in_pair);
  }

  private pinned(part: 'query' | 'key', side: Side): number | null {
    const token = this.view[part];
    return token === null ? null : (this.across('a', side, token)[0] ?? null);
  }

  /** Heads of a layer of the model that is looked at. */
  headsOf(layer: number): number | undefined {
    return this.a?.read.heads[layer];
  }

  /** The state with its numbers inside the model and the text. */
  protected within(view: ViewState): ViewState {
    const inside = (given: number | null, count: number | undefined) =>
      given !== null && (count === undefined || given < count) ? given : null;
    const read = this.a?.read;
    const layer = inside(view.layer, read?.layers) ?? 0;
    return {
      ...view,
      layer,
      head: inside(view.head, this.headsOf(layer)) ?? 0,
      query: inside(view.query, this.a?.count),
      key: inside(view.key, this.a?.count),
    };
  }

  /** Takes up a state of the address that was left before. */
  protected takeUp(state: ViewState): void {
    clearTimeout(this.writing);
    this.lastPush = 0;
    this.hover = null;
    this.view = this.within(state);
  }
}
