/** Answers the request `live` in the page: a text to tokens, attention and states, with no server. */

import type { Arrays } from '../api/binary';
import { type Answer, problem } from '../api/source';
import type { LiveMeta, Problem, TextRead, Token } from '../api/types';
import { Encoder, type EncoderSpec } from './encoder';
import type { LiveEngine } from './reading';
import { type LiveToken, Tokenizer, type TokenizerSpec } from './tokenizer';
import { wordsOf } from './words';

/** What `unmask/explorer/export/live_model.py` writes beside the weights. */
export interface ModelMeta {
  /** The model's number in the page. */
  index: number;
  name: string;
  revision: string | null;
  weights: 'int8' | 'float32';
  max_tokens: number;
  trained_tokens: number | null;
  encoder: EncoderSpec;
  tokenizer: TokenizerSpec;
}

/** A text that cannot be read, and why. */
class Unreadable extends Error {
  constructor(readonly problem: Problem) {
    super(problem.sentence);
  }
}

export class PageEngine implements LiveEngine {
  private readonly tokenizer: Tokenizer;

  private constructor(
    private readonly meta: ModelMeta,
    private readonly encoder: Encoder,
  ) {
    this.tokenizer = new Tokenizer(meta.tokenizer);
  }

  static async of(model: Arrays<ModelMeta>): Promise<PageEngine> {
    return new PageEngine(model.meta, await Encoder.of(model));
  }

  async get(path: string): Promise<Answer> {
    const query = new URLSearchParams(path.slice(path.indexOf('?') + 1));
    try {
      this.checkModel(Number(query.get('model') ?? this.meta.index));
      return await this.read(query.get('text') ?? '', query.get('pair'), query.get('future') === 'hidden');
    } catch (error) {
      if (!(error instanceof Unreadable)) throw error;
      return refused(error.problem);
    }
  }

  /** The answer for a text, or for a pair of texts; `hidden`: no token attends to a later one. */
  async read(text: string, pair: string | null, hidden: boolean): Promise<Answer> {
    const tokens = this.tokens(text, pair);
    const [ids, types] = [tokens.map(({ id }) => id), tokens.map(({ type }) => type)];
    const { states, attention, norms, words } = this.encoder.read(ids, types, hidden);
    if (!states.every(Number.isFinite)) {
      refuse('NonFiniteResult', 'a result is not a finite number; nothing is shown');
    }
    const { layers, width, embedding } = this.meta.encoder;
    const heads = layers.reduce((sum, layer) => sum + layer.heads, 0);
    const count = tokens.length;
    const meta: LiveMeta = { read: await this.described(text, pair, tokens) };
    return packed(meta, [
      ['states', [layers.length + 1, count, width], states],
      ['attention', [heads, count, count], attention],
      ['norms', [heads, count], norms],
      ['words', [count, embedding.width], words],
    ]);
  }

  private checkModel(index: number): void {
    if (index === this.meta.index) return;
    refuse('NotSaved', `this file holds the model ${this.meta.name} and no other; choose that model`);
  }

  private tokens(text: string, pair: string | null): LiveToken[] {
    const texts = pair === null ? [text] : [text, pair];
    texts.forEach((each, number) => {
      const place = Array.from(each).findIndex((character) => /^\p{Surrogate}$/u.test(character));
      if (place >= 0) {
        const code = each.match(/\p{Surrogate}/u)![0].charCodeAt(0).toString(16).toUpperCase();
        refuse(
          'InvalidText',
          `${nameOf(number)} holds a lone surrogate U+${code} at character ${place}, which is not Unicode text; ` +
            'remove it or decode the source again',
        );
      }
    });
    const tokens = this.tokenizer.read(text, pair);
    const { known } = this.meta.tokenizer;
    const beyond = known === null ? undefined : tokens.find(({ id }) => id >= known);
    if (beyond) {
      refuse(
        'InvalidText',
        `the text has the piece "${this.tokenizer.piece(beyond.id)}" with the id ${beyond.id}, and the model has ` +
          `vectors for ids below ${known}; leave the piece out`,
      );
    }
    texts.forEach((each, number) => {
      const covers = tokens.some((token) => !token.special && Number(token.inPair) === number && token.start < token.end);
      if (!covers || each.trim() === '') {
        refuse('EmptyText', `${nameOf(number)} has no words; give a text with at least one`);
      }
    });
    const most = this.meta.max_tokens;
    if (tokens.length > most) {
      const sentence =
        `the text has ${tokens.length.toLocaleString('en')} tokens, more than the ${most.toLocaleString('en')} ` +
        'that the model in this page reads; shorten it';
      throw new Unreadable({ kind: 'TextTooLong', sentence, total_tokens: tokens.length, max_tokens: most });
    }
    return tokens;
  }

  private async described(text: string, pair: string | null, tokens: LiveToken[]): Promise<TextRead> {
    const { index, name, revision, weights, max_tokens, trained_tokens, encoder } = this.meta;
    const { of, words } = wordsOf(tokens, [text, pair], ({ id }) => this.tokenizer.piece(id));
    const sources = [Array.from(text), Array.from(pair ?? '')] as const;
    const digests = await Promise.all((pair === null ? [text] : [text, pair]).map(sha256));
    return {
      id: 'live',
      model: name,
      model_index: index,
      revision,
      dtype: weights,
      text,
      pair,
      text_sha256: digests.join(', '),
      layers: encoder.layers.length,
      heads: encoder.layers.map(({ heads }) => heads),
      total_tokens: tokens.length,
      kept_tokens: tokens.length,
      max_tokens,
      note: noteOf(name, tokens.length, trained_tokens),
      tokens: tokens.map((token, at): Token => {
        const { id, special, inPair, start, end } = token;
        const piece = this.tokenizer.piece(id);
        const surface = special ? piece : sources[Number(inPair)]!.slice(start, end).join('');
        const word = of[at]!;
        const category = categoryOf(token, surface, words[word]!.first === at);
        return { id, piece, surface, start, end, special, in_pair: inPair, word, category };
      }),
      words,
      global_spans: [],
      global_tokens: [],
    };
  }
}

function nameOf(number: number): string {
  return number === 0 ? 'the text' : 'the pair of the text';
}

function noteOf(name: string, count: number, trained: number | null): string | null {
  if (trained === null || count <= trained) return null;
  return (
    `the text has ${count.toLocaleString('en')} tokens and ${name} was trained on at most ` +
    `${trained.toLocaleString('en')}; it is not truncated, and the quality of its results is unknown`
  );
}

function categoryOf({ special }: LiveToken, surface: string, first: boolean): string {
  if (special) return 'special';
  if (/^[\p{P}\p{S}]+$/u.test(surface.trim())) return 'punctuation';
  return first ? 'word' : 'piece';
}

async function sha256(text: string): Promise<string> {
  // Browsers that see no secure context in a file have no digests.
  if (!globalThis.crypto?.subtle) return '';
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function refuse(kind: string, sentence: string): never {
  throw new Unreadable(problem(kind, sentence));
}

export function refused(error: Problem): Answer {
  const data = new TextEncoder().encode(JSON.stringify({ error })).buffer;
  return { status: 422, type: 'application/json', data };
}

/** The container of `api/binary.ts`. */
function packed(meta: LiveMeta, arrays: [string, number[], Float32Array][]): Answer {
  let end = 0;
  const described = arrays.map(([name, shape, data]) => {
    const offset = end;
    end += Math.ceil(data.byteLength / 8) * 8;
    return { name, dtype: 'f4', shape, offset };
  });
  const header = new TextEncoder().encode(JSON.stringify({ arrays: described, meta }));
  const start = Math.ceil((8 + header.length) / 8) * 8;
  const bytes = new Uint8Array(start + end).fill(32, 0, start);
  bytes.set(new TextEncoder().encode('UMK2'));
  new DataView(bytes.buffer).setUint32(4, start - 8, true);
  bytes.set(header, 8);
  arrays.forEach(([, , data], number) => {
    new Float32Array(bytes.buffer, start + described[number]!.offset, data.length).set(data);
  });
  return { status: 200, type: 'application/octet-stream', data: bytes.buffer };
}
