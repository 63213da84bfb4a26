/** The question that each chapter asks before it shows its answer, and how far a guess was from what was measured. */

import type * as answers from './answers';
import { mean, percent, said } from './numbers';

export interface Verdict {
  /** hit: exact or within ten points; near: among the first three, or within twenty-five points. */
  score: 'hit' | 'near' | 'far';
  sentence: string;
}

interface Common {
  question: string;
  /** How far a guess was. */
  judge: (guess: number) => Verdict;
}

export type Question =
  | (Common & { kind: 'token'; tokens: readonly string[]; special: readonly boolean[]; closed?: readonly number[]; marked?: number })
  | (Common & { kind: 'option'; options: readonly string[] })
  | (Common & { kind: 'number'; unit: '%' | '' });

const NEAR_RANK = 3;
const HIT_POINTS = 10;
const NEAR_POINTS = 25;

const quoted = (token: string | undefined) => `“${token ?? ''}”`;

/** A token is asked for: the guess is judged by its rank among the measured values. */
export function byRank(tokens: readonly string[], values: readonly number[], guess: number, words: (value: number) => string, what: string): Verdict {
  const value = values[guess] ?? 0;
  const rank = 1 + values.filter((other) => other > value).length;
  const best = values.indexOf(Math.max(...values));
  const counted = values.filter(Number.isFinite).length;
  if (rank === 1) return { score: 'hit', sentence: `Yes: ${quoted(tokens[guess])} ${what} the most, ${words(value)}.` };
  const sentence = `${quoted(tokens[best])} ${what} the most, ${words(values[best] ?? 0)}. Your guess ${quoted(tokens[guess])} has ${words(value)} and is number ${rank} of ${counted}.`;
  return { score: rank <= NEAR_RANK ? 'near' : 'far', sentence };
}

/** A number from 0 to 100 is asked for. */
export function byDistance(truth: number, guess: number, unit: '%' | ''): Verdict {
  const away = Math.abs(truth - guess);
  const [was, was_guessed] = unit === '%' ? [percent(truth / 100), `${guess} %`] : [said(truth / 100), said(guess / 100)];
  const apart = unit === '%' ? `${Math.round(away)} points` : said(Math.round(away) / 100);
  const score = away <= HIT_POINTS ? 'hit' : away <= NEAR_POINTS ? 'near' : 'far';
  return { score, sentence: `Measured: ${was}. You guessed ${was_guessed}${away < 1 ? ', which is right.' : `, ${apart} ${guess > truth ? 'too high' : 'too low'}.`}` };
}

/** One of a few answers is right. */
export function byChoice(options: readonly string[], right: number, guess: number, measured: string): Verdict {
  if (guess === right) return { score: 'hit', sentence: `Yes. ${measured}` };
  return { score: 'far', sentence: `No, the answer is “${options[right] ?? ''}”. ${measured}` };
}

const MASKED = -Infinity;
const without = (values: readonly number[], ...gaps: readonly number[]) => values.map((value, at) => (gaps.includes(at) ? MASKED : value));
const option = (question: string, options: readonly string[], right: number, measured: string): Question => ({
  kind: 'option', question, options, judge: (guess) => byChoice(options, right, guess, measured),
});
const number = (question: string, truth: number, unit: '%' | ''): Question => ({
  kind: 'number', question, unit, judge: (guess) => byDistance(truth, guess, unit),
});

function handshake([run]: readonly [answers.HandshakeRun]): Question {
  const { layer, head, query } = run.pair;
  const shares = run.handshake.shares[query] ?? [];
  return {
    kind: 'token', tokens: run.tokens, special: run.special, marked: query,
    question: `Layer ${layer}, head ${head} reads your text. Which token does the outlined ${quoted(run.tokens[query])} attend to most? Click one.`,
    judge: (guess) => byRank(run.tokens, shares, guess, percent, 'receives'),
  };
}

function values([run]: readonly [answers.ValuesRun]): Question {
  const { layer, query, attention_part } = run.values;
  return number(
    `Layer ${layer} adds what its heads have read to the vector of ${quoted(run.tokens[query])}. What share of the sum is new?`,
    100 * (attention_part[layer] ?? 0), '%',
  );
}

function scaling([run]: readonly [answers.ScalingRun]): Question {
  const { widths, variance } = run.random;
  const [width, measured] = [widths.at(-1) ?? 1, variance.at(-1) ?? 1];
  const sizes = [1, Math.sqrt(width), width, width ** 2];
  const right = sizes.reduce((best, size, at) => (Math.abs(Math.log(size / measured)) < Math.abs(Math.log((sizes[best] ?? 1) / measured)) ? at : best), 0);
  return option(
    `Two random vectors of ${width.toLocaleString('en')} numbers, each with variance 1, are multiplied. About how large is the variance of the product?`,
    sizes.map((size) => said(Math.round(size))), right, `Measured: ${said(measured)}.`,
  );
}

function order(runs: readonly answers.OrderRun[]): Question {
  const { names, change } = (runs.find(({ id }) => id === 'without') as answers.OrderRun).swap;
  const moved = change[names.indexOf('dog')] ?? 0;
  return option(
    'An encoder without positions reads “The dog bit the man.” and then “The man bit the dog.” How much does its final vector for “dog” change?',
    ['not at all', 'a little, below 10 %', 'much, by 10 % or more'], moved < 1e-4 ? 0 : moved < 0.1 ? 1 : 2,
    `Measured: ${said(moved)} of its norm${moved < 1e-4 ? ', which is rounding' : ''}.`,
  );
}

function positions(runs: readonly answers.PositionsRun[]): Question {
  const kinds = ['learned', 'disentangled', 'alibi', 'rotary'];
  const first = kinds.map((kind) => runs.find(({ id }) => id === kind)?.twice.score_difference[0] ?? 0);
  const right = first.indexOf(Math.max(...first));
  return option(
    'Your text is written twice in a row. With which position encoding does the first layer score the second copy differently from the first?',
    ['learned embeddings', 'disentangled', 'ALiBi', 'rotary'], right,
    `Its scores differ by ${said(first[right] ?? 0)} standard deviations, those of the others by at most ${said(Math.max(...without(first, right)))}.`,
  );
}

function reach(runs: readonly answers.ReachRun[]): Question {
  const run = runs.find(({ id }) => id === 'windows') as answers.ReachRun;
  const { target, effect } = run.reach;
  const last = without(effect.at(-1) ?? [], target);
  return {
    kind: 'token', tokens: run.tokens, special: run.special, closed: [target],
    question: `Every token is replaced in turn. Which one changes the final vector of ${quoted(run.tokens[target])} most? Click one.`,
    judge: (guess) => byRank(run.tokens, last, guess, percent, 'changes it'),
  };
}

function blur([run]: readonly [answers.BlurRun, answers.EvennessRun]): Question {
  return number('The softmax of one head is replaced by the features elu + 1. What share of its attention moves to other keys?', 100 * run.blur.variation_elu, '%');
}

function tiles([run]: readonly [answers.TilesRun]): Question {
  const { error, output_size } = run.tiled;
  const apart = error / output_size;
  return option(
    'A head is computed in tiles, without ever holding a full row of scores. How far is its output from that of the direct computation?',
    ['equal, but for rounding', 'about 0.1 % apart', 'several percent apart'], apart < 1e-6 ? 0 : apart < 0.01 ? 1 : 2,
    `The largest difference is ${said(error)}, for outputs of about ${said(output_size)}.`,
  );
}

function layers(runs: readonly answers.LayersRun[]): Question {
  const { lengths, pairs, pairs_whole } = (runs.find(({ id }) => id === 'small') as answers.LayersRun).alternation;
  return number(
    `Most layers attend in a window, every third one to the full text. At ${lengths.at(-1)?.toLocaleString('en')} tokens, what share of the scores of full attention is left?`,
    (100 * (pairs.at(-1) ?? 0)) / (pairs_whole.at(-1) ?? 1), '%',
  );
}

function sinks([run]: readonly [answers.SinksRun]): Question {
  const received = run.sinks.received[0]?.map((_, token) => mean(run.sinks.received.map((row) => row[token] ?? 0))) ?? [];
  return {
    kind: 'token', tokens: run.tokens, special: run.special,
    question: 'Which token of your text receives the most attention, over all layers and heads? Click one.',
    judge: (guess) => byRank(run.tokens, received, guess, percent, 'receives'),
  };
}

function collapse([run]: readonly [answers.CollapseRun]): Question {
  return number('How large is the mean cosine between two tokens after the last layer? 0: unrelated directions, 1: the same direction.', 100 * (run.collapse.cosine.at(-1) ?? 0), '');
}

function prediction([run]: readonly [answers.PredictionRun]): Question {
  const { token, effect } = run.prediction;
  const masked = run.tokens.map((name, at) => (at === token ? '[MASK]' : name));
  return {
    kind: 'token', tokens: masked, special: run.special, closed: [token],
    question: `${quoted(run.tokens[token])} is masked, and the model predicts it. Which other word does the prediction need most? Click one.`,
    judge: (guess) => byRank(run.tokens, without(effect, token), guess, (nats) => `${said(nats)} nats`, 'is needed'),
  };
}

function search([run]: readonly [answers.SearchRun]): Question {
  const texts = run.passages.map(({ text }) => text);
  const cosines = run.passages.map(({ cosine }) => cosine);
  return option(
    'Which of these passages is most similar to your text, by the cosine of their embeddings?', texts, cosines.indexOf(Math.max(...cosines)),
    `The cosines are ${cosines.map(said).join(', ')}, in this order.`,
  );
}

// The type of an experiment follows from its chapter, which a table cannot say.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
const QUESTIONS: Record<string, (runs: any) => Question> = {
  handshake, values, scaling, order, positions, reach, blur, tiles, layers, sinks, collapse, prediction, search,
};

export function questionOf({ chapter, experiments }: answers.Answer): Question | null {
  return QUESTIONS[chapter]?.(experiments) ?? null;
}

/** A guess holds for one text and model; this names them in the address. */
export function guessKey(text: string, model: string): string {
  let hash = 5381;
  for (const letter of `${model}\n${text}`) hash = (33 * hash + (letter.codePointAt(0) ?? 0)) >>> 0;
  return hash.toString(36);
}

/** What stands between the question of a chapter and its answer. */
export interface Gate {
  question: Question | null;
  /** The guess as the address has it, "skip", or nothing yet. */
  given: string;
  /** Whether the question still fits what is shown: another head or token has another answer. */
  asks: boolean;
  /** Whether the answer is shown. */
  open: boolean;
  onguess: (given: string | null) => void;
  onskipall: () => void;
}
