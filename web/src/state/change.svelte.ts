/** What changed from the text compared with to the text that is shown. */

import { type Arrays } from '../api/binary';
import * as requests from '../api/requests';
import type { TextChangeMeta } from '../api/types';
import type { Explorer, Reading } from './explorer.svelte';
import { type Loaded, loaded } from './loaded.svelte';

export interface TextChange {
  before: Reading;
  after: Reading;
  answer: Arrays<TextChangeMeta>;
}

/** Words side by side, states and embeddings, once both texts are read. */
export function loadedChange(explorerOf: () => Explorer): Loaded<TextChange> {
  return loaded(() => {
    const explorer = explorerOf();
    const { a: after, before } = explorer;
    if (!after?.readable || !before?.readable) return null;
    return explorer
      .fetch(requests.textChange({ before: before.id, after: after.id }))
      .then((answer) => ({ before, after, answer }));
  });
}

/** Whether an answer is about the texts that are shown. */
export function isCurrent(change: TextChange | null, { a, before }: Explorer): change is TextChange {
  return change !== null && change.after === a && change.before === before;
}
