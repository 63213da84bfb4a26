/** The corpus that the server reads with a model: begun when somebody looks, followed until it is read. */

import * as requests from '../api/requests';
import { Refused, ServerGone } from '../api/source';
import type { CorpusState } from '../api/types';
import type { Explorer } from './explorer.svelte';

const ASK_MS = 800;

export class CorpusReading {
  state: CorpusState | null = $state.raw(null);
  problem: string | null = $state(null);
  underway: boolean = $derived(this.state !== null && ['waiting', 'running'].includes(this.state.phase));

  constructor(private readonly explorer: Explorer) {}

  /** Begins to read the corpus, or resumes. */
  start(model: number): Promise<void> {
    return this.attempt(async () => {
      this.take(await this.explorer.post<CorpusState>(`corpus/${model}`));
    });
  }

  /** Stops; what is read stays. */
  stop(model: number): Promise<void> {
    return this.attempt(async () => {
      await this.explorer.remove(`corpus/${model}`);
      await this.ask(model);
    });
  }

  /** Asks how far it is; a live page begins what nobody has begun. */
  follow(model: number): Promise<void> {
    return this.attempt(async () => {
      await this.ask(model);
      if (this.explorer.source.live && this.state?.phase === 'none') await this.start(model);
    });
  }

  private async ask(model: number): Promise<void> {
    this.take(await this.explorer.fetchFresh(requests.corpus({ model })));
  }

  private take(state: CorpusState): void {
    // Views depend on it: an unchanged state must not set them to work.
    if (JSON.stringify(state) !== JSON.stringify(this.state)) this.state = state;
  }

  private async attempt(task: () => Promise<unknown>): Promise<void> {
    this.problem = null;
    try {
      await task();
    } catch (error) {
      if (error instanceof Refused) this.problem = error.problem.sentence;
      else if (!(error instanceof ServerGone)) throw error;
    }
  }
}

/** Follows the corpus of a model while a component is shown. */
export function followCorpus(explorerOf: () => Explorer, modelOf: () => number | null): CorpusReading {
  const reading = new CorpusReading(explorerOf());
  $effect(() => {
    const [explorer, model] = [explorerOf(), modelOf()];
    void explorer.revivals;
    if (model === null) return;
    void reading.follow(model);
    if (!explorer.source.live) return;
    const timer = setInterval(() => {
      if (reading.underway) void reading.follow(model);
    }, ASK_MS);
    return () => clearInterval(timer);
  });
  return reading;
}
