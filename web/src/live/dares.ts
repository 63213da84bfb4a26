/** Three questions that a reader answers first and the page computes then, for any model. */

import type { LiveText } from './reading';
import { attentionOf, cosine, headName, meanState, placeOf, wordNamed } from './senses';

export interface Outcome {
  /** Number of the true answer. */
  right: number;
  sentence: string;
  bars: { label: string; value: number }[];
  /** What every head prefers in both texts, as signs; empty where heads do not matter. */
  heads: { name: string; before: number; after: number }[];
}

export interface Dare {
  id: string;
  title: string;
  question: string;
  texts: readonly string[];
  /** Whether a reader may put other words into the texts. */
  open: boolean;
  answers: readonly string[];
  /** Why it cannot be computed, or what comes out. */
  outcome: (lives: readonly LiveText[]) => Outcome | string;
}

const percent = (share: number) => `${Math.round(100 * share)}\u00a0%`;

function vectorOf(live: LiveText): Float32Array {
  return meanState(live, live.levels - 1, 0, live.count);
}

const TROPHY: Dare = {
  id: 'it',
  title: 'What is “it”?',
  question: 'When “big” becomes “small”, “it” means the suitcase and no longer the trophy. In how many heads does “it” change which of the two it attends to more?',
  texts: ['The trophy does not fit in the suitcase because it is too big.', 'The trophy does not fit in the suitcase because it is too small.'],
  open: false,
  answers: ['in none', 'in some, at most a tenth', 'in more than a tenth'],
  outcome: ([before, after]) => {
    if (!before || !after) return 'the texts are not read yet';
    const shares = [before, after].map((live) => {
      const [it, first, second] = ['it', 'trophy', 'suitcase'].map((surface) => wordNamed(live, surface)) as [number, number, number];
      const place = placeOf(live, it);
      if (!place || first < 0 || second < 0) return null;
      return live.layerOf.map((_, head) => {
        const all = attentionOf(place, head);
        return [all[first] as number, all[second] as number] as const;
      });
    });
    const [one, other] = shares;
    if (!one || !other) return 'this model does not read “it”, “trophy” and “suitcase” as words';
    const heads = one.map(([trophy, suitcase], head) => {
      const [later, also] = other[head] as readonly [number, number];
      return { name: headName(before, head), before: Math.sign(trophy - suitcase), after: Math.sign(later - also), most: Math.max(trophy, suitcase) };
    });
    const flipped = heads.filter(({ before: was, after: is }) => was * is < 0);
    const told = flipped.length > 0 ? flipped : heads;
    const head = heads.indexOf(told.reduce((best, next) => (next.most > best.most ? next : best)));
    const [[trophy, suitcase], [later, also]] = [one[head], other[head]] as [readonly [number, number], readonly [number, number]];
    const numbers = `In head ${headName(before, head)}, ${flipped.length > 0 ? 'the strongest of them' : 'the strongest'}, “trophy” gets ${percent(trophy)} with “big” and ${percent(later)} with “small”, “suitcase” ${percent(suitcase)} and ${percent(also)}.`;
    const verdict = flipped.length === 0 ? ' In this model, attention does not follow the meaning.' : flipped.length <= heads.length / 10 ? ' Most attention does not follow the meaning.' : '';
    return {
      right: flipped.length === 0 ? 0 : flipped.length <= heads.length / 10 ? 1 : 2,
      sentence: `“it” changes its preference in ${flipped.length} of ${heads.length} heads. ${numbers}${verdict}`,
      bars: [
        { label: 'trophy, too big', value: trophy },
        { label: 'trophy, too small', value: later },
        { label: 'suitcase, too big', value: suitcase },
        { label: 'suitcase, too small', value: also },
      ],
      heads,
    };
  },
};

const ORDER: Dare = {
  id: 'order',
  title: 'Who bit whom?',
  question: 'Two sentences of the same words mean opposite things. How alike are their vectors, as a cosine?',
  texts: ['The dog bit the man.', 'The man bit the dog.', 'It rained in Paris all day.'],
  open: true,
  answers: ['less than 0.5', '0.5 to 0.9', 'more than 0.9'],
  outcome: ([one, other, third]) => {
    if (!one || !other || !third) return 'the texts are not read yet';
    const [alike, apart] = [cosine(vectorOf(one), vectorOf(other)), cosine(vectorOf(one), vectorOf(third))];
    const words = alike > 0.9 ? 'the vector says which words there are, and hardly their order' : alike < 0.5 ? 'the vectors differ as those of different sentences' : 'the vectors tell the two apart, and not clearly';
    return {
      right: alike < 0.5 ? 0 : alike <= 0.9 ? 1 : 2,
      sentence: `The cosine of the first two is ${alike.toFixed(2)}: ${words}. The first and the third have ${apart.toFixed(2)}.`,
      bars: [
        { label: 'the first two', value: alike },
        { label: 'the first and the third', value: apart },
      ],
      heads: [],
    };
  },
};

const NOT: Dare = {
  id: 'not',
  title: 'Does “not” count?',
  question: 'Which of the last two sentences has the vector nearer to the first?',
  texts: ['The film was good.', 'The film was not good.', 'I enjoyed the movie.'],
  open: true,
  answers: ['the second', 'the third'],
  outcome: ([one, opposite, paraphrase]) => {
    if (!one || !opposite || !paraphrase) return 'the texts are not read yet';
    const [second, third] = [cosine(vectorOf(one), vectorOf(opposite)), cosine(vectorOf(one), vectorOf(paraphrase))];
    const words = second > third ? 'shared words count for more than what the sentences say' : 'what the sentences say counts for more than shared words';
    return {
      right: second > third ? 0 : 1,
      sentence: `The cosine with the second is ${second.toFixed(2)}, with the third ${third.toFixed(2)}: ${words}.`,
      bars: [
        { label: 'the second', value: second },
        { label: 'the third', value: third },
      ],
      heads: [],
    };
  },
};

export const DARES: readonly Dare[] = [TROPHY, ORDER, NOT];
