/** The state of the page: what was read, what is looked at, and what went wrong. */

import { Client, Refused, ServerGone } from '../api/client';
import type { Grid } from '../api/binary';
import { takeToken } from '../api/token';
import type { ModelInfo, Problem, TextRead } from '../api/types';
import type { Cell } from '../draw/layout';
import { label, type Segment, segments } from '../draw/words';
import type { Action } from './keys';
import { Matrix } from './matrix';
import { DEFAULTS, formatHash, MAX_ZOOM, parseHash, type ViewState } from './url';

/** A text that was read, ready to be shown. */
export interface Reading {
  read: TextRead;
  text: string;
  cut: boolean;
  segments: Segment[];
  /** The tokens' names. */
  names: string[];
}

/** starting: no answer yet; locked: no valid launch token; gone: the server has stopped. */
export type Phase = 'starting' | 'ready' | 'locked' | 'gone';

const HELD_MATRICES = 12;
/** Changes closer together than this are one step for Back. */
const ONE_STEP_MS = 700;

export class Explorer {
  phase: Phase = $state('starting');
  model: ModelInfo | null = $state.raw(null);
  view: ViewState = $state.raw({ ...DEFAULTS });
  draft = $state('');
  busy = $state(false);
  /** Why the last request was refused. */
  problem: Problem | null = $state.raw(null);
  reading: Reading | null = $state.raw(null);
  /** Statistics of every head; null until they are measured. */
  heads: Grid | null = $state.raw(null);
  /** The map that is shown; it may lag behind the chosen head while its values travel. */
  matrix: Matrix | null = $state.raw(null);
  /** Counts arrivals: whatever draws values depends on it. */
  arrivals = $state(0);
  /** What the pointer is on; either part may be absent. */
  hover: Partial<Cell> | null = $state.raw(null);
  helpOpen = $state(false);

  /** The query that is looked at: the one under the pointer, else the chosen one. */
  query: number | null = $derived(this.hover?.query ?? this.view.query);
  key: number | null = $derived(this.hover ? (this.hover.key ?? null) : this.view.key);

  private readonly client = new Client(takeToken());
  private readonly matrices = new Map<string, Matrix>();
  private reader: AbortController | null = null;
  private greeting: Promise<ModelInfo> | null = null;
  private lastPush = 0;

  /** Greets the server and reads the text in the address, if there is one. */
  async start(): Promise<void> {
    this.view = parseHash(location.hash);
    this.draft = this.view.text;
    window.addEventListener('popstate', () => void this.restore(parseHash(location.hash)));
    await this.connect();
  }

  /** Greets the server, again after it was gone, and reads the text of the address. */
  async connect(): Promise<void> {
    await this.attempt(async () => {
      await this.greet();
      if (this.view.text !== '') await this.load(this.view.text, this.view.cut);
    });
  }

  /** Reads a text that was typed. */
  async read(text: string, cut = false): Promise<void> {
    this.draft = text;
    await this.attempt(async () => {
      await this.greet();
      if (await this.load(text, cut)) this.change({ text, cut, query: null, key: null, zoom: 0 });
    });
  }

  /** Changes what is looked at, and the address with it. */
  change(part: Partial<ViewState>): void {
    this.view = this.within({ ...this.view, ...part });
    const now = performance.now();
    const address = formatHash(this.view);
    if (address !== location.hash) {
      const sameStep = now - this.lastPush < ONE_STEP_MS && !('text' in part);
      if (sameStep) history.replaceState(null, '', address);
      else history.pushState(null, '', address);
      this.lastPush = now;
    }
    this.show();
  }

  /** Does what a key asks for. */
  act(action: Action): void {
    const { view, model } = this;
    if (action.do === 'help') this.helpOpen = !this.helpOpen;
    if (!this.reading || !model) return;
    const last = this.reading.names.length - 1;
    const step = (from: number | null, by: number) =>
      from === null ? (by > 0 ? 0 : last) : Math.min(last, Math.max(0, from + by));
    if ('by' in action) {
      this.hover = null;
      if (action.do === 'layer') this.change({ layer: wrap(view.layer + action.by, model.layers) });
      if (action.do === 'head') this.change({ head: wrap(view.head + action.by, model.heads) });
      if (action.do === 'query') this.change({ query: step(view.query, action.by) });
      if (action.do === 'key') this.change({ key: step(view.key, action.by) });
      if (action.do === 'zoom') {
        this.change({ zoom: Math.min(MAX_ZOOM, Math.max(0, view.zoom + action.by)) });
      }
    }
    if (action.do === 'fit') this.change({ zoom: 0 });
    if (action.do === 'side') this.change({ side: view.side === 'flow' ? 'table' : 'flow' });
    if (action.do === 'release') this.change({ key: null });
  }

  /** Asks for the model once; whoever comes meanwhile waits for the same answer. */
  private async greet(): Promise<void> {
    if (this.phase === 'ready') return;
    this.greeting ??= this.client.model();
    try {
      this.model = await this.greeting;
      this.phase = 'ready';
    } finally {
      this.greeting = null;
    }
  }

  /** Takes up a state of the address that was left before. */
  private async restore(state: ViewState): Promise<void> {
    const sameText = state.text === this.view.text && state.cut === this.view.cut;
    this.lastPush = 0;
    this.hover = null;
    this.view = state;
    if (sameText) return this.show();
    this.draft = state.text;
    if (state.text === '') {
      this.reading = null;
      this.matrix = null;
      this.problem = null;
      return;
    }
    await this.attempt(() => this.load(state.text, state.cut));
  }

  /** Reads a text; false if another one was asked for meanwhile. */
  private async load(text: string, cut: boolean): Promise<boolean> {
    this.reader?.abort();
    const reader = new AbortController();
    this.reader = reader;
    this.busy = true;
    this.problem = null;
    try {
      const read = await this.client.read(text, cut, reader.signal);
      if (this.reader !== reader) return false;
      this.matrices.clear();
      this.hover = null;
      this.heads = null;
      this.matrix = null;
      const reading = {
        read,
        text,
        cut,
        segments: segments(text, read.tokens, read.kept_tokens < read.total_tokens),
        names: read.tokens.map(label),
      };
      this.reading = reading;
      this.view = this.within(this.view);
      this.show();
      void this.attempt(() => this.measure(reading));
      return true;
    } catch (error) {
      if (this.reader !== reader) return false;
      throw error;
    } finally {
      if (this.reader === reader) this.busy = false;
    }
  }

  /** Asks for the statistics of all heads, which take longer than one map. */
  private async measure(reading: Reading): Promise<void> {
    const heads = await this.holding(reading, () => this.client.heads(reading.read.id));
    if (this.reading === reading) this.heads = heads;
  }

  /** Brings the chosen head's map to the page once its first values are here. */
  private show(): void {
    const { reading } = this;
    if (!reading) return;
    const { layer, head } = this.view;
    const name = `${layer},${head}`;
    let matrix = this.matrices.get(name);
    if (!matrix) {
      matrix = new Matrix(
        layer,
        head,
        reading.names.length,
        async (rows, columns) => {
          const tile = () => this.client.tile(reading.read.id, layer, head, rows, columns);
          return (await this.holding(reading, tile)).values;
        },
        () => {
          if (this.reading !== reading) return;
          if (this.view.layer === layer && this.view.head === head) {
            this.matrix = this.matrices.get(name) ?? null;
          }
          this.arrivals++;
        },
        (error) => this.report(error),
      );
      this.matrices.set(name, matrix);
      if (this.matrices.size > HELD_MATRICES) {
        this.matrices.delete(this.matrices.keys().next().value as string);
      }
    }
    const corner = { start: 0, stop: 1 };
    if (this.matrix === null || matrix.within(corner, corner).length > 0) this.matrix = matrix;
  }

  /** Does a request about a text; one the server no longer holds is sent again, and the request too. */
  private async holding<T>(reading: Reading, request: () => Promise<T>): Promise<T> {
    try {
      return await request();
    } catch (error) {
      if (!(error instanceof Refused && error.problem.kind === 'UnknownText')) throw error;
      await this.client.read(reading.text, reading.cut, new AbortController().signal);
      return request();
    }
  }

  /** The state with its numbers inside the model and the text. */
  private within(view: ViewState): ViewState {
    const inside = (given: number | null, count: number) =>
      given !== null && given < count ? given : null;
    const tokens = this.reading?.names.length;
    return {
      ...view,
      layer: inside(view.layer, this.model?.layers ?? Infinity) ?? 0,
      head: inside(view.head, this.model?.heads ?? Infinity) ?? 0,
      query: tokens === undefined ? view.query : inside(view.query, tokens),
      key: tokens === undefined ? view.key : inside(view.key, tokens),
    };
  }

  private async attempt(task: () => Promise<unknown>): Promise<void> {
    try {
      await task();
    } catch (error) {
      this.report(error);
    }
  }

  private report(error: unknown): void {
    if (error instanceof ServerGone) {
      this.phase = 'gone';
    } else if (error instanceof Refused) {
      this.problem = error.problem;
      if (error.status === 401) this.phase = 'locked';
    } else {
      throw error;
    }
  }
}

/** `index` in 0..count-1, going round. */
function wrap(index: number, count: number): number {
  return (index + count) % count;
}
