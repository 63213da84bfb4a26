/** What actions do to the state of the page. */

import type { Explorer } from './explorer.svelte';
import type { Action } from './keys';

export function perform(explorer: Explorer, action: Action): void {
  if (action.do === 'help' || action.do === 'palette' || action.do === 'export') {
    explorer.dialog = explorer.dialog === action.do ? null : action.do;
    return;
  }
  if (action.do === 'view') return explorer.change({ view: action.view });
  const { view, a } = explorer;
  if (!a) return;
  if (action.do === 'undo') return void explorer.undo();
  const step = (from: number | null, by: number) =>
    from === null ? (by > 0 ? 0 : a.count - 1) : Math.min(a.count - 1, Math.max(0, from + by));
  explorer.point(null);
  switch (action.do) {
    case 'layer':
      return explorer.change({ layer: wrap(view.layer + action.by, a.read.layers) });
    case 'head':
      return explorer.change({ head: wrap(view.head + action.by, explorer.headsOf(view.layer) ?? 1) });
    case 'query':
      return explorer.change({ query: step(view.query, action.by) });
    case 'key':
      return explorer.change({ key: step(view.key, action.by) });
    case 'zoom':
      return explorer.zoomBy(action.by);
    case 'fit':
      return explorer.change({ zoom: null, top: 0, left: 0 });
    case 'weight':
      return explorer.change({ weight: view.weight === 'raw' ? 'norm' : 'raw' });
    case 'pool':
      return explorer.change({ pool: view.pool === 'max' ? 'mean' : 'max' });
    case 'replace':
      explorer.replacing = explorer.source.live;
      return;
    case 'release':
      return explorer.change({ query: null, key: null });
  }
}

/** `index` in 0..count-1, going round. */
export function wrap(index: number, count: number): number {
  return (((index % count) + count) % count) || 0;
}
