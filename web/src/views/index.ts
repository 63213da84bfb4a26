/** The views that are offered: their tabs and their keys. A search is there with an index alone. */

import { SavedSource } from '../api/saved';
import type { Explorer } from '../state/explorer.svelte';
import { type Binding, BINDINGS } from '../state/keys';
import { OF_TEXT } from '../state/url';
import { GROUPS, type View, VIEWS } from './list';

export { VIEWS };
export type { View };

/** Pictures of one canvas, on which the text and the heads stay where they are. */
export const CANVAS: readonly string[] = ['overview', 'map', 'flow'];

/** Whether a view slides over the canvas as a drawer. */
export function inDrawer(view: View): boolean {
  return view.group === 'Measure';
}

export function viewOf(id: string): View {
  return VIEWS.find((view) => view.id === id) ?? (VIEWS.find((view) => view.id === OF_TEXT) as View);
}

/** Whether a view has a box of its own for what is read: a second one would not know of it. */
export function hasOwnBox(view: View): boolean {
  return view.needs === 'index' || view.id === 'tour';
}

/** The views that this explorer offers, in the order of the tabs: a search needs an index, unless an address asked for it. */
export function viewsOf(explorer: Explorer): readonly View[] {
  const { source } = explorer;
  const held = source instanceof SavedSource ? (source.page.views ?? []) : [];
  const offered = ({ needs, id, ability }: View) =>
    held.length > 0 ? held.includes(id) || (needs === 'live' && explorer.takesText) : id === explorer.view.view || (needs === 'index' ? explorer.searches : ability ? explorer.models.some((model) => model[ability]) : needs !== 'live' || explorer.takesText);
  return GROUPS.flatMap((group) => VIEWS.filter((view) => view.group === group && offered(view)));
}

/** The views that share a tab. */
export function together(views: readonly View[]): { group: View['group']; views: readonly View[] }[] {
  return GROUPS.flatMap((group) => {
    const own = views.filter((view) => view.group === group);
    return own.length === 0 ? [] : [{ group, views: own }];
  });
}

/** The tabs of views that stand beside each other. */
export function tabsOf(explorer: Explorer, views: readonly View[]) {
  return views.map(({ id, title, hint, key }) => ({
    id,
    name: title,
    hint: `${hint} (${key})`,
    selected: id === viewOf(explorer.view.view).id,
    open: () => explorer.change({ view: id }),
  }));
}

/** All keys: those of the page and one for every view. */
export function bindingsOf(explorer: Explorer): readonly Binding[] {
  const views = viewsOf(explorer).map((view) => ({
    key: view.key,
    shown: view.key,
    means: `${view.title}: ${view.hint}`,
    action: { do: 'view', view: view.id } as const,
    local: false,
  }));
  return [...BINDINGS, ...views];
}
