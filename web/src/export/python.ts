/** The numbers of a view as Python: a snippet that recomputes them with the package. */

import type { SearchIndex, Stamp, TextRead } from '../api/types';
import { targetOf } from '../draw/prediction';
import { EDGE_NAMES, EDGES, type Edges, sidesOf } from '../draw/segments';
import { overOf, type ViewState } from '../state/url';

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
  if (shown.view.view === 'search') return search(shown);
  const [read] = shown.reads;
  if (!read) return null;
  if (shown.view.view === 'tour') return tour(shown, read);
  const { view } = shown.view;
  const other = view === 'compare' && shown.reads[1];
  if (other && shown.reads.some(({ heads }) => !heads[0])) return `# unmask geometry --file text.txt -m ${read.model} --model-b ${other.model}\n`;
  const body = [...(read.global_spans.length > 0 ? GLOBAL : []), ...((read.heads[0] ? BODIES[view] : geometry) ?? map)(shown, read)];
  const isImport = (line: string) => /^(from|import) /.test(line);
  // `import` before `from`, each by name.
  const imports = ['import unmask', ...new Set(body.filter(isImport))].sort((one, other) => Number(one < 'i') - Number(other < 'i') || (one < other ? -1 : 1));
  return [...imports, '', ...opening(shown, read), ...body.filter((line) => !isImport(line)), ''].join('\n');
}

function opening({ view, stamps }: Shown, read: TextRead): string[] {
  const spans = read.global_spans.map((span) => `(${span.join(', ')}), `).join('').trimEnd();
  const paired = read.pair === null ? 'False' : 'True';
  return [
    `model = ${stamps[0]?.load ?? `unmask.load(${written(read.model)})`}`,
    ...(spans ? [`chosen = GlobalText(spans=(${spans}), beside=trained_global_tokens(model.spec, paired=${paired}))`] : []),
    // An ELMo has none.
    ...(read.heads[0] ? [`view = ${attention('model', view, read)}`] : []),
  ];
}

const GLOBAL = ['from unmask.interpret.attention.comparison import GlobalText', 'from unmask.spec.global_tokens import trained_global_tokens'];
const chosenIn = ({ reads }: Shown) => (reads[0]?.global_spans.length ? ', global_tokens=chosen' : '');

function attention(model: string, view: ViewState, read: TextRead): string {
  const pair = read.pair === null ? '' : `, ${written(read.pair)}`;
  const cut = view.cut ? ', truncation="end"' : '';
  const chosen = read.global_spans.length > 0 ? ', global_tokens=chosen' : '';
  return `${model}.attention(${written(read.text)}${pair}${cut}${chosen})`;
}

type Body = (shown: Shown, read: TextRead) => string[];

/** Tokens of the longest text that a figure of a map shows. */
const FIGURE_TOKENS = 1024;

const SPECIAL = 'view.encoding.special';

/** The attention between the texts of a pair that is shown; all where the text is no pair. */
function edgesOf({ option }: Shown, read: TextRead): Edges {
  return (read.pair !== null && EDGES.find((edges) => edges === option('pair.edges', 'all'))) || 'all';
}

const renormalizes = ({ option }: Shown) => option('pair.rows', 'masked') === 'renormalized';

/** Leaves of `result` what goes between the texts that are shown; `of` are the tokens or the words. */
function between(shown: Shown, read: TextRead, of: string): string[] {
  const edges = edgesOf(shown, read);
  if (edges === 'all') return [];
  const [from, to] = sidesOf(edges);
  return [
    'import numpy as np',
    `texts = ${of}  # 0: text A, 1: text B, 2: neither`,
    `result = np.where((texts[:, None] == ${from}) & (texts == ${to}), result, 0)  # ${EDGE_NAMES[edges]} only`,
    ...(renormalizes(shown) ? ['result /= np.maximum(result.sum(-1, keepdims=True), 1e-30)'] : []),
  ];
}

const map: Body = (shown, read) => {
  const { view, option } = shown;
  const { layer, head } = view;
  const weight = written(view.weight);
  const chosen = 'from unmask.interpret.attention.view import ChosenMaps';
  const over = overOf(view);
  const without = view.special === 'hide' ? SPECIAL : null;
  const maps = `maps = ChosenMaps(view, ${weight}${without || over ? `, ${without ?? 'None'}` : ''}${over ? `, ${written(over)}` : ''})`;
  if (option('map.by', 'tokens') === 'words') {
    return [
      chosen,
      'from unmask.interpret.words.words import word_map, words',
      maps,
      'of = words(view.encoding)',
      '# summed over the tokens of a key word, averaged over those of a query word',
      `result = word_map(maps, ${layer}, ${head}, of)`,
      ...between(shown, read, 'np.where(of.special, 2, of.in_pair)'),
    ];
  }
  const part = between(shown, read, `np.where(${SPECIAL}, 2, view.encoding.sequence_ids == 1)`);
  const [of, pool] = over?.split('_') ?? [];
  const result = over
    ? [`result = view.pooled(${of === 'all' ? 'None' : layer}, ${written(pool)}, weight=${weight}${without ? `, without_N=${without}` : ''})  # (queries, keys)`]
    : without
      ? [chosen, maps, `result = maps.probabilities(${layer}, ${head})  # (queries, keys)`]
      : [`result = view.probabilities(${layer}, ${head}, weight=${weight})  # (queries, keys)`];
  if (read.kept_tokens > FIGURE_TOKENS) return [...result, ...part];
  const drawn = without || over || part.length > 0 ? ', map_NN=result' : '';
  return [
    'from unmask.interpret.figures.attention import map_figure',
    'from unmask.interpret.figures.paper import save_figure',
    ...result,
    ...part,
    ...(over ? [] : [
      'from unmask.interpret.attention.patterns import head_patterns',
      `patterns = head_patterns(view.cache, view.open_statistics(), layers=(${layer},)).of(${layer}, ${head})`,
    ]),
    `save_figure(map_figure(view, ${layer}, ${head}, weight=${weight}${drawn}), "map.svg")  # 3.25 inches wide; .pdf and .png too`,
  ];
};

/** Statistics that addresses of earlier versions name differently. */
const FIELDS: Record<string, string> = { received: 'attention_received', peak: 'max_received' };

const EDGE_IMPORTS = ['from unmask.interpret.attention.edges import layer_edges', 'from unmask.interpret.attention.rows import LayerRows'];

/** Statistics of tokens that are also known without special tokens, and whether they weigh by norms. */
const WITHOUT: Record<string, string> = { attention_received: 'False', received_norm: 'True' };

const tokens: Body = ({ view, option }) => {
  const asked = option('tokens.by', 'attention_received');
  const field = FIELDS[asked] ?? asked;
  const weighted = view.special === 'hide' && WITHOUT[field];
  if (weighted) {
    return [
      ...EDGE_IMPORTS,
      `edges = layer_edges(LayerRows(view.cache, ${view.layer}), 8, weighted=${weighted}, without_N=${SPECIAL})`,
      `result = edges.received_HN[${view.head}]  # one number per token`,
    ];
  }
  return [`layer = view.statistics().layers[${view.layer}]`, `result = layer.${field}_HN[${view.head}]  # one number per token`];
};

const overview: Body = () => [
  'from unmask.interpret.overview.overview import overview',
  'result = overview(view).findings  # each with a sentence and its figures',
];

const heads: Body = (shown, read) => {
  const edges = edgesOf(shown, read);
  if (edges === 'all') return ['result = view.summaries()  # one entry per head, of all tokens'];
  const [from, to] = sidesOf(edges);
  return ['from unmask.interpret.attention.head_distances import segment_attention', `result = segment_attention(view.cache)[:, :, ${from}, ${to}]  # ${EDGE_NAMES[edges]}, (layers, heads)`];
};

const head: Body = ({ view, option }) => [
  'corpus = model.attention_over()  # the sentences of the package; a file or a list of texts for yours',
  `result = corpus.examples(${view.layer}, ${view.head}, ${written(option('head.by', 'edge'))})`,
];

const flow: Body = (shown, read) => {
  const { view, option } = shown;
  const weighted = `weighted=${view.weight === 'norm' ? 'True' : 'False'}`;
  const layers = option('flow.as', '') === '' ? null : `for layer in range(${read.layers})]`;
  const rows = `LayerRows(view.cache, ${layers ? 'layer' : view.layer})`;
  const of = 'of the keys in keys_HNk, by head and query, largest first';
  const every = (one: string) => (layers ? `[${one} ${layers}` : one);
  const edges = edgesOf(shown, read);
  if (edges === 'all') {
    const without = `without_N=${view.special === 'hide' ? SPECIAL : 'None'}`;
    return [
      ...EDGE_IMPORTS,
      `edges = ${every(`layer_edges(${rows}, 8, ${weighted}, ${without})`)}`,
      `result = ${layers ? '[one.shares_HNk for one in edges]' : 'edges.shares_HNk'}  # ${of}`,
    ];
  }
  const [from, to] = sidesOf(edges);
  const divided = view.special === 'hide' && !renormalizes(shown);
  const part = renormalizes(shown) ? '' : divided ? ' * (one.kept_HN / whole.kept_HN.clip(1e-30))[..., None]' : ' * one.kept_HN[..., None]';
  const result = divided ? '[one.shares_HNk * (one.kept_HN / all_.kept_HN.clip(1e-30))[..., None] for one, all_ in zip(edges, whole)]' : `[one.shares_HNk${part} for one in edges]`;
  return [
    ...EDGE_IMPORTS,
    'texts = view.encoding.sequence_ids  # 0: text A, 1: text B',
    `queries, keys = ~${SPECIAL} & (texts == ${from}), ~${SPECIAL} & (texts == ${to})  # ${EDGE_NAMES[edges]} only`,
    `edges = ${every(`layer_edges(${rows}, 8, ${weighted}, without_N=~keys, queries_N=queries)`)}`,
    ...(divided ? [`whole = ${every(`layer_edges(${rows}, 8, ${weighted}, without_N=${SPECIAL}, queries_N=queries)`)}`] : []),
    `result = ${layers ? result : `edges.shares_HNk${part.replaceAll('one.', 'edges.')}`}  # ${of}`,
  ];
};

const sinks: Body = ({ option }) => [
  'from unmask.interpret.attention.sinks import sinks',
  `result = sinks(view.statistics(), epsilon=${Number(option('sinks.epsilon', '30')) / 100})`,
];

const paths: Body = (shown) => {
  const { option, token } = shown;
  const whole = option('paths.of', '') === 'text';
  if (option('paths.method', 'rollout') !== 'relevance') {
    const start = whole ? 'None' : token;
    return [
      'from unmask.interpret.effects.attribution import rollout',
      `result = rollout(view.cache, ${start}, fusion=${written(option('paths.fusion', 'mean'))}).values  # (levels, tokens)`,
    ];
  }
  const target = option('paths.target', shown.canFill ? 'word' : 'embedding');
  if (target === 'word') return attributionOfWord(token, chosenIn(shown));
  const asked = targetOf(option('paths.class', ''));
  const what = target !== 'class' ? 'Embedding' : asked.classes === null ? 'Class' : 'TokenClasses';
  const made = target === 'class' ? classOf(asked) : whole ? ['target = Embedding(model.embedding_head().pooling)'] : [`target = Embedding(token=${token})`];
  return [
    'from unmask.interpret.effects.attribution import attribution',
    `from unmask.interpret.effects.target import ${what}`,
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

function attributionOfWord(token: number, chosen: string): string[] {
  return [
    'from unmask.interpret.activation_cache import ActivationCache',
    'from unmask.interpret.effects.attribution import attribution',
    'from unmask.interpret.effects.target import Word',
    'from unmask.text.tokenizer import masked',
    `token = ${token}`,
    'word = int(view.encoding.ids[token])  # the actual word, predicted at a mask',
    'hidden = masked(view.encoding, [token], model.tokenizer)',
    `cache = ActivationCache.of(model.encoder, hidden${chosen})`,
    'result = attribution(cache, Word(token, word), encoder=model.trainable_encoder(replace=False)).by_layer  # (layers, tokens)',
  ];
}

const words: Body = (shown, read) => {
  const { token, canFill, option } = shown;
  const whole = read.pair === null && !shown.view.cut;
  return canFill
    ? [
        'from unmask.interpret.activation_cache import ActivationCache',
        'from unmask.interpret.effects.logit_lens import logit_lens',
        'from unmask.text.tokenizer import masked',
        `hidden = masked(view.encoding, [${token}], model.tokenizer)`,
        `found = logit_lens(ActivationCache.of(model.encoder, hidden${chosenIn(shown)}), [${token}], top_k=8)`,
        'result = found.probabilities[0, -1]  # of the words found.ids[0, -1]; the other levels are the logit lens',
        ...(whole ? [`step = model.masked_view(${written(read.text)}, epoch=${Math.max(1, Number.parseInt(option('words.epoch', '1')) || 1)})  # the step of pretraining`] : []),
      ]
    : [
        'from unmask.interpret.effects.ablation import importance',
        'from unmask.interpret.effects.target import Embedding',
        `result = importance(view.cache, Embedding(token=${token}), encoder=model.trainable_encoder(replace=False)).slopes  # (layers, heads)`,
      ];
};

const compare: Body = (shown) => {
  const { view, reads, stamps } = shown;
  const other = reads[1];
  if (!other && chosenIn(shown)) {
    return ['from unmask.interpret.attention.comparison import global_effect', 'result = global_effect(model.encoder, view.encoding, chosen)'];
  }
  if (!other) return map(shown, reads[0] as TextRead);
  return [
    'from unmask.interpret.attention.head_distances import compare_heads',
    `other = ${stamps[1]?.load ?? `unmask.load(${written(other.model)})`}`,
    `compared = ${attention('other', view, other)}`,
    'result = compare_heads(view.cache, compared.cache).divergence  # (heads, heads), nats',
  ];
};

const geometry: Body = ({ option }, read) => {
  const special = read.heads[0] ? 'special_N=view.encoding.special' : 'special_N=None';
  return [
    `from unmask.interpret.geometry import geometry, project${read.heads[0] ? '' : ', read_texts'}`,
    `levels = ${read.heads[0] ? '[*view.cache.states[:-1], view.cache.final_ND]' : `read_texts(model.encoder, model.tokenize([${written(read.text)}])).states`}`,
    `cloud = project(levels, ${special}, ${projected(option('cloud.axes', 'own'))})`,
    `result = geometry(levels, ${special})  # one entry per level`,
  ];
};

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

