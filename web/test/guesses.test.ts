/** The tour's guesses and the glossary: how far a guess was, and that every term has its card. */

import { describe, expect, it } from 'vitest';
import { type Entry, GLOSSARY } from '../src/draw/glossary';
import type { Answer, HandshakeRun, PredictionRun, SinksRun } from '../src/views/tour/answers';
import { byChoice, byDistance, byRank, guessKey, questionOf } from '../src/views/tour/guesses';
import { percent, tenths } from '../src/views/tour/numbers';

const about = {
  id: 'x', total_tokens: 4, special: [true, false, false, false], tokens: ['[CLS]', 'cats', 'sleep', '.'],
  model: { name: 'm', shipped: false, layers: 1, heads: 1, width: 4 },
};
const answer = (chapter: string, ...experiments: unknown[]) => ({ chapter, text: '', experiments }) as Answer;

describe('how far a guess was', () => {
  const values = [0.1, 0.5, 0.25, 0.15];

  it('ranks a token among the measured values', () => {
    expect(byRank(about.tokens, values, 1, percent, 'receives')).toEqual({ score: 'hit', sentence: 'Yes: “cats” receives the most, 50 %.' });
    const near = byRank(about.tokens, values, 3, percent, 'receives');
    expect(near.score).toBe('near');
    expect(near.sentence).toBe('“cats” receives the most, 50 %. Your guess “.” has 15 % and is number 3 of 4.');
    expect(byRank(about.tokens, values, 0, percent, 'receives').score).toBe('far');
  });

  it('does not count tokens that cannot be the answer', () => {
    expect(byRank(about.tokens, [0.1, -Infinity, 0.25, 0.15], 0, percent, 'receives').sentence).toContain('number 3 of 3');
  });

  it('measures numbers in points', () => {
    expect(byDistance(30.7, 31, '%')).toEqual({ score: 'hit', sentence: 'Measured: 30.7 %. You guessed 31 %, which is right.' });
    expect(byDistance(30.7, 50, '%')).toEqual({ score: 'near', sentence: 'Measured: 30.7 %. You guessed 50 %, 19 points too high.' });
    expect(byDistance(80, 20, '')).toEqual({ score: 'far', sentence: 'Measured: 0.8. You guessed 0.2, 0.6 too low.' });
  });

  it('names the right option', () => {
    expect(byChoice(['a', 'b'], 1, 1, 'Measured: 2.').sentence).toBe('Yes. Measured: 2.');
    expect(byChoice(['a', 'b'], 1, 0, 'Measured: 2.')).toEqual({ score: 'far', sentence: 'No, the answer is “b”. Measured: 2.' });
  });

  it('belongs to one text and model', () => {
    expect(guessKey('a', 'm')).toBe(guessKey('a', 'm'));
    expect(new Set([guessKey('a', 'm'), guessKey('b', 'm'), guessKey('a', 'n')]).size).toBe(3);
  });
});

describe('questions', () => {
  it('asks about the pair that the chapter shows', () => {
    const rows = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [1, 0, 0, 0], [1, 0, 0, 0]];
    const run = { ...about, pair: { layer: 0, head: 0, query: 1, key: 2 }, handshake: { shares: rows } } as unknown as HandshakeRun;
    const question = questionOf(answer('handshake', run));
    expect(question?.question).toContain('“cats”');
    expect(question?.judge(2).score).toBe('hit');
    expect(question?.judge(3).score).not.toBe('hit');
  });

  it('takes the mean over layers for sinks', () => {
    const run = { ...about, sinks: { received: [[0.2, 0.6, 0.1, 0.1], [0.9, 0, 0, 0.1]] } } as unknown as SinksRun;
    expect(questionOf(answer('sinks', run))?.judge(0).score).toBe('hit');
  });

  it('closes the masked token and hides it', () => {
    const run = { ...about, prediction: { token: 1, effect: [0.1, 0, 0.9, 0.2] } } as unknown as PredictionRun;
    const question = questionOf(answer('prediction', run));
    expect(question?.kind === 'token' && [question.tokens[1], question.closed]).toEqual(['[MASK]', [1]]);
    expect(question?.judge(2)).toEqual({ score: 'hit', sentence: 'Yes: “sleep” is needed the most, 0.9 nats.' });
  });

  it('has none for the end', () => {
    expect(questionOf(answer('end'))).toBeNull();
  });
});

describe('columns of shares', () => {
  it('have one decimal, and no negative zero', () => {
    expect([0.941, -0.00001, -0.0009].map(tenths)).toEqual(['94.1 %', '0.0 %', '−0.1 %']);
  });
});

describe('the glossary', () => {
  const entries: [string, Entry][] = Object.entries(GLOSSARY);
  const TERMS = [
    'attention weight', 'query', 'key', 'value', 'head', 'layer', 'entropy', 'attention sink', 'no-op sink', 'broadcast sink',
    'norm-weighted attention', 'attention distance', 'rollout', 'gradient attribution', 'logit lens', 'step of pretraining', 'ablation', 'intrinsic dimension',
    'isotropy', 'CKA', 'residual stream', 'softmax', 'special tokens', 'previous-token head', 'MLM head', 'token', 'embedding',
    'vertical line', 'diagonal', 'block', 'distant link',
  ];

  it('has every term once', () => {
    expect(entries.map(([, { name }]) => name).sort()).toEqual([...TERMS].sort());
  });

  it.each(entries)('%s has one sentence, a source and a drawing in its frame', (_, { means, source, drawing }) => {
    expect(means).toMatch(/^[A-Z].*\.$/);
    expect(means.slice(0, -1)).not.toMatch(/\. [A-Z]/);
    expect(source).not.toBe('');
    expect(drawing.length).toBeGreaterThan(0);
    for (const mark of drawing) {
      if (mark[0] === 'rect') {
        expect(mark[2]).toBeGreaterThanOrEqual(0);
        expect(mark[2] + mark[4]).toBeLessThanOrEqual(120);
        expect(mark[3] + mark[5]).toBeLessThanOrEqual(56);
      } else if (mark[0] !== 'line') {
        expect(mark[2]).toBeLessThanOrEqual(120);
        expect(mark[3]).toBeLessThanOrEqual(56);
      }
    }
  });
});
