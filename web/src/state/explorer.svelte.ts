/** The state of the page: what was read, what is looked at, and what went wrong. */

import { FrameSource } from '../api/frame';
import { HttpSource } from '../api/http';
import { openSource } from '../api/open';
import type { PageRequest } from '../api/request';
import * as requests from '../api/requests';
import { SavedSource } from '../api/saved';
import { accepted, jsonOf, problem, Refused, ServerGone, type Source } from '../api/source';
import { keepToken, keyIn, withHash } from '../api/token';
import type { ModelInfo, Problem, Session } from '../api/types';
import { shortName } from '../draw/compare';
import type { LiveText } from '../live/reading';
import { Answers } from './answers.svelte';
import { againstOf, type Replaceable, type TextPair, withWord } from './editing';
import { Looking, type Spot } from './looking.svelte';
import type { Reading, Side } from './reading.svelte';
import { lacking } from './saved';
import { loadedFirst, sendBoth, unpackBoth } from './sending';
import { parseHash, type ViewState } from './url';

export type { Reading, Side, Spot };

/** starting: no answer yet; locked: no valid launch token; gone: the server does not answer. */
export type Phase = 'starting' | 'ready' | 'locked' | 'gone';

/** Dialogs over the page. */
export type Dialog = 'help' | 'palette' | 'export' | 'load';

/** A short text is read sooner than it takes to ask twice at leisure. */
const AT_ONCE_MS = 30;
const SOON_MS = 250;
const LATER_MS = 1500;

export class Explorer extends Looking {
  readonly source: Source;
  phase: Phase = $state('starting');
  session: Session | null = $state.raw(null);
  models: readonly ModelInfo[] = $derived(this.session?.models ?? []);
  draft = $state('');
  draftPair = $state('');
  /** The text box is open although a text is shown. */
  editing = $state(false);
  /** Counts how often the text box was asked for: it takes the focus then. */
  edits = $state(0);
  /** When the page closed the text box under the hands of somebody who typed; null: it did not. */
  closedAt: number | null = null;
  /** A text is being sent. */
  busy = $state(false);
  /** Why the last text was refused. */
  problem: Problem | null = $state.raw(null);
  /** What was left out of a file that was opened, or empty. */
  fileNote = $state('');
  dialog: Dialog | null = $state(null);
  /** The box for another word in place of the chosen one is open. */
  replacing = $state(false);
  /** Texts before the one that is shown, as edits left them. */
  private past: { texts: TextPair; against: TextPair | null }[] = [];
  /** Larger or smaller cells, set by the map while it is shown. */
  zoomBy: (by: number) => void = () => {};

  model: ModelInfo | null = $derived(this.modelNamed(this.view.model) ?? this.models[0] ?? null);
  beside: ModelInfo | null = $derived(this.modelNamed(this.view.beside));

  private readonly answers: Answers;
  private sending: AbortController | null = null;

  constructor(source: Source = openSource()) {
    super();
    this.source = source;
    this.answers = new Answers(source, {
      readings: () => this.shown,
      lost: () => this.lost(),
      locked: () => (this.phase = 'locked'),
      begun: (reading) => void this.follow(reading),
    });
  }

  /** Close a dialog, but not another one that has opened since: the browser reports a close by Escape later. */
  closeDialog(name: Dialog): void {
    if (this.dialog === name) this.dialog = null;
  }

  /** Paths of all answers that were shown, for a page that is saved to disk. */
  get asked(): Set<string> {
    return this.answers.asked;
  }

  /** Texts that the page offers to begin with. */
  get examples(): readonly string[] {
    return this.session?.examples ?? [];
  }

  /** Whether the text that is shown is one of the examples. */
  get example(): boolean {
    return this.view.pair === '' && this.examples.includes(this.view.text);
  }

  /** Reads the first example, where no text was given; it is no step of its own for Back. */
  async readExample(): Promise<void> {
    const [text = ''] = this.examples;
    if (text === '') return;
    this.draft = text;
    this.change({ text }, true);
    await this.attempt(() => this.load());
  }

  /** The view of each group of tabs that was open last: its tab leads back to it. */
  readonly lastOf: Record<string, string> = {};
  /** Strength of each token's tint in the text above the drawer, 0 to 1; null: that of the canvas. */
  textShares: ArrayLike<number> | null = $state.raw(null);
  /** The first view was looked at: a shared page holds it too. */
  startShown = false;
  /** The text that is typed now, where it is another one than the text that is shown. */
  get typed(): LiveText | null {
    return this.live !== null && this.live.read.text !== this.a?.text ? this.live : null;
  }

  /** Whether another text can be typed: the server reads it, or the model in this file. */
  get takesText(): boolean {
    return this.source.live || (this.source instanceof SavedSource && this.source.computes);
  }

  /** Paths of the short texts that are shown, by the place where each is. */
  readonly livePaths = new Map<string, string>();

  /** Whether there is an index that can be searched. */
  get searches(): boolean {
    return this.source.live && this.session !== null && this.session.index !== null;
  }

  /** Whether other models can be loaded from here. */
  get loads(): boolean {
    return this.source.live && this.session?.loads === true;
  }

  /** Counts the times the server came back: whatever asks through `fetch` asks again. */
  get revivals(): number {
    return this.answers.revivals;
  }

  private get loading(): boolean {
    return this.models.some(({ phase }) => phase === 'waiting' || phase === 'loading');
  }

  private get shown(): Reading[] {
    return [this.a, this.b, this.before].filter((reading) => reading !== null);
  }

  /** Greets the server and reads the text in the address, if there is one. */
  async start(): Promise<void> {
    const { source } = this;
    const saved = source instanceof SavedSource ? source.page.hash : source instanceof FrameSource ? source.hash : '';
    this.arrive(parseHash(location.hash.length > 1 ? location.hash : saved));
    window.addEventListener('popstate', () => void this.restore(parseHash(location.hash)));
    await this.connect();
  }

  /** Takes up the state of an address before anything is read. */
  private arrive(view: ViewState): void {
    this.view = view;
    [this.draft, this.draftPair] = [view.text, view.pair];
  }

  /** Greets the server, again after it was gone, and reads the text of the address. */
  async connect(): Promise<void> {
    await this.attempt(async () => {
      await this.greet();
      if (!(this.source instanceof SavedSource)) await this.load();
      else await this.unpack(this.source);
    });
  }

  /**
   * Opens a locked page with what was pasted: the address that the explorer printed, or its token alone.
   * Gives back why it does not open, or nothing.
   */
  async unlock(pasted: string): Promise<string> {
    const key = keyIn(pasted, location.origin);
    if (typeof key === 'string') return key;
    if (key.elsewhere !== null) {
      location.assign(withHash(key.elsewhere, location.hash));
      return '';
    }
    if (!(this.source instanceof HttpSource)) return '';
    this.source.token = key.token;
    this.problem = null;
    if (key.hash !== '') this.arrive(parseHash(key.hash));
    await this.connect();
    if (this.phase === 'locked') return 'this is not the token of the running explorer; copy the address it printed last';
    keepToken(key.token);
    this.answers.revivals++;
    for (const reading of this.shown) void this.follow(reading);
    return '';
  }

  /** Opens the text box to type another text; that of an example is marked, so that typing replaces it. */
  edit(): void {
    this.editing = true;
    this.edits++;
  }

  /** Reads a text that was typed. An empty one is refused, and the text that is shown stays. */
  async read(text: string, pair = '', cut = false): Promise<void> {
    this.draft = text;
    this.draftPair = pair;
    this.fileNote = '';
    if (text === '') {
      this.problem = problem('EmptyText', 'the text is empty; type at least one word');
      return;
    }
    this.change({ ...this.withoutAnswers(text), text, pair, cut, against: '', againstPair: '', global: '', query: null, key: null, zoom: null, top: 0, left: 0 });
    await this.attempt(() => this.load());
  }

  /** Reads what is typed, while the box stays open; no step of its own for Back. */
  async readTyped(): Promise<void> {
    const text = this.draft;
    if (text.trim() === '' || text === this.view.text) return;
    this.change({ ...this.withoutAnswers(text), text, pair: '', cut: false, against: '', againstPair: '', global: '', query: null, key: null, zoom: null, top: 0, left: 0 }, true);
    await this.attempt(() => this.load());
  }

  /** The state without questions about a prediction of the text before: another text has another one. */
  private withoutAnswers(text: string): Partial<ViewState> {
    if (text === this.view.text) return {};
    const { 'paths.class': _class, 'paths.word': _word, ...more } = this.view.more;
    return { more };
  }

  /** Reads the text with another word in place of one, and compares it with what it was. */
  async replace(word: Replaceable, typed: string): Promise<void> {
    const { text, pair } = this.view;
    const next = withWord({ text, pair }, word, typed.trim());
    this.replacing = false;
    if (next.text === text && next.pair === pair) return;
    this.past.push({ texts: { text, pair }, against: againstOf(this.view) });
    await this.show(next, { text, pair }, word.first);
  }

  /** Shows the text before the last edit again, and compares it with what that was compared with. */
  async undo(): Promise<void> {
    if (!this.source.live) return;
    const last = this.past.pop();
    const texts = last?.texts ?? againstOf(this.view);
    if (texts) await this.show(texts, last?.against ?? null, this.view.query);
  }

  /** Compares the text with another one; null: with none. */
  async compareWith(against: TextPair | null): Promise<void> {
    await this.show({ text: this.view.text, pair: this.view.pair }, against, this.view.query);
  }

  /** Makes ranges of the text global, `4-9,20-31`, besides those that the model was trained with, and compares both. */
  async makeGlobal(global: string): Promise<void> {
    this.change({ global, against: '', againstPair: '' });
    await this.attempt(() => this.load());
  }

  private async show(texts: TextPair, against: TextPair | null, query: number | null): Promise<void> {
    [this.draft, this.draftPair] = [texts.text, texts.pair];
    const compared = { against: against?.text ?? '', againstPair: against?.pair ?? '', global: '' };
    this.change({ ...texts, ...compared, query, key: null });
    await this.attempt(() => this.load());
  }

  /** The model of a name, or null. */
  modelNamed(name: string): ModelInfo | null {
    return this.models.find((model) => model.name === name) ?? null;
  }

  /** A model's name without its owner, "all-MiniLM-L6-v2", where that still tells it from the others. */
  shortName(name: string): string {
    return shortName(name, this.models.map((model) => model.name));
  }

  /** As everywhere; a saved page that lacks the head says so and stays. */
  override change(part: Partial<ViewState>, quiet = false): void {
    const lacks = lacking(this, this.within({ ...this.view, ...part }));
    if (lacks) {
      this.problem = problem('NotSaved', lacks);
      return;
    }
    if (this.problem?.kind === 'NotSaved') this.problem = null;
    super.change(part, quiet);
  }

  /** The answer of a request; it is kept, and asked for again only when it may have changed. */
  fetch<T>(request: PageRequest<T>): Promise<T> {
    return this.answers.get(request);
  }

  /** The answer of a request in JSON, asked for again each time. */
  fetchFresh<T>(request: PageRequest<T>): Promise<T> {
    return this.answers.fresh(request);
  }

  /** Posts to the API; the answer is a typed result. */
  post<T>(path: string, body: unknown = {}): Promise<T> {
    return this.answers.post<T>(path, body);
  }

  /** Posts a file to the API. */
  upload<T>(path: string, file: Blob): Promise<T> {
    return this.answers.upload<T>(path, file);
  }

  /** Deletes at the API. */
  remove(path: string): Promise<void> {
    return this.answers.remove(path);
  }

  /** Stops the analysis of a text; what is measured stays. */
  async stop(reading: Reading): Promise<void> {
    await this.attempt(async () => {
      await this.post(`texts/${reading.id}/stop`);
      await this.poll(reading);
    });
  }

  /** Goes on with an analysis that was stopped. */
  async go(reading: Reading): Promise<void> {
    await this.attempt(async () => {
      await this.post(`texts/${reading.id}/go`);
      await this.poll(reading);
      void this.follow(reading);
    });
  }

  /** The server does not answer: asks again until it does. */
  private lost(): void {
    if (this.phase === 'gone') return;
    this.phase = 'gone';
    const again = async () => {
      if (this.phase !== 'gone') return;
      try {
        await this.greet();
        this.answers.revivals++;
        for (const reading of this.shown) void this.follow(reading);
        if (!this.a) await this.attempt(() => this.load());
      } catch (error) {
        // A refusal is an answer: the server is there, and was started again with another token.
        if (error instanceof Refused) this.report(error);
        else setTimeout(() => void again(), LATER_MS);
      }
    };
    setTimeout(() => void again(), LATER_MS);
  }

  /** Asks for the session; asks again while models are still being loaded. */
  async greet(): Promise<void> {
    const { path } = requests.session();
    this.session = jsonOf<Session>(accepted(await this.source.get(path)));
    this.phase = 'ready';
    this.asked.add(path);
    if (this.loading && this.source.live) {
      setTimeout(() => void this.attempt(() => this.greet()), SOON_MS);
    }
  }

  /** Takes up a state of the address that was left before. */
  private async restore(state: ViewState): Promise<void> {
    const { view } = this;
    const same = (['text', 'pair', 'against', 'againstPair', 'global', 'cut', 'model', 'beside'] as const).every((name) => state[name] === view[name]);
    this.takeUp(state);
    if (same) return;
    this.draft = state.text;
    this.draftPair = state.pair;
    this.problem = null;
    await this.attempt(() => this.load());
  }

  protected override reload(): void {
    void this.attempt(() => this.load());
  }

  /** Reads the text of the view with the models of the view. */
  private async load(): Promise<void> {
    this.sending?.abort();
    const { text } = this.view;
    if (text === '') {
      [this.a, this.b, this.before, this.busy] = [null, null, null, false];
      return;
    }
    const sending = new AbortController();
    this.sending = sending;
    this.busy = true;
    this.problem = null;
    try {
      await this.named();
      const models = { a: this.model, b: this.beside };
      const { a, b, before } = await loadedFirst(() => sendBoth(this.answers, this.view, models, this, sending.signal));
      if (this.sending !== sending) return;
      [this.a, this.b, this.before, this.hover] = [a, b, before, null];
      this.pairs = [];
      this.view = this.within(this.view);
      for (const reading of [a, b, before]) if (reading) void this.follow(reading);
    } catch (error) {
      if (this.sending === sending) throw error;
    } finally {
      if (this.sending === sending) this.busy = false;
    }
  }

  /** Waits for the names of the models of the view; the server itself waits for their weights. */
  private async named(): Promise<void> {
    const coming = () =>
      this.loading &&
      ([this.view.model, this.view.beside].some((name) => name !== '' && !this.modelNamed(name)) ||
        // Whether it has global tokens is known once it is there.
        (this.view.global !== '' && ['waiting', 'loading'].includes(this.model?.phase ?? '')));
    while (coming() && this.source.live) await new Promise((resolve) => setTimeout(resolve, SOON_MS));
  }

  /** The texts that a saved page holds. */
  private async unpack(source: SavedSource): Promise<void> {
    const { a, b, before } = await unpackBoth(source, this.view);
    if (!a) return;
    [this.a, this.b, this.before] = [a, b, before];
    [this.draft, this.draftPair] = [a.text, a.pair];
    this.view = this.within(this.view);
    for (const reading of this.shown) await this.poll(reading);
  }

  /** Asks how far a text is until it is done, stopped or no longer shown. */
  private async follow(reading: Reading): Promise<void> {
    const began = performance.now();
    try {
      do {
        await this.poll(reading);
        if (!reading.underway) return;
        // A short text is measured within a moment.
        const spent = performance.now() - began;
        const wait = spent < 400 ? AT_ONCE_MS : spent < 3000 ? SOON_MS : 4 * SOON_MS;
        await new Promise((resolve) => setTimeout(resolve, wait));
      } while (this[reading.side] === reading && this.phase === 'ready');
    } catch (error) {
      this.report(error);
    }
  }

  private async poll(reading: Reading): Promise<void> {
    const state = await this.answers.fresh(requests.state({ text: reading.id }));
    // Views depend on it: an unchanged state must not set them to work.
    if (JSON.stringify(state) !== JSON.stringify(reading.state)) reading.state = state;
  }

  private async attempt(task: () => Promise<unknown>): Promise<void> {
    try {
      await task();
    } catch (error) {
      this.report(error);
    }
  }

  private report(error: unknown): void {
    if (error instanceof ServerGone) this.lost();
    else if (error instanceof Refused) {
      this.problem = error.problem;
      if (error.status === 401) this.phase = 'locked';
    } else if (!(error instanceof DOMException && error.name === 'AbortError')) throw error;
  }
}
