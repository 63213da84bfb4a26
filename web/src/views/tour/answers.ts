/** What the tour's experiments answer: the numbers of `unmask/explorer/experiments`, under the same names. */

export type Numbers = readonly number[];
export type Rows = readonly Numbers[];

export interface Chapter {
  id: string;
  title: string;
  order: number;
  /** The mechanism that an encoder must have for it. */
  needs: string;
  /** Parameters in addition to the text: layer, head, token. */
  choices: readonly string[];
}

/** What every experiment reports about itself. */
export interface Experiment {
  id: string;
  model: { name: string; shipped: boolean; layers: number; heads: number; width: number };
  tokens: readonly string[];
  special: readonly boolean[];
  total_tokens: number;
}

export interface Answer {
  chapter: string;
  text: string;
  experiments: readonly Experiment[];
}

export interface HandshakeRun extends Experiment {
  handshake: {
    layer: number;
    head: number;
    head_width: number;
    products: Rows;
    scores: Rows;
    allowed: readonly (readonly boolean[])[];
    shares: Rows;
    steps: Rows;
  };
  /** The pair of words that is shown first. */
  pair: { layer: number; head: number; query: number; key: number };
}

export interface ValuesRun extends Experiment {
  values: {
    layer: number;
    head: number;
    query: number;
    shares: Numbers;
    value_norms: Numbers;
    contributions: Numbers;
    parts: Numbers;
    head_norm: number;
    head_parts: Numbers;
    bias_part: number;
    before_norm: number;
    attention_norm: number;
    feedforward_norm: number;
    attention_part: Numbers;
    feedforward_part: Numbers;
    kept_cosine: Numbers;
    error: number;
  };
}

export interface ScalingRun extends Experiment {
  random: {
    widths: Numbers;
    variance: Numbers;
    variance_divided: Numbers;
    entropy_share: Numbers;
    entropy_share_divided: Numbers;
    slope: Numbers;
    slope_divided: Numbers;
  };
  trained: {
    head_width: number;
    variance: Rows;
    variance_divided: Rows;
    row_deviation: Rows;
    entropy_share: Rows;
    entropy_share_undivided: Rows;
  };
}

export interface OrderRun extends Experiment {
  shuffled: { order: Numbers; difference: Rows; final: Numbers; without_positions: boolean };
  /** The word of each token. */
  words: Numbers;
  /** A sentence whose two nouns changed places. */
  swap: { names: readonly string[]; change: Numbers };
}

export interface Twice {
  words: number;
  state_difference: Numbers;
  score_difference: Numbers;
}

export interface PositionsRun extends Experiment {
  twice: Twice;
  table?: { cosines: Rows; by_distance: Numbers; chance: number; length_beside_words: number };
  parts?: {
    layer: number;
    head: number;
    parts: Record<string, Rows>;
    felt: Record<string, number>;
    sum_error: number;
    shift_error: number;
  };
  penalty?: { slopes: Numbers; halved_after: Numbers; distance: Rows; distance_without: Rows };
  turned?: { shifts: Numbers; errors: Numbers; other_distance: number };
}

export interface ReachRun extends Experiment {
  reach: {
    target: number;
    global_tokens: Numbers;
    reachable: readonly (readonly boolean[])[];
    effect: Rows;
    effect_outside: number;
    half_within: number;
  };
}

export interface BlurRun extends Experiment {
  blur: {
    layer: number;
    head: number;
    exact: Rows;
    elu: Rows;
    favor: Rows;
    variation_elu: number;
    features: Numbers;
    variation_favor: Numbers;
    variation_even: number;
    entropy_share: Record<'exact' | 'elu' | 'favor', number>;
    largest_score: number;
  };
}

export interface EvennessRun extends Experiment {
  evenness: Record<string, Rows>;
}

export interface TilesRun extends Experiment {
  shares: Rows;
  tiled: {
    layer: number;
    head: number;
    query: number;
    tile: number;
    steps: readonly { end_key: number; maximum: number; sum: number; rescaled: number }[];
    error: number;
    output_size: number;
    held_whole: number;
    held_tiled: number;
    kernel_tile: number;
    lengths: Numbers;
    bytes_whole: Numbers;
    bytes_tiled: Numbers;
  };
}

export interface LayersRun extends Experiment {
  alternation: {
    radius: readonly (number | null)[];
    distance: Rows;
    even_distance: Numbers;
    beyond: Rows;
    field: Numbers;
    lengths: Numbers;
    pairs: Numbers;
    pairs_whole: Numbers;
  };
}

export interface SinksRun extends Experiment {
  sinks: {
    received: Rows;
    norm_received: Rows;
    even: number;
    sink: number;
    value_ratio: Rows;
    without: Rows;
    next_sink: number;
    moved: Numbers;
    moved_by_other: number;
  };
}

export interface CollapseRun extends Experiment {
  collapse: {
    cosine: Numbers;
    cosine_left_out: Record<string, Numbers>;
    share_of_one: Numbers;
    width: number;
    residual: Numbers;
    averaged: Numbers;
  };
}

export interface PredictionRun extends Experiment {
  prediction: {
    token: number;
    id: number;
    probability: number;
    rank: number;
    top_ids: Numbers;
    top_probabilities: Numbers;
    attribution: Numbers;
    effect: Numbers;
  };
  top_words: readonly string[];
}

export interface Passage {
  text: string;
  tokens: readonly string[];
  special: readonly boolean[];
  cosine: number;
  query_parts: Numbers;
  passage_parts: Numbers;
}

export interface SearchRun extends Experiment {
  passages: readonly Passage[];
}
