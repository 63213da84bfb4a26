/** The address bar, where there is one: a page in a notebook's frame has none and does without. */

/** Writes the hash, as a new step for Back or in place of the present one. */
export function writeHash(hash: string, step: boolean): void {
  if (hash === location.hash) return;
  try {
    if (step) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  } catch {
    // Some frames may not change their address, and a browser limits how often: the state itself holds.
  }
}
