/** Where answers come from. Nothing else in the page calls the network. */

import type { Failure, Problem } from './types';

/** One answer of the API, read to its end. */
export interface Answer {
  status: number;
  type: string;
  data: ArrayBuffer;
}

/** Paths are relative to the API: `session`, `texts/…/heads`. */
export interface Source {
  /** False for a page that was saved to disk: it has its answers and gets no others. */
  readonly live: boolean;
  get(path: string, signal?: AbortSignal): Promise<Answer>;
  post(path: string, body: unknown, signal?: AbortSignal): Promise<Answer>;
  remove(path: string): Promise<Answer>;
  /** Posts a file as it is; absent where there is no server to take one. */
  upload?(path: string, file: Blob): Promise<Answer>;
}

/** The server refused; `problem` says why. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.sentence);
  }
}

/** No answer at all: the server has stopped. */
export class ServerGone extends Error {}

/** The body of an answer as JSON. */
export function jsonOf<T>(answer: Answer): T {
  return JSON.parse(new TextDecoder().decode(answer.data)) as T;
}

/** The answer itself where it is a success; throws `Refused` otherwise. */
export function accepted(answer: Answer): Answer {
  if (answer.status >= 200 && answer.status < 300) return answer;
  throw new Refused(answer.status, problemOf(answer));
}

function problemOf(answer: Answer): Problem {
  try {
    const { error } = jsonOf<Failure>(answer);
    if (typeof error.sentence === 'string') return error;
  } catch {
    // Told below.
  }
  return problem('Unexplained', `the server answered ${answer.status} without saying why`);
}

/** A problem that this page found by itself. */
export function problem(kind: string, sentence: string): Problem {
  return { kind, sentence, total_tokens: null, max_tokens: null };
}
