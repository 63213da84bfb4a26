/** The GETs of the API, each a function that spells its path. Written by scripts/page_schema.py from Python: change it there. */

import { arrays, json } from './request';
import type {
  Ablation,
  AttentionChange,
  CompareMeta,
  CorpusHead,
  CorpusHeadsMeta,
  CorpusState,
  FeatureList,
  FeaturesOfText,
  Fill,
  FoundExamples,
  Geometry,
  GlobalChangeMeta,
  Guesses,
  HeadsMeta,
  ImportanceMeta,
  LabelSpans,
  Lens,
  LiveMeta,
  Overview,
  PatchingMeta,
  Patterns,
  PredictionChange,
  Projection,
  RelevanceMeta,
  Rollout,
  Roofline,
  SearchIndex,
  SearchResults,
  SenseCloudMeta,
  Senses,
  Session,
  Sinks,
  SpanCauses,
  Stamp,
  State,
  TaskPrediction,
  TextChangeMeta,
  TextRead,
  TileMeta,
  TopicCloud,
  TrainingStep,
  UnderwayList,
  ValuesMeta,
  VocabularyFit,
  Words,
  WordsMeta,
} from './types';

/** The versions, the models and the limits. */
export const session = () =>
  json<Session>({ path: 'session' });

/** One text as its model reads it. */
export const text = (given: { text: string }) =>
  json<TextRead>({ path: 'texts/{text}' }, given);

/** How far the background work on a text is. */
export const state = (given: { text: string }) =>
  json<State>({ path: 'texts/{text}/state' }, given);

/** What the numbers of a text are made with. */
export const stamp = (given: { text: string }) =>
  json<Stamp>({ path: 'texts/{text}/stamp' }, given);

/** The analyses of a text that are in progress. */
export const textAnalyses = (given: { text: string }) =>
  json<UnderwayList>({ path: 'texts/{text}/analyses' }, given);

/** The analyses in progress that belong to no single text. */
export const analyses = () =>
  json<UnderwayList>({ path: 'analyses' });

/**
 * What the model did with the text, from the layers that are measured: one sentence and figures each.
 *
 * They are ranked by the texts of the corpus that are read; `compared` of a finding says how many. The
 * page gives in `texts` how many it knows to be read, or nothing: a path has one answer.
 */
export const findings = (given: { text: string; texts?: number | null }) =>
  json<Overview>({ path: 'texts/{text}/findings', query: ['texts'], grows: true }, given);

/**
 * Findings that need the model to run again: ablated heads, a masked word, the similarity of layers.
 *
 * `token` is the word that is masked; None chooses the longest word of a single token.
 */
export const measuredFindings = (given: { text: string; token?: number | null }) =>
  json<Overview>({ path: 'texts/{text}/findings/measured', query: ['token'] }, given);

/**
 * (L, H) of each statistic; 0 where it is not measured, or where there is no head.
 *
 * `label` names a head by what it does beyond special tokens, `special_mass` is what these get of the
 * other tokens' attention.
 */
export const heads = (given: { text: string }) =>
  arrays<HeadsMeta>({ path: 'texts/{text}/heads', grows: true }, given);

/** (N,) of each statistic of one head, and its profile of distances. */
export const head = (given: { text: string; layer: number; head: number }) =>
  arrays<HeadsMeta>({ path: 'texts/{text}/head/{layer}/{head}' }, given);

/** How much of a vertical line, of diagonals, blocks and distant links each map of a layer has. */
export const patterns = (given: { text: string; layer: number }) =>
  json<Patterns>({ path: 'texts/{text}/patterns/{layer}' }, given);

/** Attention sinks of the layers that are measured so far. */
export const sinks = (given: { text: string; epsilon?: number }) =>
  json<Sinks>({ path: 'texts/{text}/sinks', query: ['epsilon'], defaults: { epsilon: 0.3 }, grows: true }, given);

/**
 * Codes of one tile of a head's map, at most 256 x 256 cells of 2^level x 2^level tokens.
 *
 * `over` asks for the heads of the layer, or for all heads, as one map, whatever the head; cells are
 * then pooled as heads are.
 */
export const tile = (given: { text: string; layer: number; head: number; level: number; y: number; x: number; pool?: 'max' | 'mean'; weight?: 'raw' | 'norm'; special?: 'show' | 'hide'; over?: 'layer_mean' | 'layer_max' | 'all_mean' | 'all_max' | null }) =>
  arrays<TileMeta>({ path: 'texts/{text}/tiles/{layer}/{head}/{level}/{y}/{x}', query: ['pool', 'weight', 'special', 'over'], defaults: { pool: 'max', weight: 'raw', special: 'show' } }, given);

/** Codes of small maps of all heads, of the layers that are measured. */
export const overview = (given: { text: string; weight?: 'raw' | 'norm'; pool?: 'max' | 'mean'; special?: 'show' | 'hide' }) =>
  arrays<TileMeta>({ path: 'texts/{text}/overview', query: ['weight', 'pool', 'special'], defaults: { weight: 'raw', pool: 'max', special: 'show' }, grows: true }, given);

/** Exact probabilities of a rectangle of a head's map, or one part of its scores; `over` as in tiles. */
export const values = (given: { text: string; layer: number; head: number; rows: [number, number]; columns: [number, number]; weight?: 'raw' | 'norm'; part?: string | null; special?: 'show' | 'hide'; over?: 'layer_mean' | 'layer_max' | 'all_mean' | 'all_max' | null }) =>
  arrays<ValuesMeta>({ path: 'texts/{text}/values/{layer}/{head}', query: ['rows', 'columns', 'weight', 'part', 'special', 'over'], defaults: { weight: 'raw', special: 'show' } }, given);

/**
 * The top-k keys of every query of all heads of a layer, (H, N, k), -1 where there are fewer; the share
 * of each query's attention that is left out, (H, N), and what keys receive on average, (H, N).
 *
 * `special="hide"` leaves out special tokens as queries and as keys, and divides the rest of each row by
 * its sum. `most` is k, so that all layers of a long text stay within `Limits.edges`.
 */
export const edges = (given: { text: string; layer: number; weight?: 'raw' | 'norm'; special?: 'show' | 'hide'; most?: number }) =>
  arrays<null>({ path: 'texts/{text}/edges/{layer}', query: ['weight', 'special', 'most'], defaults: { weight: 'raw', special: 'show', most: 8 } }, given);

/**
 * The top-k keys of every query in each text of a pair, (2, H, N, k), with shares that sum to 1 over that
 * text, and the part of the query's attention that goes there, (2, H, N).
 *
 * A share times that part is the attention. Special tokens belong to neither text, and have no edges.
 */
export const pairEdges = (given: { text: string; layer: number; weight?: 'raw' | 'norm'; most?: number }) =>
  arrays<null>({ path: 'texts/{text}/edges/{layer}/pair', query: ['weight', 'most'], defaults: { weight: 'raw', most: 8 } }, given);

/** Norms of the residual stream, (L + 1, N), and of each layer's attention output, (L, N). */
export const residual = (given: { text: string }) =>
  arrays<null>({ path: 'texts/{text}/residual' }, given);

/**
 * A text of at most `MAX_LIVE_TOKENS` tokens, read at once and not held; `model` is its number.
 *
 * The answer is a `LiveReading`: `states`, `attention`, `norms` and `words`. With
 * `future="hidden"` every token attends to itself and to earlier ones alone, see `causal_twin`.
 */
export const live = (given: { model: number; text: string; pair?: string | null; future?: 'shown' | 'hidden' }) =>
  arrays<LiveMeta>({ path: 'live', query: ['model', 'text', 'pair', 'future'], defaults: { future: 'shown' } }, given);

/** All features of a layer of a model, page by page; `model` is its number. */
export const featureList = (given: { model: number; layer: number; order?: 'density' | 'rare' | 'match' | 'activation'; first?: number; count?: number }) =>
  json<FeatureList>({ path: 'features', query: ['model', 'layer', 'order', 'first', 'count'], defaults: { order: 'density', first: 0, count: 24 } }, given);

/**
 * The features of a layer that are active in the text, and what the target loses without each.
 *
 * They are those that `unmask features train` has kept for the model and the layer.
 */
export const features = (given: { text: string; layer: number; target: 'word' | 'class' | 'embedding'; token?: number | null; id?: number | null; classes?: string | null; top?: number }) =>
  json<FeaturesOfText>({ path: 'texts/{text}/features', query: ['layer', 'target', 'token', 'id', 'classes', 'top'], defaults: { top: 20 } }, given);

/** Attention rollout; without a token, of all tokens weighted equally. */
export const rollout = (given: { text: string; token: number | null; fusion: 'mean' | 'max' | 'min' | 'norm' }) =>
  arrays<Rollout>({ path: 'texts/{text}/rollout', query: ['token', 'fusion'] }, given);

/**
 * Gradient attribution for a target; without `id`, for the word in the text or the predicted class.
 *
 * `classes`: pairs `token:class` with commas between them, of a head for tokens, whose logits are added.
 * Without `method`, it is chefer; `baseline` (zero, mask or pad) and `steps` are those of integrated
 * gradients.
 */
export const attribution = (given: { text: string; token: number | null; target: 'word' | 'class' | 'embedding'; id?: number | null; classes?: string | null; method?: 'chefer' | 'attention_x_gradient' | 'input_x_gradient' | 'integrated_gradients' | null; baseline?: string | null; steps?: number | null }) =>
  arrays<RelevanceMeta>({ path: 'texts/{text}/relevance', query: ['token', 'target', 'id', 'classes', 'method', 'baseline', 'steps'] }, given);

/** The words of a text. */
export const words = (given: { text: string }) =>
  json<Words>({ path: 'texts/{text}/words' }, given);

/**
 * The map of a head between words.
 *
 * `special="hide"` leaves out special tokens, and divides the rest of each row of tokens by its sum.
 * `over` asks for the heads of the layer, or for all heads, as one map of tokens first.
 */
export const wordMap = (given: { text: string; layer: number; head: number; weight?: 'raw' | 'norm'; special?: 'show' | 'hide'; over?: 'layer_mean' | 'layer_max' | 'all_mean' | 'all_max' | null }) =>
  arrays<WordsMeta>({ path: 'texts/{text}/words/{layer}/{head}', query: ['weight', 'special', 'over'], defaults: { weight: 'raw', special: 'show' } }, given);

/** How well a model's vocabulary fits a text. */
export const vocabulary = (given: { text: string }) =>
  json<VocabularyFit>({ path: 'texts/{text}/vocabulary' }, given);

/** What the model would predict at a token, were it masked. */
export const fill = (given: { text: string; token: number; top?: number }) =>
  json<Fill>({ path: 'texts/{text}/fill', query: ['token', 'top'], defaults: { top: 8 } }, given);

/** What the model would predict at a token after every level, were it masked. */
export const lens = (given: { text: string; token: number; top?: number }) =>
  json<Lens>({ path: 'texts/{text}/lens', query: ['token', 'top'], defaults: { top: 5 } }, given);

/**
 * One head ablated; the first target that the model has, where none is given.
 *
 * Without a token, the effect on the embedding of the text.
 */
export const ablation = (given: { text: string; layer: number; head: number; token: number | null; how: 'zero' | 'mean'; target?: 'word' | 'class' | 'embedding' | null }) =>
  json<Ablation>({ path: 'texts/{text}/ablate/{layer}/{head}', query: ['token', 'how', 'target'] }, given);

/** First-order estimates of what each head contributes, for the same targets as an ablation. */
export const importance = (given: { text: string; token: number; target?: 'word' | 'class' | 'embedding' | null }) =>
  arrays<ImportanceMeta>({ path: 'texts/{text}/importance', query: ['token', 'target'] }, given);

/** What the model's first head that is not for masked words predicts for a text. */
export const taskPrediction = (given: { text: string }) =>
  json<TaskPrediction>({ path: 'texts/{text}/prediction' }, given);

/** A step of pretraining on a text. `before`: the text in which the reader replaced words. */
export const trainingStep = (given: { text: string; epoch?: number; before?: string | null }) =>
  json<TrainingStep>({ path: 'texts/{text}/training', query: ['epoch', 'before'], defaults: { epoch: 1 } }, given);

/** Spans of a text for labels, with commas between them. `nested`: spans may lie inside others. */
export const labelSpans = (given: { text: string; labels: string; nested?: 'no' | 'yes' }) =>
  json<LabelSpans>({ path: 'texts/{text}/labels', query: ['labels', 'nested'], defaults: { nested: 'no' } }, given);

/** What the score of a span comes from: the words `first` to `last` and the label by its number. */
export const spanCauses = (given: { text: string; labels: string; label: number; first: number; last: number }) =>
  arrays<SpanCauses>({ path: 'texts/{text}/labels/causes', query: ['labels', 'label', 'first', 'last'] }, given);

/** One text in two models. */
export const compare = (given: { a: string; b: string }) =>
  arrays<CompareMeta>({ path: 'compare/{a}/{b}' }, given);

/** One model on two texts, aligned by their words. */
export const textChange = (given: { before: string; after: string }) =>
  arrays<TextChangeMeta>({ path: 'change/{before}/{after}' }, given);

/** How much the attention of every head changed between two texts. */
export const headChange = (given: { before: string; after: string }) =>
  arrays<AttentionChange>({ path: 'change/{before}/{after}/heads' }, given);

/** One text with two choices of global tokens: what the new ones receive. */
export const globalChange = (given: { before: string; after: string }) =>
  arrays<GlobalChangeMeta>({ path: 'change/{before}/{after}/global' }, given);

/**
 * What the model would predict at a token of the second text, and in the first at the token that stands
 * for it, were they masked.
 */
export const predictionChange = (given: { before: string; after: string; token: number; top?: number }) =>
  json<PredictionChange>({ path: 'change/{before}/{after}/fill', query: ['token', 'top'], defaults: { top: 8 } }, given);

/**
 * The second text with one state of the first at a time: which brings the first one's prediction back.
 *
 * Without `id`, of the word in the first text or the class predicted for it. `part` is residual (levels
 * by tokens), attention_output or feedforward_output (layers by tokens), or head_output (layers by heads).
 */
export const patching = (given: { before: string; after: string; part: 'residual' | 'attention_output' | 'feedforward_output' | 'head_output'; target: 'word' | 'class' | 'embedding'; token?: number | null; id?: number | null; classes?: string | null }) =>
  arrays<PatchingMeta>({ path: 'change/{before}/{after}/patching', query: ['part', 'target', 'token', 'id', 'classes'] }, given);

/** What the model would write in place of the word of a token, however many tokens it has. */
export const guesses = (given: { text: string; token: number; top?: number }) =>
  json<Guesses>({ path: 'texts/{text}/guesses', query: ['token', 'top'], defaults: { top: 8 } }, given);

/** `shares` (L, H, 2, 3): what each text of a pair attends to: the first, the second, special tokens. */
export const segments = (given: { text: string }) =>
  arrays<null>({ path: 'texts/{text}/segments' }, given);

/**
 * Clusters of the texts of the corpus by their vectors; `topics` is the number that k-means makes, or
 * half as many as there are texts if that is less.
 */
export const corpusTopics = (given: { model: number; topics?: number }) =>
  arrays<TopicCloud>({ path: 'corpus/{model}/topics', query: ['topics'], defaults: { topics: 12 } }, given);

/** How far the corpus is read. */
export const corpus = (given: { model: number }) =>
  json<CorpusState>({ path: 'corpus/{model}' }, given);

/**
 * Means over the queries of all texts, (L, H), the share of texts with each label, (L, H, B), and
 * `label`: what each head is called, see `CorpusStatistics.label`.
 */
export const corpusHeads = (given: { model: number; texts: number }) =>
  arrays<CorpusHeadsMeta>({ path: 'corpus/{model}/heads', query: ['texts'] }, given);

/** The examples of one head. */
export const corpusHead = (given: { model: number; layer: number; head: number; texts: number }) =>
  json<CorpusHead>({ path: 'corpus/{model}/head/{layer}/{head}', query: ['texts'] }, given);

/** The examples of one head whose query, or key, is of a word. */
export const corpusFind = (given: { model: number; layer: number; head: number; pattern?: string; query_word?: string | null; key_word?: string | null }) =>
  json<FoundExamples>({ path: 'corpus/{model}/find/{layer}/{head}', query: ['pattern', 'query_word', 'key_word'], defaults: { pattern: 'edge' } }, given);

/** `distance` (A, A): Jensen-Shannon divergence of all heads of a model on a text, layer by layer. */
export const alike = (given: { text: string }) =>
  arrays<null>({ path: 'texts/{text}/alike' }, given);

/** What the index holds; asked again, it shows what was added since. */
export const searchIndex = () =>
  json<SearchIndex>({ path: 'index' });

/** The best passages or documents for a query. */
export const search = (given: { text: string; k?: number; mode?: 'hybrid' | 'bm25' | 'dense' | 'sparse' | 'multi_vector' | null; unit?: 'passage' | 'document'; why?: 'no' | 'shares' | 'yes' }) =>
  json<SearchResults>({ path: 'search', query: ['text', 'k', 'mode', 'unit', 'why'], defaults: { k: 10, unit: 'passage', why: 'no' } }, given);

/** The geometry of every level, with that of a random baseline where it is asked for. */
export const geometry = (given: { text: string; random?: 'no' | 'yes' }) =>
  json<Geometry>({ path: 'texts/{text}/geometry', query: ['random'], defaults: { random: 'no' } }, given);

/** The senses of a word in one model; `model` is its number. */
export const senses = (given: { model: number; word?: string }) =>
  json<Senses>({ path: 'bank', query: ['model', 'word'], defaults: { word: 'bank' } }, given);

/** All tokens in three dimensions at every level; special ones do not determine the directions. */
export const cloud = (given: { text: string; method?: 'pca' | 'umap'; basis?: 'own' | 'shared' }) =>
  arrays<Projection>({ path: 'texts/{text}/cloud', query: ['method', 'basis'], defaults: { method: 'pca', basis: 'own' } }, given);

/** Mean attention (L, N) that each token receives, over the heads of a layer; 0 where not measured. */
export const received = (given: { text: string }) =>
  arrays<null>({ path: 'texts/{text}/received', grows: true }, given);

/** The occurrences of a word in three dimensions at every level; `model` is its number. */
export const senseCloud = (given: { model: number; word?: string; method?: 'pca' | 'umap'; basis?: 'own' | 'shared' }) =>
  arrays<SenseCloudMeta>({ path: 'bank/cloud', query: ['model', 'word', 'method', 'basis'], defaults: { word: 'bank', method: 'pca', basis: 'shared' } }, given);

/** The roofline of the attention of a model, measured once; `model` is its number. */
export const roofline = (given: { model?: number }) =>
  json<Roofline>({ path: 'roofline', query: ['model'], defaults: { model: 0 } }, given);

/** The chapters of the tour. */
export const tour = () =>
  json<unknown>({ path: 'tour' });

/** The experiments of a chapter on a text; `model` is the number of the preferred one. */
export const chapter = (given: { chapter: string; model: number; text: string; layer?: number | null; head?: number | null; token?: number | null }) =>
  json<unknown>({ path: 'tour/{chapter}', query: ['model', 'text', 'layer', 'head', 'token'] }, given);
