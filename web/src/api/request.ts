/** What a request of the page is. Its path is spelled as `unmask/explorer/wire/page_request.py` spells it. */

import type { Arrays } from './binary';

/** One GET of the API. */
export interface PageRequest<T> {
  readonly path: string;
  /** The answer is named arrays, not JSON. */
  readonly binary: boolean;
  /** The answer grows while its text is measured. */
  readonly grows: boolean;
  /** The type of the answer, for the type checker alone. */
  readonly answer?: T;
}

/** Where requests are answered: the page's state, which keeps what was asked. */
export interface Asked {
  fetch<T>(request: PageRequest<T>): Promise<T>;
}

type Value = string | number | readonly [number, number];

interface Declared {
  /** With the names of its open parts in braces. */
  path: string;
  /** Names of the query's values, in order. */
  query?: readonly string[];
  defaults?: Readonly<Record<string, Value>>;
  grows?: boolean;
}

type Given = Readonly<Record<string, Value | null | undefined>>;

/** A request whose answer is JSON. */
export function json<T>(declared: Declared, given: Given = {}): PageRequest<T> {
  return { path: pathOf(declared, given), binary: false, grows: declared.grows ?? false };
}

/** A request whose answer is named arrays. */
export function arrays<Meta>(declared: Declared, given: Given = {}): PageRequest<Arrays<Meta>> {
  return { path: pathOf(declared, given), binary: true, grows: declared.grows ?? false };
}

/** The path with its parts and its query; a value that is null, or missing without a default, is left out. */
export function pathOf({ path, query = [], defaults = {} }: Declared, given: Given): string {
  const valueOf = (name: string) => given[name] ?? defaults[name] ?? null;
  const whole = path.replace(/\{(\w+)\}/g, (_, name: string) => spelled(valueOf(name) ?? ''));
  const values = query.flatMap((name) => {
    const value = valueOf(name);
    return value === null ? [] : [`${name}=${spelled(value)}`];
  });
  return values.length > 0 ? `${whole}?${values.join('&')}` : whole;
}

function spelled(value: Value): string {
  if (typeof value === 'object') return value.map(spelled).join(':');
  if (typeof value === 'number') return String(Math.round(value * 100) / 100);
  // Half of a surrogate pair, which a truncated text may end with, has no UTF-8.
  return encodeURIComponent(value.replace(/\p{Surrogate}/gu, '\ufffd'));
}
