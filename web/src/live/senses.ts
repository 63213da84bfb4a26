/** A word in two sentences: how far apart its states are at each level, and what it reads on the way. */

import type { LiveText } from './reading';

/** The tokens of one word. */
export interface Place {
  live: LiveText;
  first: number;
  stop: number;
}

/** A word that another one reads: the head with the largest share of its norm-weighted attention. */
export interface Link {
  word: number;
  head: number;
  share: number;
}

/** Words that are letters or digits, by their number in `TextRead.words`. */
export function wordsOf({ read }: LiveText): number[] {
  return read.words.flatMap(({ first }, word) => (['word', 'piece'].includes(read.tokens[first]?.category ?? '') ? [word] : []));
}

export function placeOf(live: LiveText, word: number): Place | null {
  const found = live.read.words[word];
  return found ? { live, first: found.first, stop: found.stop } : null;
}

/** The number of the word of this surface, the last one of several; -1 if there is none. */
export function wordNamed(live: LiveText, surface: string): number {
  return live.read.words.findLastIndex((word) => word.surface.toLowerCase() === surface.toLowerCase());
}

export function cosine(one: Float32Array, other: Float32Array): number {
  let [product, squares, others] = [0, 0, 0];
  for (let at = 0; at < one.length; at++) {
    const [x, y] = [one[at] as number, other[at] as number];
    product += x * y;
    squares += x * x;
    others += y * y;
  }
  return product / Math.sqrt(squares * others || 1);
}

/** The mean state of some tokens at a level. */
export function meanState(live: LiveText, level: number, first: number, stop: number): Float32Array {
  const mean = new Float32Array(live.width);
  for (let token = first; token < stop; token++) live.state(level, token).forEach((x, at) => (mean[at] = (mean[at] as number) + x / (stop - first)));
  return mean;
}

/** Cosine of two words at every level; a word of several tokens has the mean of their states. */
export function cosinesOf(one: Place, other: Place): number[] {
  const stateOf = ({ live, first, stop }: Place, level: number) => meanState(live, level, first, stop);
  return Array.from({ length: Math.min(one.live.levels, other.live.levels) }, (_, level) => cosine(stateOf(one, level), stateOf(other, level)));
}

/** Cosine of the word embeddings of two words, a word of several tokens has their mean; null where they are not known. */
export function staticCosine(one: Place, other: Place): number | null {
  const meanOf = ({ live, first, stop }: Place) => {
    const rows = Array.from({ length: stop - first }, (_, at) => live.word(first + at));
    if (!rows.every((row) => row !== null)) return null;
    return Float32Array.from(rows[0] as Float32Array, (_, at) => rows.reduce((sum, row) => sum + (row[at] as number), 0));
  };
  const [left, right] = [meanOf(one), meanOf(other)];
  return left && right ? cosine(left, right) : null;
}

/** Attention of a word to every word in one head, summed over the words' tokens and averaged over its own. */
export function attentionOf({ live, first, stop }: Place, head: number, weighted = false): number[] {
  const norms = live.normsOf(head);
  const shares = live.read.words.map(() => 0);
  let whole = 0;
  for (let query = first; query < stop; query++) {
    live.row(head, query).forEach((p, key) => {
      const weight = weighted ? p * (norms[key] as number) : p;
      whole += weight;
      const word = live.read.tokens[key]?.word;
      if (word !== null && word !== undefined) shares[word] = (shares[word] as number) + weight;
    });
  }
  return shares.map((share) => share / (whole || 1));
}

/** The words that a word reads most in a layer, each by its best head; special tokens and the word itself left out. */
export function linksOf(place: Place, layer: number, most = 3): Link[] {
  const { live, first } = place;
  const own = live.read.tokens[first]?.word;
  const candidates = wordsOf(live).filter((word) => word !== own);
  const best = new Map<number, Link>();
  live.layerOf.forEach((of, head) => {
    if (of !== layer) return;
    const shares = attentionOf(place, head, true);
    for (const word of candidates) {
      const share = shares[word] as number;
      if (share > (best.get(word)?.share ?? 0)) best.set(word, { word, head, share });
    }
  });
  return [...best.values()].sort((one, other) => other.share - one.share).slice(0, most);
}

/** "3.1": layer and head of a head that is counted through all layers. */
export function headName(live: LiveText, head: number): string {
  const layer = live.layerOf[head] as number;
  return `${layer}.${head - live.layerOf.indexOf(layer)}`;
}

/** Below this fall two equal words count as moving together. */
const TOGETHER = 0.02;

/** What the cosines say, in words; `widest` is the level where the words are farthest apart. */
export function senseSentence(one: Place, other: Place, cosines: readonly number[]): { sentence: string; widest: number } {
  const surface = ({ live, first }: Place) => live.read.words[live.read.tokens[first]?.word ?? -1]?.surface ?? '';
  const [left, right] = [surface(one), surface(other)];
  const same = left.toLowerCase() === right.toLowerCase();
  const [start = 1, end = 1] = [cosines[0], cosines.at(-1)];
  const widest = cosines.indexOf(Math.min(...cosines));
  const closest = cosines.indexOf(Math.max(...cosines));
  const lowest = cosines[widest] ?? 1;
  const number = (value: number) => value.toFixed(3);
  if (!same) {
    const reached = closest === 0 ? 'are never closer than there' : `are closest after layer ${closest - 1} (${number(cosines[closest] ?? 1)})`;
    return { sentence: `“${left}” and “${right}” start with cosine ${number(start)} and ${reached}; they leave the last layer with ${number(end)}.`, widest };
  }
  if (start - lowest < TOGETHER) {
    return { sentence: `The two “${left}” stay together: their cosine never falls below ${number(lowest)}. They are not told apart.`, widest };
  }
  const reads = widest > 0 ? [one, other].map((place) => linksOf(place, widest - 1, 1)[0]) : [];
  const read = (at: number, place: Place) => `“${place.live.read.words[reads[at]?.word ?? -1]?.surface ?? ''}”`;
  const between = reads[0] && reads[1] ? ` There the first one reads ${read(0, one)} most and the second one ${read(1, other)}.` : '';
  const back = end - lowest > TOGETHER ? `; then they come back to ${number(end)}` : '';
  const begin = start > 0.9995 ? 'start as the same vector' : `start almost alike (cosine ${number(start)})`;
  return { sentence: `The two “${left}” ${begin} and are farthest apart after layer ${widest - 1} (${number(lowest)})${back}.${between}`, widest };
}
