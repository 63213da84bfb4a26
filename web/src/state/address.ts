/** The address bar, where there is one: a page in a notebook's frame has none and does without. */

/** Writes the hash, as a new step for Back or in place of the present one. */
export function writeHash(hash: string, step: boolean): void {
  if (hash === location.hash) return;
  try {
    if (step) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  } catch {
    // A file has no right to write its history; going to a place in itself it may.
    if (location.protocol === 'file:') return step ? location.assign(hash) : location.replace(hash);
    // Some frames may not change their address, and a browser limits how often: the state itself holds.
  }
}
