/** Files that the page hands over. */

import type { StampLine } from '../api/types';
import { csv } from '../draw/table';
import type { Explorer } from '../state/explorer.svelte';
import { headWords, overOf } from '../state/url';
import { viewOf } from '../views';
import { cardOf } from './card';
import { savedPage } from './page';
import { pictureOf, pixelsOf } from './picture';
import { allTables } from './registry';
import { stampText } from './stamp';

export type Kind = 'html' | 'model' | 'card' | 'png' | 'svg' | 'csv';

const TYPES: Record<Kind, string> = { png: 'image/png', svg: 'image/svg+xml', csv: 'text/csv', html: 'text/html', model: 'text/html', card: 'image/png' };

const ENDINGS: Partial<Record<Kind, string>> = { card: '-card.png', model: '-with-model.html' };

/** Makes one file of the open view and hands it to the browser; throws an `Error` with a sentence. */
export async function save(explorer: Explorer, kind: Kind, lines: readonly StampLine[]): Promise<void> {
  const content = await contentOf(explorer, kind, lines);
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: `${TYPES[kind]};charset=utf-8` }));
  link.download = `${nameOf(explorer)}${ENDINGS[kind] ?? `.${kind}`}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function contentOf(explorer: Explorer, kind: Kind, lines: readonly StampLine[]): Promise<Blob | string> {
  if (kind === 'html' || kind === 'model') return savedPage(explorer, kind === 'model');
  if (kind === 'csv') return tables(lines);
  const stage = document.getElementById('stage');
  if (!stage) throw new Error('there is no view to save');
  if (kind === 'card') return cardOf(stage, explorer.shortName(explorer.model?.name ?? ''), explorer.a?.text ?? '');
  const svg = pictureOf(stage, [stampText(lines)]);
  return kind === 'svg' ? svg : pixelsOf(svg);
}

async function tables(lines: readonly StampLine[]): Promise<string> {
  const found = await allTables();
  if (found.length === 0) throw new Error('this view has no table at the moment; choose a token first, or save an image');
  const stamp = lines.map(({ name, value }) => `# ${name}: ${oneLine(value)}\r\n`).join('');
  return stamp + found.map(({ caption, columns, rows }) => `# table: ${oneLine(caption)}\r\n${csv(columns, rows)}`).join('');
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim();
}

function nameOf(explorer: Explorer): string {
  const { view } = explorer;
  const model = explorer.a ? explorer.shortName(explorer.a.read.model) : 'unmask';
  const head = viewOf(view.view).maps ? `-${overOf(view) ? headWords(view) : `${view.layer}.${view.head}`}` : '';
  return `${model}-${view.view}${head}`.replace(/[^\w.-]+/g, '-');
}
