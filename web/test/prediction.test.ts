import { describe, expect, it } from 'vitest';
import type { PredictedSpan, TaskPrediction } from '../src/api/types';
import { chipsOf, headingOf, scoreWords, targetOf } from '../src/draw/prediction';

const span = (label: string, text: string, score: number, tokens: number[], classes: number[]): PredictedSpan => ({
  label, text, score, tokens, classes, first: tokens[0] as number, stop: (tokens.at(-1) as number) + 1, in_pair: false,
});
const found = (part: Partial<TaskPrediction>): TaskPrediction => ({
  kind: 'classes', role: 'sequence', value: false, classes: [], spans: [], note: null, ...part,
});

describe('what a head predicts', () => {
  it('has the most probable class first, and its number in the address', () => {
    const classes = [{ label: 'no', id: 0, score: 0.2, applies: false }, { label: 'yes', id: 1, score: 0.8, applies: true }];
    expect(chipsOf(found({ classes })).map(({ label, target, applies }) => [label, target, applies])).toEqual([['yes', '1', true], ['no', '0', false]]);
    expect(targetOf('1')).toEqual({ id: 1, classes: null });
  });

  it('names the tokens of a name, each with its class', () => {
    const [chip] = chipsOf(found({ kind: 'labels', role: 'tokens', spans: [span('PER', 'Marie Curie', 0.9, [1, 2], [5, 6])] }));
    expect(chip).toMatchObject({ label: 'PER', about: 'Marie Curie', target: '1:5,2:6', token: 1 });
    expect(targetOf('1:5,2:6')).toEqual({ id: null, classes: '1:5,2:6' });
  });

  it('leaves out answers that are not worth a look, but never the first', () => {
    const spans = [span('answer', 'Warsaw', 0.004, [3, 3], [0, 1]), span('answer', 'in', 0.001, [2, 2], [0, 1])];
    expect(chipsOf(found({ kind: 'answers', spans })).map(({ about }) => about)).toEqual(['Warsaw']);
    expect(headingOf(found({ kind: 'answers' }))).toBe('The model answers');
  });

  it('reads nothing else as a target', () => {
    for (const written of ['', '1:', '1-2', 'x', '1:2,']) expect(targetOf(written)).toEqual({ id: null, classes: null });
    expect(scoreWords(0.99999, false)).toBe('> 99.9 %');
    expect(scoreWords(3.25, true)).toBe('3.250');
  });
});
