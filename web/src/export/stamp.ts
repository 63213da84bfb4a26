/** Provenance of a view: the server's record of the text, and the display settings of the page. */

import type { SearchIndex, Stamp, StampLine } from '../api/types';
import { type Tint, tintWords } from '../draw/scale';
import { headWords, type ViewState } from '../state/url';

const WEIGHTINGS = {
  raw: 'raw attention',
  norm: 'norm-weighted: attention times the norm of the transformed value, rows scaled to sum to 1',
};
const POOLINGS = { max: 'maximum of a pooled cell', mean: 'mean of a pooled cell' };

/** All lines, the title of the view first and the time last. */
export function stampLines(stamps: readonly Stamp[], view: ViewState, tint: Tint, title: string, now = new Date()): StampLine[] {
  const own: [string, string][] = [
    ['weighting', WEIGHTINGS[view.weight]],
    ['pooling', POOLINGS[view.pool]],
    ['color scale', tintWords(tint)],
    ['saved', utc(now)],
  ];
  const place = stamps.length > 0 ? `, ${headWords(view)}` : '';
  const first = { name: 'view', value: `${title}${place}` };
  const [one, ...others] = stamps;
  const same = ({ name, value }: StampLine) => one?.lines.some((line) => line.name === name && line.value === value);
  const beside = others.flatMap(({ lines }) =>
    lines.filter((line) => !same(line)).map(({ name, value }) => ({ name: `compared with, ${name}`, value })),
  );
  return [first, ...(one?.lines ?? []), ...beside, ...own.map(([name, value]) => ({ name, value }))];
}

/** The lines of a search: what was asked of which index. */
export function searchLines(index: SearchIndex, view: ViewState, now = new Date()): StampLine[] {
  const { more } = view;
  const found: [string, string][] = [
    ['view', 'Search'],
    ['query', more['search.text'] ?? ''],
    ['ranked by', more['search.mode'] ?? index.modes[0] ?? ''],
    ['unit', more['search.unit'] ?? 'passage'],
    ['index', `${index.path}, generation ${index.generation}: ${index.passages.toLocaleString('en')} passages`],
    ...index.models.map((one): [string, string] => [`model, ${one.view}`, one.revision === null ? one.name : `${one.name}, revision ${one.revision}`]),
    ['saved', utc(now)],
  ];
  return found.map(([name, value]) => ({ name, value }));
}

function utc(now: Date): string {
  return `${now.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

/** The provenance as one line. */
export function stampText(lines: readonly StampLine[]): string {
  return lines.map(({ name, value }) => `${name}: ${value}`).join('; ');
}
