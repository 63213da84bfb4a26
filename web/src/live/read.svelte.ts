/** Reading short texts while they are typed. */

import type { Explorer } from '../state/explorer.svelte';
import { loaded, type Loaded } from '../state/loaded.svelte';
import * as requests from '../api/requests';
import { LiveText } from './reading';

/**
 * The text as the chosen model reads it, asked for again at every change; call it while a component is made.
 * `place` names where it is shown: a saved page holds what is shown there last.
 */
export function readLive(page: () => Explorer, place: string, text: () => string): Loaded<LiveText> {
  return loaded(() => {
    const explorer = page();
    const model = explorer.model;
    const typed = text();
    if (!model || typed === '') return null;
    const request = requests.live({ model: model.index, text: typed });
    explorer.livePaths.set(place, request.path);
    return explorer.fetch(request).then((answer) => new LiveText(answer));
  });
}
