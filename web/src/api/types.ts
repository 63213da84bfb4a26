/** The typed results of the API, as in unmask/explorer/results.py; a test compares the two. */

export interface ModelInfo {
  name: string;
  revision: string | null;
  parameter_count: number;
  layers: number;
  heads: number;
  width: number;
  max_tokens: number | null;
}

/** `start` and `end` count code points of the text, not UTF-16 units; both 0 if `special`. */
export interface Token {
  id: number;
  piece: string;
  surface: string;
  start: number;
  end: number;
  special: boolean;
}

export interface TextRead {
  id: string;
  model: string;
  layers: number;
  heads: number;
  total_tokens: number;
  kept_tokens: number;
  tokens: Token[];
}

export interface Problem {
  kind: string;
  sentence: string;
  total_tokens: number | null;
  max_tokens: number | null;
}

export interface Failure {
  error: Problem;
}
