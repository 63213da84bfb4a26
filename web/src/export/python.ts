/** The numbers of a view as Python: a snippet that recomputes them with the package. */

import type { SearchIndex, Stamp, TextRead } from '../api/types';
import { targetOf } from '../draw/prediction';
import type { ViewState } from '../state/url';

export interface Shown {
  view: ViewState;
  /** The text in the chosen model, and in the second model. */
  reads: readonly TextRead[];
  stamps: readonly Stamp[];
  /** The token in question. */
  token: number;
  canFill: boolean;
  option: (name: string, otherwise: string) => string;
  /** The index, where the view is its search. */
  index?: SearchIndex | null;
}

const written = (value: unknown) => JSON.stringify(value);

/** A runnable snippet that leaves the numbers of the view in `result`; null if there is no text. */
export function pythonOf(shown: Shown): string | null {
  if (shown.view.view === 'wall') return WALL;
  if (shown.view.view === 'search') return search(shown);
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

/** Tokens of the longest text that a figure of a map shows. */
const FIGURE_TOKENS = 1024;

const map: Body = ({ view, option }, read) => {
  const { layer, head } = view;
  const weight = written(view.weight);
  const chosen = 'from unmask.interpret.words.chosen_maps import ChosenMaps';
  const maps = `maps = ChosenMaps(view, ${weight}${view.special === 'hide' ? ', view.encoding.special' : ''})`;
  if (option('map.by', 'tokens') === 'words') {
    return [
      chosen,
      'from unmask.interpret.words.words import word_map, words',
      maps,
      '# summed over the tokens of a key word, averaged over those of a query word',
      `result = word_map(maps, ${layer}, ${head}, words(view.encoding))`,
    ];
  }
  if (view.special === 'hide') return [chosen, maps, `result = maps.probabilities(${layer}, ${head})  # (queries, keys)`];
  const result = `result = view.probabilities(${layer}, ${head}, weight=${weight})  # (queries, keys)`;
  if (read.kept_tokens > FIGURE_TOKENS) return [result];
  return [
    'from unmask.interpret.figures.attention import map_figure',
    'from unmask.interpret.figures.paper import save_figure',
    result,
    `save_figure(map_figure(view, ${layer}, ${head}, weight=${weight}), "map.svg")  # 3.25 inches wide; .pdf and .png too`,
  ];
};

/** Statistics that addresses of earlier versions name differently. */
const FIELDS: Record<string, string> = { received: 'attention_received', peak: 'max_received' };

const tokens: Body = ({ view, option }) => [
  `layer = view.statistics().layers[${view.layer}]`,
  `result = layer.${FIELDS[option('tokens.by', 'attention_received')] ?? option('tokens.by', 'attention_received')}_HN[${view.head}]  # one number per token`,
];

const overview: Body = () => [
  'from unmask.interpret.overview.overview import overview',
  'result = overview(view).findings  # each with a sentence and its figures',
];

const heads: Body = () => ['result = view.summaries()  # one entry per head'];

const head: Body = ({ view, option }) => [
  'corpus = model.attention_over()  # the sentences of the package; a file or a list of texts for yours',
  `result = corpus.examples(${view.layer}, ${view.head}, ${written(option('head.by', 'edge'))})`,
];

const flow: Body = ({ view, option }, read) => {
  const imports = ['from unmask.interpret.edges import layer_edges', 'from unmask.interpret.rows import LayerRows'];
  const given = `8, weighted=${view.weight === 'norm' ? 'True' : 'False'}, without_N=${view.special === 'hide' ? 'view.encoding.special' : 'None'}`;
  const of = 'of the keys in keys_HNk, by head and query, largest first';
  if (option('flow.as', '') === '') return [...imports, `edges = layer_edges(LayerRows(view.cache, ${view.layer}), ${given})`, `result = edges.shares_HNk  # ${of}`];
  return [...imports, `edges = [layer_edges(LayerRows(view.cache, layer), ${given}) for layer in range(${read.layers})]`, `result = [one.shares_HNk for one in edges]  # ${of}`];
};

const sinks: Body = ({ option }) => [
  'from unmask.interpret.statistics.sinks import sinks',
  `result = sinks(view.statistics(), epsilon=${Number(option('sinks.epsilon', '30')) / 100})`,
];

const paths: Body = (shown) => {
  const { option, token } = shown;
  const whole = option('paths.of', '') === 'text';
  if (option('paths.method', 'rollout') !== 'relevance') {
    const start = whole ? 'None' : token;
    return [
      'from unmask.interpret.attribution.rollout import rollout',
      `result = rollout(view.cache, ${start}, fusion=${written(option('paths.fusion', 'mean'))}).values  # (levels, tokens)`,
    ];
  }
  const target = option('paths.target', shown.canFill ? 'word' : 'embedding');
  if (target === 'word') return attributionOfWord(token);
  const asked = targetOf(option('paths.class', ''));
  const what = target !== 'class' ? 'Embedding' : asked.classes === null ? 'Class' : 'TokenClasses';
  const made = target === 'class' ? classOf(asked) : whole ? ['target = Embedding(model.embedding_head().pooling)'] : [`target = Embedding(token=${token})`];
  return [
    'from unmask.interpret.attribution.gradient import attribution',
    `from unmask.interpret.intervention.target import ${what}`,
    ...made,
    'result = attribution(view.cache, target, encoder=model.trainable_encoder(replace=False)).by_layer  # (layers, tokens)',
  ];
};

function classOf({ id, classes }: ReturnType<typeof targetOf>): string[] {
  const role = 'role = next(name for name in model.encoder.heads if name not in ("masked", "enhanced"))';
  if (classes === null) return [role, `target = Class(role, ${id ?? 0})  # the class to explain`];
  const [tokens, of] = [0, 1].map((part) => classes.split(',').map((pair) => `${pair.split(':')[part]},`).join(' '));
  return [role, `target = TokenClasses(role, (${tokens}), (${of}))  # tokens, and the class of each`];
}

function attributionOfWord(token: number): string[] {
  return [
    'from unmask.interpret.activation_cache import ActivationCache',
    'from unmask.interpret.attribution.gradient import attribution',
    'from unmask.interpret.intervention.target import Word',
    'from unmask.text.masking import masked',
    `token = ${token}`,
    'word = int(view.encoding.ids[token])  # the actual word, predicted at a mask',
    'hidden = masked(view.encoding, [token], model.tokenizer)',
    'cache = ActivationCache.of(model.encoder, hidden)',
    'result = attribution(cache, Word(token, word), encoder=model.trainable_encoder(replace=False)).by_layer  # (layers, tokens)',
  ];
}

const words: Body = ({ token, canFill }) =>
  canFill
    ? [
        'from unmask.interpret.logit_lens import logit_lens',
        'from unmask.interpret.activation_cache import ActivationCache',
        'from unmask.text.masking import masked',
        `hidden = masked(view.encoding, [${token}], model.tokenizer)`,
        `found = logit_lens(ActivationCache.of(model.encoder, hidden), [${token}], top_k=8)`,
        'result = found.probabilities[0, -1]  # of the words found.ids[0, -1]; the other levels are the logit lens',
      ]
    : [
        'from unmask.interpret.intervention.ablation import importance',
        'from unmask.interpret.intervention.target import Embedding',
        `result = importance(view.cache, Embedding(token=${token}), encoder=model.trainable_encoder(replace=False)).slopes  # (layers, heads)`,
      ];

const compare: Body = ({ view, reads, stamps }) => {
  const other = reads[1];
  if (!other) return map({ view, reads, stamps, token: 0, canFill: false, option: (_, otherwise) => otherwise }, reads[0] as TextRead);
  return [
    'from unmask.interpret.statistics.head_distances import compare_heads',
    `other = ${stamps[1]?.load ?? `unmask.load(${written(other.model)})`}`,
    `compared = ${attention('other', view, other)}`,
    'result = compare_heads(view.cache, compared.cache).divergence  # (heads, heads), nats',
  ];
};

const geometry: Body = ({ option }) => [
  'from unmask.interpret.geometry import geometry, project',
  'levels = [*view.cache.states[:-1], view.cache.final_ND]',
  `cloud = project(levels, special_N=view.encoding.special, ${projected(option('cloud.axes', 'own'))})`,
  'result = geometry(levels, special_N=view.encoding.special)  # one entry per level',
];

function projected(axes: string): string {
  return axes === 'umap' ? 'method="umap"' : `basis="${axes === 'shared' ? 'shared' : 'own'}"`;
}

const BODIES: Record<string, Body> = { overview, map, tokens, heads, head, flow, sinks, paths, words, compare, geometry };

function search({ option, index }: Shown): string | null {
  const text = option('search.text', '');
  if (!index || text === '') return null;
  const how = `k=${option('search.k', '10')}, mode=${written(option('search.mode', index.modes[0] ?? ''))}, unit=${written(option('search.unit', 'passage'))}`;
  return [
    'import unmask',
    '',
    `index = unmask.Index.open(${written(index.path)})`,
    `result = index.search(${written(text)}, ${how}, why=True)`,
    '',
  ].join('\n');
}

function tour({ view, option, stamps }: Shown, read: TextRead): string {
  const text = view.text.slice(0, 600);
  const chosen = ['layer', 'head', 'token'].map((name) => [name, option(`tour.${name}`, '')] as const);
  const choices = chosen.filter(([, value]) => /^\d+$/.test(value)).map(([name, value]) => `, ${name}=${value}`).join('');
  return [
    'import unmask',
    'from unmask.explorer.tour.chapters import run',
    '',
    `model = ${stamps[0]?.load ?? `unmask.load(${written(read.model)})`}`,
    `result = run(${written(option('tour.chapter', 'handshake'))}, [model], ${written(text)}${choices})`,
    '',
  ].join('\n');
}

const WALL = '# Each point is measured in a separate process, from the command line:\n#   unmask scaling --output scaling.json\n';
