/** Reading short texts while they are typed. */

import type { PageRequest } from '../api/request';
import * as requests from '../api/requests';
import { Refused, ServerGone } from '../api/source';
import type { Arrays } from '../api/binary';
import type { LiveMeta } from '../api/types';
import type { Explorer } from '../state/explorer.svelte';
import { Loaded } from '../state/loaded.svelte';
import { LiveText } from './reading';

/**
 * The text as the chosen model reads it; call it while a component is made. One request is on its way at a time: of
 * what is typed meanwhile, the last text follows it. `place` names where it is shown: a shared page holds what is
 * shown there last. `hidden`: no token attends to a later one.
 */
export function readLive(page: () => Explorer, place: string, text: () => string, hidden: () => boolean = () => false): Loaded<LiveText> {
  const result = new Loaded<LiveText>();
  let wanted: PageRequest<Arrays<LiveMeta>> | null = null;
  let gone = false;

  async function follow(explorer: Explorer): Promise<void> {
    result.busy = true;
    while (wanted && !gone) {
      const request = wanted;
      try {
        result.value = new LiveText(await explorer.fetch(request));
        [result.problem, result.silent] = [null, false];
      } catch (error) {
        result.silent = error instanceof ServerGone;
        if (error instanceof Refused) result.problem = error.problem;
        else if (!result.silent) throw error;
      }
      if (wanted === request) wanted = null;
    }
    result.busy = false;
  }

  $effect(() => {
    const explorer = page();
    const typed = text();
    void explorer.revivals;
    if (!explorer.model || typed === '') return;
    const request = requests.live({ model: explorer.model.index, text: typed, future: hidden() ? 'hidden' : 'shown' });
    explorer.livePaths.set(place, request.path);
    const running = wanted !== null;
    wanted = request;
    if (!running) void follow(explorer);
  });
  $effect(() => () => void (gone = true));
  return result;
}
