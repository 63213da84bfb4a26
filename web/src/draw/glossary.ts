/** The terms of the explorer: each with one definition, its source and one small drawing. */

/** Colors of a drawing: query, key, muted, and the text's own. */
type Ink = 'q' | 'k' | 'm' | 'x';
/** Parts of a drawing in a frame of 120 by 56: rectangles, dots, lines and words. */
export type Mark =
  | readonly ['rect', Ink, number, number, number, number, number?]
  | readonly ['dot', Ink, number, number, number]
  | readonly ['line', Ink, string]
  | readonly ['text', Ink, number, number, string];

export interface Entry {
  name: string;
  /** One sentence. */
  means: string;
  /** Where the term comes from. */
  source: string;
  drawing: readonly Mark[];
}

/** Bars from a common base line. */
const bars = (heights: readonly number[], ink: Ink = 'q', left = 24, step = 14): Mark[] =>
  heights.map((height, index) => ['rect', ink, left + step * index, 48 - height, step - 4, height]);

/** A small map: digits are the opacities of its cells, row after row. */
const cells = (rows: readonly string[], left = 38, side = 11, ink: Ink = 'q'): Mark[] =>
  rows.flatMap((row, y) =>
    [...row].map((digit, x): Mark => ['rect', ink, left + side * x, 4 + side * y, side - 1, side - 1, Math.max(0.06, Number(digit) / 9)]),
  );

const dots = (places: readonly (readonly [number, number])[], ink: Ink = 'q'): Mark[] =>
  places.map(([x, y]): Mark => ['dot', ink, x, y, 3]);

const boxes = (names: readonly string[], y: number): Mark[] =>
  names.flatMap((name, index): Mark[] => [
    ['rect', 'm', 8 + 36 * index, y, 32, 15, 0.18],
    ['text', 'x', 24 + 36 * index, y + 11, name],
  ]);

const VASWANI = 'Vaswani et al. 2017';
const CLARK = 'Clark et al. 2019';
const DEVLIN = 'Devlin et al. 2019';

export const GLOSSARY = {
  token: {
    name: 'token',
    means: 'A unit of text that the model reads as one: a word, a part of a word, or a punctuation mark.',
    source: 'Sennrich et al. 2016',
    drawing: [...boxes(['un', 'mask', 'ed'], 30), ['text', 'x', 60, 18, 'unmasked'], ['line', 'm', 'M60 21V29']],
  },
  special: {
    name: 'special tokens',
    means: 'Tokens that the tokenizer adds to every text, such as [CLS] at its beginning and [SEP] at its end; they stand for no words.',
    source: DEVLIN,
    drawing: [...boxes(['[CLS]', 'text', '[SEP]'], 20), ['line', 'k', 'M8 40H40M80 40H112']],
  },
  query: {
    name: 'query',
    means: 'The vector that a head computes from the attending token; its product with a key gives a score.',
    source: VASWANI,
    drawing: [['line', 'q', 'M60 48L92 14'], ['dot', 'q', 92, 14, 3], ['line', 'm', 'M60 48L38 18'], ['text', 'q', 104, 18, 'q'], ['text', 'm', 28, 20, 'k']],
  },
  key: {
    name: 'key',
    means: 'The vector that a head computes from a token that can be attended to; a query is compared with all keys.',
    source: VASWANI,
    drawing: [['line', 'k', 'M60 48L38 18'], ['dot', 'k', 38, 18, 3], ['line', 'm', 'M60 48L92 14'], ['text', 'k', 28, 20, 'k'], ['text', 'm', 104, 18, 'q']],
  },
  value: {
    name: 'value',
    means: 'The vector that a head reads from an attended token; the head’s output is the average of values, weighted by attention.',
    source: VASWANI,
    drawing: [...bars([34, 10, 20], 'k', 12, 12), ['text', 'x', 58, 38, '→'], ...bars([30], 'q', 74, 26), ['text', 'm', 28, 10, 'weighted'], ['text', 'm', 86, 10, 'sum']],
  },
  weight: {
    name: 'attention weight',
    means: 'The share of a query’s attention that one key receives; the weights of a query add up to 1.',
    source: VASWANI,
    drawing: [...cells(['1612', '3141', '7110', '0244'])],
  },
  softmax: {
    name: 'softmax',
    means: 'The function exp(score) divided by the sum over all scores; it turns any scores into positive weights that add up to 1.',
    source: 'Bridle 1990',
    drawing: [...bars([14, 22, 10], 'm', 8, 12), ['text', 'x', 58, 38, '→'], ...bars([10, 34, 4], 'q', 72, 12)],
  },
  head: {
    name: 'head',
    means: 'One of several attention computations of a layer, each with its own queries, keys and values.',
    source: VASWANI,
    drawing: [...cells(['91', '19'], 8, 15), ...cells(['55', '55'], 46, 15), ...cells(['18', '81'], 84, 15), ['text', 'm', 60, 50, 'three heads']],
  },
  layer: {
    name: 'layer',
    means: 'One attention step and one feed-forward step, each added to the residual stream; an encoder is a stack of layers.',
    source: VASWANI,
    drawing: [['rect', 'm', 36, 38, 48, 11, 0.2], ['rect', 'q', 36, 23, 48, 11, 0.6], ['rect', 'm', 36, 8, 48, 11, 0.2], ['line', 'x', 'M60 54V3M56 8L60 3L64 8']],
  },
  residual: {
    name: 'residual stream',
    means: 'The vector of a token that runs through all layers; attention and feed-forward parts read it and add to it.',
    source: 'Elhage et al. 2021',
    drawing: [['line', 'x', 'M6 40H114M108 36L114 40L108 44'], ['line', 'q', 'M22 40V16H44V40'], ['line', 'k', 'M66 40V16H88V40'], ['text', 'q', 33, 11, 'attention'], ['text', 'k', 82, 11, 'feed-fwd']],
  },
  entropy: {
    name: 'entropy',
    means: 'How evenly a query’s attention is spread: 0 if one key has all of it, the maximum if all keys have the same.',
    source: `Shannon 1948; ${CLARK}`,
    drawing: [...bars([38, 2, 2], 'q', 8, 12), ...bars([13, 13, 13], 'q', 72, 12), ['text', 'm', 28, 10, ''], ['text', 'm', 56, 30, 'low'], ['text', 'm', 90, 20, 'high']],
  },
  sink: {
    name: 'attention sink',
    means: 'A token that receives much attention from most queries whatever the text says, often [CLS], [SEP] or a period.',
    source: 'Xiao et al. 2024',
    drawing: [...cells(['9010', '8100', '9001', '8010'])],
  },
  noop: {
    name: 'no-op sink',
    means: 'A sink whose value vector is short: attending to it adds almost nothing, so the head is switched off for that query.',
    source: `Kobayashi et al. 2020; ${CLARK}`,
    drawing: [['rect', 'q', 12, 12, 60, 12], ['rect', 'k', 12, 32, 5, 12], ['text', 'x', 94, 22, 'weight'], ['text', 'x', 94, 42, 'added']],
  },
  broadcast: {
    name: 'broadcast sink',
    means: 'A sink whose value dominates what the head writes: every token that attends to it receives nearly the same vector.',
    source: 'arXiv 2606.08105',
    drawing: [['dot', 'k', 20, 28, 5], ['line', 'k', 'M25 28L96 8M25 28L96 21M25 28L96 35M25 28L96 48'], ...dots([[98, 8], [98, 21], [98, 35], [98, 48]])],
  },
  norm: {
    name: 'norm-weighted attention',
    means: 'Attention weights multiplied by the norm of the vector that each key adds, which is closer to what a head does than weights alone.',
    source: 'Kobayashi et al. 2020',
    drawing: [...bars([36, 12, 16], 'q', 4, 11), ['text', 'x', 42, 38, '×'], ...bars([4, 30, 20], 'k', 48, 11), ['text', 'x', 85, 38, '='], ...bars([4, 14, 12], 'x', 90, 10)],
  },
  distance: {
    name: 'attention distance',
    means: 'How many tokens lie between a query and its keys, averaged with the attention weights.',
    source: 'Dosovitskiy et al. 2021',
    drawing: [...dots([[20, 44], [40, 44], [60, 44], [80, 44], [100, 44]], 'm'), ['line', 'q', 'M100 40C90 6 30 6 20 40'], ['line', 'q', 'M100 40C96 28 84 28 80 40']],
  },
  previous: {
    name: 'previous-token head',
    means: 'A head in which almost every query attends to the token before it.',
    source: `Voita et al. 2019; ${CLARK}`,
    drawing: [...cells(['1000', '9000', '0900', '0090'])],
  },
  vertical: {
    name: 'vertical line',
    means: 'All queries attend to one key; the score is what the most attended key receives on average, above uniform attention.',
    source: CLARK,
    drawing: cells(['0900', '0900', '0900', '0900']),
  },
  diagonal: {
    name: 'diagonal',
    means: 'Each query attends to the key at one fixed offset: itself, the previous or the next token; the score is attention to that offset, above uniform attention.',
    source: CLARK,
    drawing: cells(['9000', '0900', '0090', '0009']),
  },
  block: {
    name: 'block',
    means: 'Queries attend within their own sentence, or their own text of a pair; the score is that attention, above what sentences with shifted borders would get.',
    source: 'Kovaleva et al. 2019',
    drawing: cells(['7700', '7700', '0077', '0077']),
  },
  distant: {
    name: 'distant link',
    means: 'Queries attend to single keys at least 8 tokens away; the score is attention to the strongest one, above what that key receives on average.',
    source: CLARK,
    drawing: cells(['0009', '0000', '9000', '0000']),
  },
  rollout: {
    name: 'rollout',
    means: 'The product of the attention matrices of all layers, each averaged with the identity: an estimate of which input tokens a state is made of.',
    source: 'Abnar & Zuidema 2020',
    drawing: [...dots([[20, 48], [60, 48], [100, 48]], 'k'), ...dots([[20, 28], [60, 28], [100, 28]], 'm'), ['dot', 'q', 60, 8, 4], ['line', 'q', 'M60 12L20 25M60 12L60 25'], ['line', 'k', 'M20 31V45M60 31L100 45M60 31V45']],
  },
  gradient: {
    name: 'gradient attribution',
    means: 'Attention weights multiplied by the gradient of one output, summed over layers: which tokens raised that output, to first order.',
    source: 'Chefer, Gur & Wolf 2021',
    drawing: [['line', 'm', 'M12 46C40 46 60 40 108 8'], ['line', 'q', 'M44 46L92 16'], ['dot', 'q', 68, 31, 3], ['text', 'q', 86, 38, 'slope']],
  },
  lens: {
    name: 'logit lens',
    means: 'The model’s own MLM head applied to the states after every layer: what it would predict if it ended there.',
    source: 'nostalgebraist 2020',
    drawing: [['line', 'm', 'M14 50V6'], ...dots([[14, 46], [14, 28], [14, 10]]), ['text', 'm', 62, 49, '→ the'], ['text', 'm', 64, 31, '→ home'], ['text', 'x', 62, 13, '→ door']],
  },
  ablation: {
    name: 'ablation',
    means: 'The measured change of an output when one part of the model, such as a head, is replaced by zero or by its mean.',
    source: 'Michel et al. 2019',
    drawing: [...cells(['91', '19'], 8, 15), ...cells(['55', '55'], 46, 15, 'm'), ...cells(['18', '81'], 84, 15), ['line', 'k', 'M44 4L78 34M78 4L44 34'], ['text', 'm', 60, 50, 'without it']],
  },
  intrinsic: {
    name: 'intrinsic dimension',
    means: 'The number of coordinates needed to describe a cloud of points locally, however many coordinates each point has.',
    source: 'Facco et al. 2017',
    drawing: [['line', 'm', 'M16 46L40 30H110L86 46Z'], ...dots([[34, 42], [50, 38], [62, 34], [78, 42], [92, 34]]), ['text', 'm', 62, 14, '2 in 3-D space']],
  },
  isotropy: {
    name: 'isotropy',
    means: 'Whether vectors point equally in all directions; in an anisotropic space most of them share one.',
    source: 'Ethayarajh 2019',
    drawing: [['line', 'q', 'M30 28L30 8M30 28L48 20M30 28L44 44M30 28L16 44M30 28L12 20'], ['line', 'k', 'M76 46L100 8M76 46L108 14M76 46L92 8M76 46L110 24']],
  },
  cka: {
    name: 'CKA',
    means: 'Centered kernel alignment: how similar two sets of states are, from 0 to 1, independent of rotation and scale.',
    source: 'Kornblith et al. 2019',
    drawing: [...dots([[16, 40], [28, 16], [44, 34]]), ['line', 'm', 'M16 40L28 16L44 34Z'], ['text', 'x', 60, 32, '≈'], ...dots([[76, 14], [102, 20], [86, 40]], 'k'), ['line', 'm', 'M76 14L102 20L86 40Z']],
  },
  mlm: {
    name: 'MLM head',
    means: 'The output layer that turns the state of a masked token into a probability for every word of the vocabulary.',
    source: DEVLIN,
    drawing: [...boxes(['the', '[M]', 'is'], 36), ['line', 'q', 'M60 34V26'], ...bars([], 'q'), ['rect', 'q', 34, 4, 8, 18], ['rect', 'q', 48, 14, 8, 8], ['rect', 'q', 62, 18, 8, 4], ['rect', 'q', 76, 20, 8, 2]],
  },
  step: {
    name: 'step of pretraining',
    means: 'Some tokens are corrupted and become targets; the loss of a target is -log p of the right token, in nats, and training lowers the mean.',
    source: DEVLIN,
    drawing: [...boxes(['the', '[M]', 'ran'], 36), ['line', 'q', 'M60 34V22'], ['text', 'x', 60, 16, 'cat?']],
  },
  embedding: {
    name: 'embedding',
    means: 'A vector that stands for a whole text, often the mean of the states of its tokens; similar texts have similar vectors.',
    source: 'Reimers & Gurevych 2019',
    drawing: [...boxes(['a', 'text', '.'], 38), ['line', 'm', 'M24 37L60 20M60 37V20M96 37L60 20'], ['rect', 'q', 38, 6, 44, 11]],
  },
} as const satisfies Record<string, Entry>;

export type TermId = keyof typeof GLOSSARY;
