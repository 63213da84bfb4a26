import { readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';

/** Short names for the scopes of components' styles: the place of a component in the sorted list of all. */
export function scopeNames(root) {
  const paths = readdirSync(join(root, 'src'), { recursive: true }).filter((path) => path.endsWith('.svelte'));
  const names = new Map(paths.sort().map((path, index) => [resolve(root, 'src', path), `_${index.toString(36)}`]));
  return ({ filename, hash }) => names.get(resolve(root, filename)) ?? hash(filename);
}

/**
 * Takes out what Svelte does only where a page comes rendered from a server, which this one does not: walking
 * over the nodes that are already there. What it would do then hangs on one variable that is never set here.
 */
export function withoutHydration() {
  return {
    name: 'unmask-without-hydration',
    transform(code, id) {
      if (id.endsWith('/svelte/src/internal/client/dom/hydration.js')) {
        const known = ['export let hydrating = false;', 'hydrating = value;'];
        if (!known.every((line) => code.includes(line))) fail('Svelte keeps hydration elsewhere now');
        return { code: code.replace(known[0], 'export const hydrating = false;').replace(known[1], ''), map: null };
      }
      if (id.endsWith('.svelte')) {
        return { code: code.replace(/^\s*\$\.(?:reset|next)\((?:\w+|)\);$/gm, ''), map: null };
      }
    },
  };
}

function fail(why) {
  throw new Error(why);
}
