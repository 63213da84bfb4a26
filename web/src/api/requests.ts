/** The GETs of the API, each a function that spells its path. Written by scripts/page_schema.py from Python: change it there. */

import { arrays, json } from './request';
import type {
  Ablation,
  CompareMeta,
  Fill,
  Geometry,
  HeadsMeta,
  ImportanceMeta,
  Lens,
  RelevanceMeta,
  RolloutMeta,
  SearchIndex,
  SearchResults,
  Senses,
  Session,
  Sinks,
  Stamp,
  State,
  TextRead,
  TileMeta,
  ValuesMeta,
  VocabularyFit,
  WallState,
  Words,
  WordsMeta,
} from './types';

/** The versions, the models and the limits. */
export const session = () =>
  json<Session>({ path: 'session' });

/** One text as its model reads it. */
export const text = (given: { text: string }) =>
  json<TextRead>({ path: 'texts/{text}' }, given);

/** What the numbers of a text are made with. */
export const stamp = (given: { text: string }) =>
  json<Stamp>({ path: 'texts/{text}/stamp' }, given);

/** How far the background work on a text is. */
export const state = (given: { text: string }) =>
  json<State>({ path: 'texts/{text}/state' }, given);

/** (L, H) of each statistic; 0 where it is not measured, or where there is no head. */
export const heads = (given: { text: string }) =>
  arrays<HeadsMeta>({ path: 'texts/{text}/heads', grows: true }, given);

/** (N,) of each statistic of one head, and its profile of distances. */
export const head = (given: { text: string; layer: number; head: number }) =>
  arrays<HeadsMeta>({ path: 'texts/{text}/head/{layer}/{head}' }, given);

/** The top-k keys of every query of a head. */
export const edges = (given: { text: string; layer: number; head: number }) =>
  arrays<null>({ path: 'texts/{text}/edges/{layer}/{head}' }, given);

/** Codes of one tile of a head's map, at most 256 x 256 cells of 2^level x 2^level tokens. */
export const tile = (given: { text: string; layer: number; head: number; level: number; y: number; x: number; pool?: 'max' | 'mean'; weight?: 'raw' | 'norm' }) =>
  arrays<TileMeta>({ path: 'texts/{text}/tiles/{layer}/{head}/{level}/{y}/{x}', query: ['pool', 'weight'], defaults: { pool: 'max', weight: 'raw' } }, given);

/** Codes of small maps of all heads, of the layers that are measured. */
export const overview = (given: { text: string; weight?: 'raw' | 'norm'; pool?: 'max' | 'mean' }) =>
  arrays<TileMeta>({ path: 'texts/{text}/overview', query: ['weight', 'pool'], defaults: { weight: 'raw', pool: 'max' }, grows: true }, given);

/** Exact probabilities of a rectangle of a head's map, or one part of its scores. */
export const values = (given: { text: string; layer: number; head: number; rows: [number, number]; columns: [number, number]; weight?: 'raw' | 'norm'; part?: string | null }) =>
  arrays<ValuesMeta>({ path: 'texts/{text}/values/{layer}/{head}', query: ['rows', 'columns', 'weight', 'part'], defaults: { weight: 'raw' } }, given);

/** Attention sinks of the layers that are measured so far. */
export const sinks = (given: { text: string; epsilon?: number }) =>
  json<Sinks>({ path: 'texts/{text}/sinks', query: ['epsilon'], defaults: { epsilon: 0.3 }, grows: true }, given);

/** Attention rollout; without a token, of all tokens weighted equally. */
export const rollout = (given: { text: string; token: number | null; fusion: 'mean' | 'max' | 'min' | 'norm' }) =>
  arrays<RolloutMeta>({ path: 'texts/{text}/rollout', query: ['token', 'fusion'] }, given);

/** Gradient attribution for a target; without `id`, for the word in the text or the predicted class. */
export const attribution = (given: { text: string; token: number | null; target: 'word' | 'class' | 'embedding'; id?: number | null }) =>
  arrays<RelevanceMeta>({ path: 'texts/{text}/relevance', query: ['token', 'target', 'id'] }, given);

/** What the model would predict at a token, were it masked. */
export const fill = (given: { text: string; token: number; top?: number }) =>
  json<Fill>({ path: 'texts/{text}/fill', query: ['token', 'top'], defaults: { top: 8 } }, given);

/** What the model would predict at a token after every level, were it masked. */
export const lens = (given: { text: string; token: number; top?: number }) =>
  json<Lens>({ path: 'texts/{text}/lens', query: ['token', 'top'], defaults: { top: 5 } }, given);

/** One head ablated; the first target that the model has, where none is given. */
export const ablation = (given: { text: string; layer: number; head: number; token: number; how: 'zero' | 'mean'; target?: 'word' | 'class' | 'embedding' | null }) =>
  json<Ablation>({ path: 'texts/{text}/ablate/{layer}/{head}', query: ['token', 'how', 'target'] }, given);

/** First-order estimates of what each head contributes, for the same targets as an ablation. */
export const importance = (given: { text: string; token: number; target?: 'word' | 'class' | 'embedding' | null }) =>
  arrays<ImportanceMeta>({ path: 'texts/{text}/importance', query: ['token', 'target'] }, given);

/** The map of a head between words. */
export const wordMap = (given: { text: string; layer: number; head: number; weight?: 'raw' | 'norm' }) =>
  arrays<WordsMeta>({ path: 'texts/{text}/words/{layer}/{head}', query: ['weight'], defaults: { weight: 'raw' } }, given);

/** The words of a text. */
export const words = (given: { text: string }) =>
  json<Words>({ path: 'texts/{text}/words' }, given);

/** How well a model's vocabulary fits a text. */
export const vocabulary = (given: { text: string }) =>
  json<VocabularyFit>({ path: 'texts/{text}/vocabulary' }, given);

/** One text in two models. */
export const compare = (given: { a: string; b: string }) =>
  arrays<CompareMeta>({ path: 'compare/{a}/{b}' }, given);

/** The geometry of every level, with that of a random baseline where it is asked for. */
export const geometry = (given: { text: string; random?: 'no' | 'yes' }) =>
  json<Geometry>({ path: 'texts/{text}/geometry', query: ['random'], defaults: { random: 'no' } }, given);

/** The senses of a word in one model; `model` is its number. */
export const senses = (given: { model: number; word?: string }) =>
  json<Senses>({ path: 'bank', query: ['model', 'word'], defaults: { word: 'bank' } }, given);

/** How far the length-scaling measurement is. */
export const wall = () =>
  json<WallState>({ path: 'wall' });

/** The chapters of the tour. */
export const tour = () =>
  json<unknown>({ path: 'tour' });

/** The experiments of a chapter on a text; `model` is the number of the preferred one. */
export const chapter = (given: { chapter: string; model: number; text: string; layer?: number | null; head?: number | null; token?: number | null }) =>
  json<unknown>({ path: 'tour/{chapter}', query: ['model', 'text', 'layer', 'head', 'token'] }, given);

/** What the index holds; asked again, it shows what was added since. */
export const searchIndex = () =>
  json<SearchIndex>({ path: 'index' });

/** The best passages or documents for a query. */
export const search = (given: { text: string; k?: number; mode?: 'hybrid' | 'bm25' | 'dense' | 'sparse' | 'multi_vector' | null; unit?: 'passage' | 'document'; why?: 'no' | 'shares' | 'yes' }) =>
  json<SearchResults>({ path: 'search', query: ['text', 'k', 'mode', 'unit', 'why'], defaults: { k: 10, unit: 'passage', why: 'no' } }, given);
