/** What every chapter has at hand: the reader's choices, which the address keeps, and the ways into the views. */

import type { Tone } from '../../draw/color';
import type { Explorer } from '../../state/explorer.svelte';
import type { ViewState } from '../../state/url';
import type { Experiment } from './answers';

export const SAMPLE = 'The woman lost her keys in the garden, so she waited by the door until her brother came home.';
/** Characters of a text that the tour reads. */
export const MOST = 600;
const WAIT_MS = 50;
const MOST_WAITS = 400;

/** Where a link leads: a view, and what is looked at in it. */
export interface Way {
  view: string;
  label: string;
  /** Layer, head and tokens; only taken up if the experiment's model is loaded. */
  part?: Partial<ViewState> | undefined;
  /** State of the view itself, names with a dot. */
  more?: Readonly<Record<string, string>> | undefined;
}

export class Guide {
  readonly explorer: Explorer;

  constructor(explorer: Explorer) {
    this.explorer = explorer;
  }

  get tone(): Tone {
    return this.explorer.tone;
  }

  /** The text of the page, or the tour's own while none was read. */
  get text(): string {
    return this.explorer.view.text.slice(0, MOST) || SAMPLE;
  }

  /** A choice of the reader, by its name behind `tour.`. */
  option(name: string, otherwise = ''): string {
    return this.explorer.option(`tour.${name}`, otherwise);
  }

  /** Changes choices; null forgets one. `quiet`: not a step of its own for Back. */
  choose(part: Readonly<Record<string, string | null>>, quiet = false): void {
    const more: Record<string, string> = { ...this.explorer.view.more };
    for (const [name, value] of Object.entries(part)) {
      if (value === null) delete more[`tour.${name}`];
      else more[`tour.${name}`] = value;
    }
    // Another chapter is a step of its own for Back, however fast the reader is.
    this.explorer.change('chapter' in part ? { more, view: 'tour' } : { more }, quiet);
  }

  /** The step of an animation. */
  get step(): number {
    return Number(this.option('step', '0')) || 0;
  }

  setStep(step: number): void {
    this.choose({ step: String(step) }, true);
  }

  /** Whether the reader has chosen another head or token than the chapter begins with. */
  get moved(): boolean {
    return ['layer', 'head', 'token'].some((name) => this.option(name) !== '');
  }

  /** Whether the model of an experiment is one that the views can show. */
  loaded(run: Experiment | null): boolean {
    return run !== null && this.explorer.models.some(({ name, phase }) => name === run.model.name && phase === 'ready');
  }

  /** Opens a view on this text, with the model of the experiment if it is loaded. */
  async go(way: Way, run: Experiment | null): Promise<void> {
    const { explorer, text } = this;
    const exact = this.loaded(run);
    const model = exact && run && run.model.name !== explorer.model?.name ? run.model.name : null;
    explorer.change({ view: way.view, more: { ...explorer.view.more, ...way.more }, ...(model === null ? {} : { model }) });
    if (explorer.source.live && explorer.view.text.slice(0, MOST) !== text) await explorer.read(text);
    if (!way.part || !exact) return;
    // Numbers of layers and heads count in the model that is shown, so it must have read the text.
    for (let waits = 0; waits < MOST_WAITS; waits++) {
      const shown = explorer.a ? explorer.models[explorer.a.read.model_index]?.name : null;
      if (!explorer.busy && shown === run?.model.name) break;
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
    explorer.change(way.part, true);
  }
}
