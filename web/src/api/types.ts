/** The typed results of the API. Written by scripts/page_schema.py from Python: change it there. */

/** Version of the page's state in its address. */
export const ADDRESS_VERSION = '3';

/**
 * Why a request was refused: a kind for programs, a message for people.
 *
 * `total_tokens` and `max_tokens` are set when a text is too long.
 */
export interface Problem {
  kind: string;
  sentence: string;
  total_tokens: number | null;
  max_tokens: number | null;
}

/** The body of every unsuccessful response. */
export interface Failure {
  error: Problem;
}

/** The text of a PDF file, page after page. `without_text`: pages that hold a picture and no text. */
export interface PdfText {
  text: string;
  pages: number;
  without_text: number;
}

/**
 * A model before it is loaded. `where`: folder, cache or hub.
 *
 * `memory_bytes`: of its weights, in the number format that it will be loaded in. `free_bytes`: of this
 * machine, None where the system does not tell. `download_bytes`: 0 for what is on this machine.
 * `sentence` says all this; `svg` is its architecture.
 */
export interface ModelPreview {
  name: string;
  where: string;
  family: string;
  layers: number;
  width: number;
  parameter_count: number;
  dtype: string;
  memory_bytes: number;
  free_bytes: number | null;
  download_bytes: number;
  sentence: string;
  svg: string;
}

/**
 * One model of this explorer; sizes are 0 and lists empty until `phase` is `ready`.
 *
 * `phase`: waiting, loading, ready or failed (then `problem` says why). `progress`: the share of a
 * download that is there, 0 to 1, if there is one. `heads` and `layer_kinds`
 * have one entry a layer. `maps`: whether there is any attention to draw; `no_maps` says why not.
 * `takes_labels`: whether it finds entities of labels that a reader names. `has_global_tokens`: whether
 * a reader can choose words whose tokens become global.
 */
export interface ModelInfo {
  index: number;
  name: string;
  phase: string;
  problem: Problem | null;
  progress: number | null;
  revision: string | null;
  family: string;
  dtype: string;
  parameter_count: number;
  layers: number;
  heads: number[];
  width: number;
  max_tokens: number | null;
  layer_kinds: string[];
  can_fill: boolean;
  can_classify: boolean;
  takes_labels: boolean;
  maps: boolean;
  no_maps: string | null;
  has_global_tokens: boolean;
}

/** What one answer, and the explorer as a whole, will hold. */
export interface Limits {
  body_bytes: number;
  pdf_bytes: number;
  values_cells: number;
  tile_cells: number;
  overview_cells: number;
  words: number;
  edges: number;
  held_texts: number;
  held_bytes: number;
}

/**
 * What the page requests first. `versions` names the packages that computed what is shown.
 *
 * `index` is the name of the folder that can be searched, if there is one. The page reads the first of
 * `examples` if its address names no text. `loads`: whether it can load other models.
 */
export interface Session {
  version: string;
  versions: Record<string, string>;
  models: ModelInfo[];
  limits: Limits;
  index: string | null;
  examples: string[];
  loads: boolean;
}

/**
 * One token; `start` and `end` count code points of its text, both 0 if `special`.
 *
 * `word` is its place in `TextRead.words`, if it is of one. `category`: special, punctuation, word (the
 * first token of one) or piece (a later one).
 */
export interface Token {
  id: number;
  piece: string;
  surface: string;
  start: number;
  end: number;
  special: boolean;
  in_pair: boolean;
  word: number | null;
  category: string;
}

/** One word of the text: its characters, and its tokens `first` to `stop`. */
export interface Word {
  surface: string;
  start: number;
  end: number;
  in_pair: boolean;
  first: number;
  stop: number;
}

/**
 * One text as a model reads it. `id` names it in later requests; `heads` has one entry a layer.
 *
 * `note` says what a reader must know of it, such as that it is longer than any the model was trained on.
 * `global_spans`: ranges of characters whose tokens were chosen to be global; `global_tokens`: all that
 * are global.
 */
export interface TextRead {
  id: string;
  model: string;
  model_index: number;
  revision: string | null;
  dtype: string;
  text: string;
  pair: string | null;
  text_sha256: string;
  layers: number;
  heads: number[];
  total_tokens: number;
  kept_tokens: number;
  max_tokens: number | null;
  note: string | null;
  tokens: Token[];
  words: Word[];
  global_spans: [number, number][];
  global_tokens: number[];
}

/**
 * How far the background work on a text is.
 *
 * `phase`: waiting, reading, measuring, done, stopped or failed. `readable`: exact values and tiles can
 * be asked for. `ready`: one entry a layer, whether its statistics are there. `eta_s` is None until
 * there is something to go by. `stated_bytes` was computed before the work began; `peak_bytes` is the
 * most this process has grown by since then, where the system tells.
 */
export interface State {
  id: string;
  phase: string;
  what: string;
  done: number;
  total: number;
  ready: boolean[];
  readable: boolean;
  seconds: number;
  eta_s: number | null;
  peak_bytes: number | null;
  stated_bytes: number;
  problem: Problem | null;
}

/** One thing that a number depends on. */
export interface StampLine {
  name: string;
  value: string;
}

/** What results of a text are made with. `load`: Python that loads the model; `date`: in UTC. */
export interface Stamp {
  lines: StampLine[];
  load: string;
  date: string;
}

/**
 * An analysis in progress. `name`: which one, as the server calls it; `what`: its present stage, of
 * which `done` of `total` steps are done; `eta_s`: the seconds left of it, None until known.
 */
export interface Underway {
  name: string;
  phase: string;
  what: string;
  done: number;
  total: number;
  seconds: number;
  eta_s: number | null;
}

/** The analyses in progress of a text, or of no text. */
export interface UnderwayList {
  analyses: Underway[];
}

/** One value of a finding's picture, with its name. */
export interface Bar {
  label: string;
  value: number;
}

/** Attention from one token to another. */
export interface Edge {
  query: number;
  key: number;
  weight: number;
}

/** One thing that a model did with a text, and the numbers that its sentence states. */
export interface Finding {
  kind: string;
  sentence: string;
  value: number;
  baseline: number | null;
  layer: number | null;
  head: number | null;
  query: number | null;
  key: number | null;
  tokens: number[];
  bars: Bar[];
  matrix: number[][];
  edges: Edge[];
  window: [number, number];
  surprise: number | null;
  compared: number;
}

/** What a model did with one text. A finding that does not hold for the text is left out. */
export interface Overview {
  layers: number;
  layers_measured: number;
  findings: Finding[];
}

/**
 * Of `heads`: what the classes of keys are called, and the labels that `label` counts in.
 *
 * `kinds` has one entry a layer: softmax, or kernel for the implied weights of linear attention.
 */
export interface HeadsMeta {
  classes: string[];
  labels: string[];
  kinds: string[];
}

/**
 * `scores` of each head of a layer, in the order of `shapes`; None where the text has no such keys.
 *
 * A pattern is clear from `clear` on. See `unmask.interpret.attention.patterns`.
 */
export interface Patterns {
  shapes: string[];
  clear: number;
  scores: ((number | null)[])[];
}

/** The token that receives the most attention in one head. */
export interface HeadSink {
  layer: number;
  head: number;
  token: number;
  mass: number;
  causal: number;
  baseline: number;
  value_norm_ratio: number;
  written_share: number;
  type: string;
}

/** The strength of one token as a sink, over all heads measured. */
export interface TokenSink {
  token: number;
  adapted_rate: number;
  causal_rate: number;
  mass: number;
}

/** How one layer divides its attention over classes of keys. */
export interface LayerMass {
  layer: number;
  mass: Record<string, number>;
}

/** Sinks of one text; made by `sinks`. */
export interface Sinks {
  epsilon: number;
  baseline: number;
  heads: HeadSink[];
  tokens: TokenSink[];
  class_mass: Record<string, number>;
  layers: LayerMass[];
}

/**
 * Of tiles and overviews. A cell stands for `cell` x `cell` tokens. What a code stands for is fixed:
 * 0 is below `floor` or not allowed, c of 1..255 is exp(ln floor * (255 - c) / 254).
 */
export interface TileMeta {
  cell: number;
  tokens: number;
  pool: string;
  weight: string;
  kind: string;
  floor: number;
}

/** Of exact values: which ranges, and what is in them. */
export interface ValuesMeta {
  rows: [number, number];
  columns: [number, number];
  weight: string;
  part: string;
  parts: string[];
  kind: string;
}

/** The text as its model reads it. */
export interface LiveMeta {
  read: TextRead;
}

/** A token that activates a feature, in its text. */
export interface FeatureExample {
  text: string;
  source: string;
  span: [number, number];
  activation: number;
}

/** One feature over the corpus. */
export interface Feature {
  number: number;
  density: number;
  mean: number;
  examples: FeatureExample[];
  match: number | null;
}

/**
 * Some of the features of a layer, from the place `first` on in the order that was asked for.
 *
 * Where no features were `learned` for the layer, `verdict` says how, and all else is empty.
 */
export interface FeatureList {
  learned: boolean;
  layer: number;
  corpus: string;
  verdict: string;
  total: number;
  dead: number;
  first: number;
  features: Feature[];
}

/** A feature that is active in the text, with its density and strongest tokens over its corpus. */
export interface FeatureOfText {
  number: number;
  token: number;
  activation: number;
  effect: number;
  tokens: number[];
  density: number;
  examples: FeatureExample[];
}

/**
 * Of `features`: see `unmask.interpret.corpus.features.TextFeatures`. `words` names the target.
 *
 * Where no features were `learned` for the layer, `verdict` says how, and all else is empty.
 */
export interface FeaturesOfText {
  learned: boolean;
  layer: number;
  words: string;
  unit: string;
  value: number;
  explained: number;
  corpus: string;
  verdict: string;
  active: FeatureOfText[];
}

/** The sources of a token's state (or of the mean of all tokens), level by level. */
export interface Rollout {
  fusion: string;
  token: number | null;
}

/** How well integrated gradients add up to what they explain, in the target's units. */
export interface Completeness {
  baseline: string | number;
  steps: number;
  at_text: number;
  at_baseline: number;
  gap: number;
}

/**
 * Of an attribution: values (N,), and of a method about attention by_layer (L, N). `target` names the
 * target. `baseline` and `completeness` are those of integrated gradients.
 */
export interface RelevanceMeta {
  token: number | null;
  target: string;
  words: string;
  method: string;
  unit: string;
  baseline: string | null;
  completeness: Completeness | null;
}

/** The words of a text and the tokens of each. */
export interface Words {
  words: Word[];
}

/**
 * Of `words/{layer}/{head}`: values (W, W), rows and columns as `TextRead.words`. `rule`: how tokens
 * became words.
 */
export interface WordsMeta {
  words: number;
  weight: string;
  rule: string;
}

/** A word of the text and its tokens. */
export interface SplitWord {
  text: string;
  pieces: string[];
  times: number;
}

/**
 * Tokenization statistics of the words of one text.
 *
 * Words are those of `unmask.interpret.words.words.words` that contain a letter or digit. Special tokens are
 * not counted; characters are code points without white space.
 */
export interface VocabularyFit {
  words: number;
  pieces: number;
  pieces_per_word: number;
  continued_share: number;
  characters_per_piece: number;
  unknown_share: number;
  single_share: number;
  partial_share: number;
  most_split: SplitWord[];
}

/** The actual token: its probability and its rank (1: the most likely). */
export interface OwnWord {
  piece: string;
  id: number;
  probability: number;
  rank: number;
}

/** One candidate word for a mask. */
export interface Prediction {
  piece: string;
  text: string;
  id: number;
  probability: number;
}

/** Predictions at one token, which is masked unless it was a mask token already; then `own` is None. */
export interface Fill {
  token: number;
  was_mask: boolean;
  own: OwnWord | null;
  predictions: Prediction[];
}

/** The MLM head's prediction after a layer; 0 is the embeddings. */
export interface LensLayer {
  level: number;
  own: OwnWord | null;
  predictions: Prediction[];
}

/** The logit lens: the MLM head applied to every level's state at one token. */
export interface Lens {
  token: number;
  masked: boolean;
  note: string | null;
  levels: LensLayer[];
}

/**
 * The ablation of one head. `effect` is before minus after, in `unit`: positive if the head helped.
 *
 * `what` says in words what was measured; `estimate` is the first-order estimate, where there is one.
 */
export interface Ablation {
  layer: number;
  head: number;
  token: number | null;
  how: string;
  what: string;
  unit: string;
  before: number;
  after: number;
  effect: number;
  estimate: number | null;
}

/**
 * Of `importance`: `values` (L, H), first-order estimates of what each head contributes, in the sign
 * and unit of `Ablation.effect`; `normalized`, their sizes divided by each layer's length (Michel et al.
 * 2019).
 */
export interface ImportanceMeta {
  token: number;
  what: string;
  unit: string;
}

/**
 * One class of the text. `id` is its number in the head; `score` its probability, or a value.
 *
 * `applies`: whether the model predicts it.
 */
export interface PredictedClass {
  label: string;
  id: number;
  score: number;
  applies: boolean;
}

/**
 * A word, an entity or an answer: its tokens `first` to `stop`, and its probability.
 *
 * `in_pair`: it is in the second text. The prediction rests on the logits of `classes` at `tokens`:
 * the first token of each word, or the first and the last token of an answer.
 */
export interface PredictedSpan {
  label: string;
  text: string;
  first: number;
  stop: number;
  in_pair: boolean;
  score: number;
  tokens: number[];
  classes: number[];
}

/**
 * What a head of the model predicts for a text.
 *
 * `kind`: `classes` of the text, `labels` of its words, or `answers` in the second text to the first
 * one. `value`: the classes are numbers of a regression or a score, not probabilities. `spans` are
 * entities where the labels are of entities, else words. `note` says why there is no prediction, or what a
 * reader must know of it. `role` names the head.
 */
export interface TaskPrediction {
  kind: string;
  role: string;
  value: boolean;
  classes: PredictedClass[];
  spans: PredictedSpan[];
  note: string | null;
}

/**
 * A token that was corrupted or judged. `piece` is what the model reads.
 *
 * `loss`: in nats; of a target of masked language modeling, or of a detector's judgement. `baseline`:
 * the loss by word frequency alone. `probability`: of the original token, or that the token is replaced.
 */
export interface StepToken {
  token: number;
  piece: string;
  corruption: string;
  loss: number;
  probability: number;
  baseline: number | null;
  predictions: Prediction[];
}

/** The probability that one text follows the other: as given, swapped, and for unrelated sentences. */
export interface PairScores {
  task: string;
  given: number;
  swapped: number;
  unrelated: number;
}

/** Which tokens are predicted in epochs 1 to K under one kind of mask. */
export interface EpochTargets {
  kind: string;
  epochs: number[][];
  ever: number[];
  different: number;
}

/**
 * One step of pretraining on a text.
 *
 * `head`: `masked`, `replaced`, or None where the model has neither. `tokens`: the targets, or all
 * tokens that a detector judges. `loss` is their mean, `baseline` that of a model without context (by
 * word frequency; one probability for all tokens), `uniform` that of one that knows nothing. `note`: why
 * there are no `rows`.
 */
export interface TrainingStep {
  epoch: number;
  head: string | null;
  tokens: StepToken[];
  loss: number | null;
  baseline: number | null;
  uniform: number | null;
  pair: PairScores | null;
  rows: EpochTargets[];
  note: string | null;
}

/** A word of the text, and the characters between it and the word before. */
export interface LabelWord {
  before: string;
  text: string;
}

/** The words `first` to `last`, a label by its number, and the probability that it fits. */
export interface FoundSpan {
  first: number;
  last: number;
  label: number;
  score: number;
}

/**
 * The spans of a text that fit labels with a probability above `lowest`, best first.
 *
 * Those above a higher threshold are exactly what `unmask.models.load.Model.tag` finds there: a span is
 * left out only where a better one excludes it. `after`: the characters behind the last word.
 * `most_words`: of a span; None for any number. `note`: what a reader must know.
 */
export interface LabelSpans {
  labels: string[];
  lowest: number;
  words: LabelWord[];
  after: string;
  spans: FoundSpan[];
  most_words: number | null;
  note: string | null;
}

/**
 * A token of the pass, and the `part` that it belongs to: the chosen span or the rest of the text, the
 * chosen label or others. `word` is its word of the text.
 */
export interface SpanToken {
  piece: string;
  part: string;
  word: number | null;
}

/**
 * Of a span and a label: `values` (T,), what each token adds to the logit over the baseline, by
 * integrated gradients. `to_label` (L, H, S, C) and `to_span` (L, H, C, S): exact attention from the
 * span's tokens to the label's and back, where one encoder reads both.
 *
 * `explained` says which logit it is. `label_completeness`: of a label that a second encoder reads,
 * whose tokens come last. `others`: other labels of these words, and these words with one more or less.
 */
export interface SpanCauses {
  tokens: SpanToken[];
  span: FoundSpan;
  explained: string;
  baseline: string;
  completeness: Completeness;
  label_completeness: Completeness | null;
  span_tokens: string[];
  label_tokens: string[];
  others: FoundSpan[];
  note: string | null;
}

/** A stretch of a text and the tokens that two encodings have for it. */
export interface Segment {
  start: number;
  end: number;
  in_pair: boolean;
  a: [number, number];
  b: [number, number];
}

/** A head of one model and its match in another. */
export interface HeadMatch {
  a: [number, number];
  b: [number, number];
  divergence: number;
}

/**
 * Of `compare`. `cka` is (levels of a, levels of b), `distance` (heads of a, heads of b), heads
 * counted layer by layer, or absent where `no_distance` says why.
 */
export interface CompareMeta {
  a: string;
  b: string;
  alignment: Segment[];
  matches: HeadMatch[];
  cka_n: number;
  cka_note: string;
  no_distance: string | null;
}

/** A word of the first text and the word of the second that stands for it; None where there is none. */
export interface WordPair {
  change: string;
  before: number | null;
  after: number | null;
}

/** The probability of a label of the model's classifier of texts, or the value of a regression. */
export interface ClassChange {
  label: string;
  before: number;
  after: number;
}

/**
 * Of `change`: `cosine` (L + 1, P), the states of the P words that both texts have, level by level.
 *
 * `pairs` has every word of both texts in order, numbered as in `TextRead.words`. `pooling`: how the
 * embeddings, whose cosine is `embedding_cosine`, are pooled.
 */
export interface TextChangeMeta {
  before: string;
  after: string;
  pairs: WordPair[];
  embedding_cosine: number;
  pooling: string;
  classes: ClassChange[];
}

/**
 * How much the attention of each head changed, mean over the words that both texts have; 0 where a layer
 * has no such head.
 *
 * Attention is summed over the tokens of the word attended to and averaged over those of the word that
 * attends (Clark et al. 2019). Words of one text alone attend to nothing here; what they receive counts as
 * moved, because the other text gives it elsewhere.
 */
export interface AttentionChange {
  queries: number;
  of: number;
}

/**
 * Of `change/global`: `before` and `after` (L, H), the attention to `tokens`, which became
 * global, added up over them, mean over queries.
 */
export interface GlobalChangeMeta {
  tokens: number[];
}

/** A predicted word and its probability in both texts. */
export interface ChangedPrediction {
  piece: string;
  text: string;
  id: number;
  before: number;
  after: number;
}

/**
 * Predictions at a token of the second text and its counterpart in the first, which are masked.
 *
 * `predictions` has the most likely words of either text and the two actual tokens, `own_before` and
 * `own_after`. `same`: both texts have the same tokens once these two are masked, so nothing changes.
 */
export interface PredictionChange {
  token_before: number;
  token_after: number;
  same: boolean;
  own_before: number;
  own_after: number;
  predictions: ChangedPrediction[];
}

/**
 * Of `patching`: values and effect, rows by columns, see
 * `unmask.interpret.effects.patching.Patching`. `words` names the target, which is `clean` on the first
 * text and `corrupted` on the second.
 */
export interface PatchingMeta {
  part: string;
  target: string;
  token: number | null;
  words: string;
  unit: string;
  clean: number;
  corrupted: number;
}

/**
 * Words that the model predicts in place of the whole word of a token.
 *
 * `own`: the actual word, if it is one token.
 */
export interface Guesses {
  token: number;
  own: OwnWord | null;
  predictions: Prediction[];
}

/** A topic: its best words, its texts, and how stable it is, see `unmask.search.topics.Topic`. */
export interface TopicOfCorpus {
  name: string;
  size: number;
  stability: number | null;
}

/**
 * Of the texts of a corpus: `points` (1, S, 3) along the three first principal components of their
 * vectors, `explained` (3,), the shares of variance that these hold, and `topic` (S,), -1 for none.
 *
 * `total`: texts of the corpus, of which the first `len(texts)` are shown.
 */
export interface TopicCloud {
  corpus: string;
  model: string;
  topics: TopicOfCorpus[];
  texts: string[];
  sources: string[];
  total: number;
  adjusted_rand: number | null;
}

/**
 * How far a corpus is read by a model. `phase`: none, waiting, running, done, stopped or failed.
 *
 * `texts` of `total` are in the answers, the first `done` are read. `compared`: texts that findings
 * are compared with now, of this launch or, before any are read, of an earlier one. `kept`: where results
 * are kept for the next launch, or None, if they are not; `note` says why not. `from_cache`: all
 * were kept.
 */
export interface CorpusState {
  model: number;
  name: string;
  phase: string;
  done: number;
  texts: number;
  total: number;
  compared: number;
  tokens: number;
  truncated: number;
  seconds: number;
  eta_s: number | null;
  from_cache: boolean;
  kept: string | null;
  note: string | null;
  problem: Problem | null;
}

/** Of `heads` of a corpus: what classes of keys and labels are called, and the texts in it. */
export interface CorpusHeadsMeta {
  classes: string[];
  labels: string[];
  texts: number;
}

/** One text in which a head does something, and the strongest pair of tokens in that relation. */
export interface Example {
  text: string;
  source: string;
  score: number;
  query: [number, number];
  key: [number, number];
  key_piece: string;
  weight: number;
  query_token: number;
  key_token: number;
}

/** The texts in which a head does one thing most, best first. */
export interface PatternExamples {
  pattern: string;
  examples: Example[];
}

/** The examples of one head, by pattern. */
export interface CorpusHead {
  layer: number;
  head: number;
  texts: number;
  patterns: PatternExamples[];
}

/** The examples with the words. */
export interface FoundExamples {
  examples: Example[];
  matching: number;
  read: number;
}

/** The model of one view of the index. */
export interface IndexModel {
  view: string;
  name: string;
  revision: string | null;
}

/**
 * The index of this explorer. `modes`: what a search can rank by, the default first.
 *
 * Hybrid search adds 1 / (`rank_constant` + rank) for each view that found a passage.
 */
export interface SearchIndex {
  path: string;
  generation: number;
  documents: number;
  passages: number;
  views: string[];
  modes: string[];
  models: IndexModel[];
  rank_constant: number;
}

/** What one part of the query, or of the passage, adds to a score. */
export interface Share {
  label: string;
  share: number;
  spans: [number, number][];
}

/** How one view came to the score of a passage. */
export interface Explanation {
  view: string;
  score: number;
  rank: number | null;
  shares: Share[];
  special: number;
  attribution: Share[];
  uncompressed_score: number | null;
  first_score: number | null;
}

/**
 * A passage that was found. `matches`: where terms of the query stand, as BM25 reads both.
 *
 * `why` has an explanation for each view that found it, if they were asked for.
 */
export interface SearchHit {
  document: string;
  page: number | null;
  start: number;
  end: number;
  score: number;
  text: string;
  title: string;
  metadata: Record<string, unknown>;
  matches: [number, number][];
  why: Explanation[] | null;
}

/** The hits of a query, best first; `seconds` is the time of the search with its explanations. */
export interface SearchResults {
  query: string;
  mode: string;
  unit: string;
  generation: number;
  seconds: number;
  hits: SearchHit[];
}

/**
 * A number with its 95 % interval and sample size, or a reason why there is none.
 *
 * `low` and `high` are None if `value` is None or no interval was requested.
 */
export interface Estimate {
  value: number | null;
  low: number | null;
  high: number | null;
  n: number;
  reason: string | null;
}

/** The dimension seen at one scale (GRIDE): from each point's k-th and 2k-th neighbors. */
export interface ScaleEstimate {
  k: number;
  radius: number | null;
  dimension: Estimate;
}

/** Anisotropy after removing the `k` directions with the largest share of the squared norm. */
export interface WithoutDirections {
  k: number;
  anisotropy: Estimate;
}

/**
 * The same measures after every coordinate was shuffled among the tokens independently.
 *
 * This keeps the mean and the deviation of each coordinate and destroys the dependence between coordinates.
 * A measure that hardly changes depends only on single coordinates.
 */
export interface Shuffled {
  two_nn: Estimate;
  participation_ratio: Estimate;
  effective_rank: Estimate;
  anisotropy: Estimate;
}

/** The cloud of token vectors at one depth. Dimensions are numbers of directions. */
export interface LayerGeometry {
  layer: number;
  n: number;
  tokens: number;
  distinct: number;
  width: number;
  two_nn: Estimate;
  two_nn_slope: Estimate;
  gride: ScaleEstimate[];
  mle: Estimate;
  mle_band: [number, number] | null;
  participation_ratio: Estimate;
  iso_score: Estimate;
  effective_rank: Estimate;
  anisotropy: Estimate;
  anisotropy_without: WithoutDirections[];
  top_coordinate: number | null;
  top_coordinate_share: number | null;
  residual: Estimate;
  norm: Estimate;
  shuffled: Shuffled | null;
}

/**
 * The shape of every level's cloud of tokens, special ones left out; level 0 is the embeddings.
 *
 * `random` is the same text in an encoder of the same design with random weights, where that was asked
 * for; `problem` says why there is nothing, for instance because the text is too short.
 */
export interface Geometry {
  tokens: number;
  levels: LayerGeometry[];
  random: LayerGeometry[] | null;
  problem: Problem | null;
}

/** Distribution of a measure under random permutations of the senses. */
export interface Null {
  mean: number;
  high: number;
  p: number;
}

/** Separation of the senses of one word at one depth. */
export interface SenseLayer {
  layer: number;
  within: number;
  across: number;
  margin: Estimate;
  margin_null: Null;
  accuracy: Estimate;
  accuracy_null: Null | null;
  silhouette: number | null;
}

/**
 * What static vectors separate: a token's row of the embedding, without its position and its sentence.
 *
 * The measures are those of a layer, whose number is 0.
 */
export interface StaticSenses {
  word: SenseLayer;
  context: SenseLayer | null;
}

/** The senses of a word at every depth. */
export interface SenseReport {
  word: string;
  senses: string[];
  counts: number[];
  control: string;
  permutations: number;
  seed: number;
  layers: SenseLayer[];
  random: SenseLayer[] | null;
  static: StaticSenses;
}

/** The senses of a word in one model; `available` lists the words with example sentences. */
export interface Senses {
  model: string;
  word: string;
  available: string[];
  report: SenseReport;
}

/** Tokens in three dimensions at every level. Created by `project`. */
export interface Projection {
  method: string;
  basis: string;
  fitted: number;
}

/** One occurrence of the word. */
export interface Sentence {
  text: string;
  sense: string;
  start: number;
  end: number;
}

/** Of the cloud of a word's occurrences: arrays as of `Projection`, one point per sentence. */
export interface SenseCloudMeta {
  model: string;
  word: string;
  senses: string[];
  sentences: Sentence[];
  method: string;
  basis: string;
}

/**
 * The attention of one text in all layers: from queries, keys and values to what the heads return.
 *
 * Bytes count every array as often as a step reads or writes it, as if no cache held it between two steps.
 */
export interface AttentionCost {
  tokens: number;
  operations: number;
  tiled_bytes: number;
  stored_bytes: number;
  seconds: number | null;
}

/** What the machine can do, and what attention asks of it. */
export interface Roofline {
  processor: string;
  threads: number;
  dtype: string;
  gflop_per_second: number;
  gbytes_per_second: number;
  costs: AttentionCost[];
}
