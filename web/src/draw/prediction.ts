/** What a head of a task predicts, as chips; and how one of them is named in the address. */

import type { PredictedSpan, TaskPrediction } from '../api/types';

export interface Chip {
  /** What is written on it, and the text it is about. */
  label: string;
  about: string;
  score: number;
  /** Whether the model predicts it; others are alternatives. */
  applies: boolean;
  /** As `paths.class` has it: the number of a class, or `token:class` for each token it rests on. */
  target: string;
  /** The first token of what it is about; null: the whole text. */
  token: number | null;
}

/** Answers that are less probable are not worth a chip, unless there is no other. */
const LEAST_ANSWER = 0.01;

export function chipsOf(found: TaskPrediction): Chip[] {
  const classes = found.classes.map(({ label, id, score, applies }) => ({ label, about: '', score, applies, target: String(id), token: null }));
  const spans = found.spans.filter(({ score }, at) => found.kind !== 'answers' || at === 0 || score >= LEAST_ANSWER);
  if (!found.value) classes.sort((one, other) => other.score - one.score);
  return [
    ...classes,
    ...spans.map((span, at) => ({
      label: found.kind === 'answers' ? '' : span.label,
      about: span.text,
      score: span.score,
      applies: found.kind !== 'answers' || at === 0,
      target: spanTarget(span),
      token: span.first,
    })),
  ];
}

/** The tokens whose classes are added, each with its class. */
export function spanTarget({ tokens, classes }: Pick<PredictedSpan, 'tokens' | 'classes'>): string {
  return tokens.map((token, at) => `${token}:${classes[at]}`).join(',');
}

/** What `paths.class` asks for: a class of the text by its number, or classes of tokens. */
export function targetOf(written: string): { id: number | null; classes: string | null } {
  if (/^\d+:\d+(,\d+:\d+)*$/.test(written)) return { id: null, classes: written };
  return { id: /^\d{1,7}$/.test(written) ? Number(written) : null, classes: null };
}

/** A probability in percent; a value of a regression as it is. */
export function scoreWords(score: number, value: boolean): string {
  if (value) return score.toFixed(3);
  return score > 0.9995 ? '> 99.9 %' : `${(100 * score).toFixed(1)} %`;
}

/** What the chips are. */
export function headingOf(found: TaskPrediction): string {
  if (found.kind === 'answers') return 'The model answers';
  if (found.role === 'replaced') return 'The model takes these tokens for replaced ones';
  if (found.kind === 'labels') return 'The model finds';
  return found.value ? 'The model gives' : 'The model predicts';
}
