/** The numbers of a view as Python: a snippet that computes them again with the package itself. */

import type { Stamp, TextRead } from '../api/types';
import type { ViewState } from '../state/url';

export interface Shown {
  view: ViewState;
  /** The text in the chosen model, and in the one beside it. */
  reads: readonly TextRead[];
  stamps: readonly Stamp[];
  /** The token that is asked about. */
  token: number;
  canFill: boolean;
  option: (name: string, otherwise: string) => string;
}

const written = (value: unknown) => JSON.stringify(value);

/** A runnable snippet; what the view shows is in `result`. Null where there is no text to compute it of. */
export function pythonOf(shown: Shown): string | null {
  if (shown.view.view === 'wall') return WALL;
  const [read] = shown.reads;
  if (!read) return null;
  if (shown.view.view === 'tour') return tour(shown, read);
  const body = (BODIES[shown.view.view] ?? map)(shown, read);
  const imports = body.filter((line) => line.startsWith('from ')).sort();
  const rest = body.filter((line) => !line.startsWith('from '));
  return ['import unmask', ...imports, '', ...opening(shown, read), ...rest, ''].join('\n');
}

function opening({ view, stamps }: Shown, read: TextRead): string[] {
  return [`model = ${stamps[0]?.load ?? `unmask.load(${written(read.model)})`}`, `view = ${attention('model', view, read)}`];
}

function attention(model: string, view: ViewState, read: TextRead): string {
  const pair = read.pair === null ? '' : `, ${written(read.pair)}`;
  const cut = view.cut ? ', truncation="end"' : '';
  return `${model}.attention(${written(read.text)}${pair}${cut})`;
}

type Body = (shown: Shown, read: TextRead) => string[];

const map: Body = ({ view, option }) => {
  const { layer, head } = view;
  if (option('map.by', 'tokens') === 'words') {
    return [
      'from unmask.interpret.words.words import word_map, words',
      '# summed over the pieces of a key, averaged over those of a query; raw attention',
      `result = word_map(view, ${layer}, ${head}, words(view.encoding))`,
    ];
  }
  return [`result = view.probabilities(${layer}, ${head}, weight=${written(view.weight)})  # (queries, keys)`];
};

const tokens: Body = ({ view, option }) => [
  `layer = view.atlas().layers[${view.layer}]`,
  `result = layer.${option('tokens.by', 'received')}_HN[${view.head}]  # one number a token`,
];

const heads: Body = () => ['result = view.summaries()  # one line a head'];

const flow: Body = ({ view }) => [
  `edges = view.top_edges(${view.layer}, ${view.head}, k=8)`,
  'result = edges.probabilities  # of the keys in edges.keys, the strongest first',
];

const sinks: Body = ({ option }) => [
  'from unmask.interpret.statistics.sinks import sinks',
  `result = sinks(view.atlas(), epsilon=${Number(option('sinks.epsilon', '30')) / 100})`,
];

const paths: Body = (shown) => {
  const { option, token } = shown;
  const whole = option('paths.of', '') === 'text';
  if (option('paths.method', 'rollout') !== 'relevance') {
    const start = whole ? 'None' : token;
    return [
      'from unmask.interpret.attribution.rollout import rollout',
      `result = rollout(view.recording, ${start}, fusion=${written(option('paths.fusion', 'mean'))}).values  # (levels, tokens)`,
    ];
  }
  const target = option('paths.target', shown.canFill ? 'word' : 'embedding');
  if (target === 'word') return relevanceOfWord(token);
  const what = target === 'class' ? 'Class' : 'Embedding';
  const made = target === 'class' ? CLASS : whole ? ['target = Embedding(model.embedding_head().pooling)'] : [`target = Embedding(token=${token})`];
  return [
    'from unmask.interpret.attribution.gradient import relevance',
    `from unmask.interpret.intervention.target import ${what}`,
    ...made,
    'result = relevance(view.recording, target, encoder=model.trainable_encoder(replace=False)).by_layer  # (layers, tokens)',
  ];
};

const CLASS = [
  'role = next(name for name in model.encoder.heads if name not in ("masked", "enhanced"))',
  'target = Class(role, 0)  # the class to explain',
];

function relevanceOfWord(token: number): string[] {
  return [
    'from unmask.interpret.activation_cache import Recording',
    'from unmask.interpret.attribution.gradient import relevance',
    'from unmask.interpret.intervention.target import Word',
    'from unmask.text.masking import masked',
    `token = ${token}`,
    'word = int(view.encoding.ids[token])  # the word that stands there, asked for at a mask',
    'hidden = masked(view.encoding, [token], model.tokenizer)',
    'recording = Recording.of(model.encoder, hidden)',
    'result = relevance(recording, Word(token, word), encoder=model.trainable_encoder(replace=False)).by_layer  # (layers, tokens)',
  ];
}

const words: Body = ({ token, canFill }) =>
  canFill
    ? [
        'from unmask.interpret.logit_lens import lens',
        'from unmask.interpret.activation_cache import Recording',
        'from unmask.text.masking import masked',
        `hidden = masked(view.encoding, [${token}], model.tokenizer)`,
        `found = lens(Recording.of(model.encoder, hidden), [${token}], top_k=8)`,
        'result = found.probabilities[0, -1]  # of the words found.ids[0, -1]; other levels are the lens',
      ]
    : [
        'from unmask.interpret.intervention.ablation import importance',
        'from unmask.interpret.intervention.target import Embedding',
        `result = importance(view.recording, Embedding(token=${token}), encoder=model.trainable_encoder(replace=False)).slopes  # (layers, heads)`,
      ];

const compare: Body = ({ view, reads, stamps }) => {
  const other = reads[1];
  if (!other) return map({ view, reads, stamps, token: 0, canFill: false, option: (_, otherwise) => otherwise }, reads[0] as TextRead);
  return [
    'from unmask.interpret.statistics.head_distances import compare_heads',
    `other = ${stamps[1]?.load ?? `unmask.load(${written(other.model)})`}`,
    `beside = ${attention('other', view, other)}`,
    'result = compare_heads(view.recording, beside.recording).divergence  # (heads, heads), nats',
  ];
};

const geometry: Body = () => [
  'from unmask.interpret.geometry import geometry',
  'levels = [*view.recording.states[:-1], view.recording.final_ND]',
  'result = geometry(levels, special_N=view.encoding.special)  # one entry a level',
];

const BODIES: Record<string, Body> = { map, tokens, heads, flow, sinks, paths, words, compare, geometry };

function tour({ view, option, stamps }: Shown, read: TextRead): string {
  const text = option('tour.text', view.text.slice(0, 600));
  return [
    'import unmask',
    'from unmask.explorer.tour.chapters import run',
    '',
    `model = ${stamps[0]?.load ?? `unmask.load(${written(read.model)})`}`,
    `result = run(${written(option('tour.chapter', 'handshake'))}, [model], ${written(text)})`,
    '',
  ].join('\n');
}

const WALL = '# Each point is measured in a process of its own, from the command line:\n#   unmask wall --output wall.json\n';
