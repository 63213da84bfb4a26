/** An answer that a component waits for, asked for again whenever what it depends on changes. */

import { Refused, problem as problemWords, ServerGone } from '../api/source';
import type { Problem } from '../api/types';

export class Loaded<T> {
  /** The last answer; it stays while the next one travels. */
  value: T | null = $state.raw(null);
  /** Why the last request was refused. */
  problem: Problem | null = $state.raw(null);
  busy = $state(false);
  /** The last request had no answer at all: the server has stopped. */
  silent = $state(false);
}

/** What stands in place of a value that nobody answers for. */
export const SILENT = "The explorer's server does not respond, so this cannot be computed now.";

/**
 * Follows `ask`, which runs as an effect: call it while a component is made. `ask` returns null
 * when there is nothing to ask for yet. Answers that come late are dropped.
 */
export function loaded<T>(ask: () => Promise<T> | null): Loaded<T> {
  const result = new Loaded<T>();
  let latest = 0;
  $effect(() => {
    const number = ++latest;
    const asked = ask();
    if (!asked) {
      result.busy = false;
      return;
    }
    result.busy = true;
    asked.then(
      (value) => {
        if (number !== latest) return;
        result.value = value;
        result.problem = null;
        result.silent = false;
        result.busy = false;
      },
      (error: unknown) => {
        if (number !== latest) return;
        result.busy = false;
        result.silent = error instanceof ServerGone;
        if (error instanceof Refused) result.problem = error.problem;
        else if (error instanceof RangeError) result.problem = problemWords('BadAnswer', error.message);
        // Anything else is a fault and must be seen.
        else if (!result.silent) throw error;
      },
    );
  });
  return result;
}
