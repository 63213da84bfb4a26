/** What a saved page can answer: controls that lead to anything else are not shown in it. */

import type { PageRequest } from '../api/request';
import { SavedSource } from '../api/saved';
import type { Explorer } from './explorer.svelte';

/** Whether the answers of all these requests can be had: in a saved page, those that it holds. */
export function canAnswer({ source }: Explorer, wanted: readonly PageRequest<unknown>[]): boolean {
  return !(source instanceof SavedSource) || wanted.every(({ path }) => path in source.page.answers);
}
