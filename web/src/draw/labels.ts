/** Spans of words that fit labels: those above a threshold, how they lie over each other, and how well they agree with a reader's marks. */

import type { FoundSpan } from '../api/types';
import type { Series } from './chart';
import { colorName } from './flow';

/** Words `first` to `last` that a reader marked with a label by name. */
export interface Mark {
  first: number;
  last: number;
  label: string;
}

/** A span is left out only where a better one excludes it, so those above a threshold are what the model finds there. */
export function above(spans: readonly FoundSpan[], threshold: number): FoundSpan[] {
  return spans.filter(({ score }) => score > threshold);
}

/** Labels with commas between them: each once, without blanks. A label in quotes may hold commas, as in CSV. */
export function labelsOf(written: string): string[] {
  const parts = written.matchAll(/\s*(?:"((?:[^"]|"")*)"\s*|([^,]*))(?:,|$)/g);
  const labels = [...parts].map(([, quoted, plain]) => (quoted?.replaceAll('""', '"') ?? plain ?? '').trim());
  return [...new Set(labels)].filter((label) => label !== '');
}

/** Labels as `labelsOf` reads them. */
export function writtenLabels(labels: readonly string[]): string {
  return labels.map((label) => (/[",]/.test(label) ? `"${label.replaceAll('"', '""')}"` : label)).join(', ');
}

/** Marks as the address has them: `0-1-person,4-4-city`, behind the beginning of the digest of their text. */
export function writtenMarks(text: string, marks: readonly Mark[]): string | null {
  return marks.length === 0 ? null : `${text.slice(0, 8)}:${marks.map(({ first, last, label }) => `${first}-${last}-${label.replace(/[%,]/g, encodeURIComponent)}`).join(',')}`;
}

/** The marks of this text, without those of words that it does not have. */
export function marksOf(written: string, text: string, words: number): Mark[] {
  if (!written.startsWith(`${text.slice(0, 8)}:`)) return [];
  return written.slice(9).split(',').flatMap((part) => {
    const [, first, last, label] = /^(\d{1,7})-(\d{1,7})-(.+)$/.exec(part) ?? [];
    const mark = { first: Number(first), last: Number(last), label: (label ?? '').replaceAll('%2C', ',').replaceAll('%25', '%') };
    return label !== undefined && mark.first <= mark.last && mark.last < words ? [mark] : [];
  });
}

/** The marks with one more, which takes the place of an equal one; without a label those it touches are removed. */
export function marked(marks: readonly Mark[], first: number, last: number, label: string | null): Mark[] {
  const others = marks.filter((mark) =>
    label === null ? mark.last < first || mark.first > last : mark.first !== first || mark.last !== last || mark.label !== label,
  );
  return label === null ? others : [...others, { first, last, label }].sort((a, b) => a.first - b.first || a.last - b.last);
}

export interface Agreement {
  found: number;
  marked: number;
  hits: number;
  /** null: nothing is found, or nothing is marked. */
  precision: number | null;
  recall: number | null;
  f1: number | null;
}

/** Of spans beside marks: a hit has the same words and the same label. */
export function agreement(spans: readonly FoundSpan[], labels: readonly string[], marks: readonly Mark[]): Agreement {
  const wanted = new Set(marks.map(({ first, last, label }) => `${first}-${last}-${label}`));
  const hits = spans.filter(({ first, last, label }) => wanted.has(`${first}-${last}-${labels[label]}`)).length;
  const [found, all] = [spans.length, wanted.size];
  return {
    found, marked: all, hits,
    precision: found ? hits / found : null,
    recall: all ? hits / all : null,
    f1: found + all ? (2 * hits) / (found + all) : null,
  };
}

/** Precision, recall and F1 at every hundredth from the lowest threshold on. */
export function thresholdSeries(spans: readonly FoundSpan[], labels: readonly string[], marks: readonly Mark[], lowest: number): Series[] {
  const steps = Array.from({ length: 100 - Math.round(100 * lowest) }, (_, step) => (Math.round(100 * lowest) + step) / 100);
  const all = steps.map((x) => ({ x, ...agreement(above(spans, x), labels, marks) }));
  return (['precision', 'recall', 'f1'] as const).map((name) => ({ name: name === 'f1' ? 'F1' : name, points: all.map((at) => ({ x: at.x, y: at[name] })) }));
}

/** The spans over each word, the longest first; a span has the same place over all of its words. */
export function layersOver<S extends { first: number; last: number }>(spans: readonly S[], words: number): (S | null)[][] {
  const over: (S | null)[][] = Array.from({ length: words }, () => []);
  for (const span of [...spans].sort((a, b) => b.last - b.first - (a.last - a.first))) {
    let depth = 0;
    while (over.slice(span.first, span.last + 1).some((at) => at[depth])) depth++;
    for (let word = span.first; word <= span.last && word < words; word++) {
      const at = over[word] as (S | null)[];
      while (at.length < depth) at.push(null);
      at[depth] = span;
    }
  }
  return over;
}

/** The color of a label, of those that heads have. */
export function labelColor(label: number): string {
  return `var(${colorName(label)})`;
}

/** Of weights (layers, heads, queries, keys): the sum over keys, mean over queries, of each head. */
export function headSums({ shape, data }: { shape: readonly number[]; data: Float32Array }): Float32Array {
  const [layers = 0, heads = 0, queries = 1, keys = 1] = shape;
  return Float32Array.from({ length: layers * heads }, (_, head) =>
    data.subarray(head * queries * keys, (head + 1) * queries * keys).reduce((sum, weight) => sum + weight, 0) / queries,
  );
}
