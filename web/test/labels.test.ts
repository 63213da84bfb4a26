import { describe, expect, it } from 'vitest';
import { above, agreement, headSums, labelsOf, layersOver, marked, marksOf, thresholdSeries, writtenLabels, writtenMarks } from '../src/draw/labels';

const SPANS = [
  { first: 0, last: 1, label: 0, score: 0.9 },
  { first: 1, last: 1, label: 1, score: 0.6 },
  { first: 4, last: 4, label: 1, score: 0.5 },
];
const LABELS = ['person', 'city'];
const SHA = '0123456789abcdef';

describe('labels that a reader names', () => {
  it('are each named once, without blanks', () => {
    expect(labelsOf(' person, city ,, person')).toEqual(['person', 'city']);
    expect(labelsOf(' , ')).toEqual([]);
    expect(labelsOf('"city, state", say ""x, "a ""b"" c"')).toEqual(['city, state', 'say ""x', 'a "b" c']);
    for (const labels of [['a', 'b c'], ['city, state', 'a "b"', '"', 'x'], ['50%', 'a,']]) {
      expect(labelsOf(writtenLabels(labels))).toEqual(labels);
    }
  });

  it('have the spans above a threshold, and not those at it', () => {
    expect(above(SPANS, 0.5).map(({ score }) => score)).toEqual([0.9, 0.6]);
    expect(above(SPANS, 0.49)).toHaveLength(3);
  });

  it('lie over words, the longest below, each at one depth over all of its words', () => {
    const over = layersOver(SPANS, 6);
    expect(over.map((at) => at.map((span) => span?.label ?? null))).toEqual([[0], [0, 1], [], [], [1], []]);
    const crossed = layersOver([{ first: 0, last: 2 }, { first: 2, last: 4 }, { first: 3, last: 3 }], 5);
    expect(crossed[2]?.map((span) => span?.last)).toEqual([2, 4]);
    expect(crossed[3]?.map((span) => span?.last)).toEqual([3, 4]);
  });
});

describe('marks of a reader', () => {
  const marks = [{ first: 0, last: 1, label: 'person' }, { first: 4, last: 4, label: 'person' }];

  it('come back from the address for the same text alone', () => {
    const written = writtenMarks(SHA, marks) as string;
    expect(marksOf(written, SHA, 6)).toEqual(marks);
    const odd = [{ first: 0, last: 1, label: 'city, state' }, { first: 2, last: 2, label: '50%2C' }];
    expect(marksOf(writtenMarks(SHA, odd) ?? '', SHA, 6)).toEqual(odd);
    expect(marksOf(written, 'ff' + SHA, 6)).toEqual([]);
    expect(marksOf(written, SHA, 4), 'a word that is not there').toEqual([marks[0]]);
    expect(marksOf(`${SHA.slice(0, 8)}:3-1-x,a-b-c,0-0-well-known`, SHA, 6)).toEqual([{ first: 0, last: 0, label: 'well-known' }]);
    expect(writtenMarks(SHA, [])).toBeNull();
  });

  it('are set once, in the order of the text, and removed where they are touched', () => {
    expect(marked(marks, 0, 1, 'person')).toEqual(marks);
    expect(marked(marks, 2, 3, 'city').map(({ first }) => first)).toEqual([0, 2, 4]);
    expect(marked(marks, 1, 3, null)).toEqual([marks[1]]);
  });

  it('agree with spans of the same words and label', () => {
    expect(agreement(SPANS, LABELS, marks)).toEqual({ found: 3, marked: 2, hits: 1, precision: 1 / 3, recall: 0.5, f1: 0.4 });
    expect(agreement([], LABELS, marks)).toMatchObject({ precision: null, recall: 0, f1: 0 });
    expect(agreement(SPANS, LABELS, [])).toMatchObject({ precision: 0, recall: null, f1: 0 });
    expect(agreement([], LABELS, [])).toMatchObject({ precision: null, recall: null, f1: null });
  });

  it('give precision at every threshold', () => {
    const [precision, recall] = thresholdSeries(SPANS, LABELS, marks, 0.05);
    const at = (x: number) => precision?.points.find((point) => point.x === x)?.y;
    expect([at(0.05), at(0.5), at(0.6), at(0.9)]).toEqual([1 / 3, 0.5, 1, null]);
    expect(recall?.points.map(({ x }) => x)).toHaveLength(95);
  });
});

it('attention is summed over keys and averaged over queries, head by head', () => {
  const data = Float32Array.from([0.25, 0.25, 0, 0.5, 0, 1, 0, 0]);
  expect([...headSums({ shape: [1, 2, 2, 2], data })]).toEqual([0.5, 0.5]);
});
