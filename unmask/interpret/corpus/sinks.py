"""Attention sinks over a corpus: which kinds of tokens receive attention, and what their values are good for.

Axes: S texts; X kinds of tokens; F numbers of a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.arguments import one_of, whole_number
from unmask.base.intervals import CONFIDENCE, Interval, sample_counts
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache, check_attention
from unmask.interpret.attention.layer_statistics import column_classes
from unmask.interpret.attention.sinks import EPSILON
from unmask.interpret.corpus.batch import EqualLengthBatch
from unmask.interpret.corpus.measure import MOST_TOKENS, batches
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.effects.ablation import without_values
from unmask.interpret.effects.target import TargetScore, Word
from unmask.text import Encoding, Tokenizer
from unmask.text.tokenizer import masked

KINDS = ("first", "special", "punctuation", "other")
"""Each token is of one kind: the first of the sequence, another special token, punctuation, or any other."""


@dataclass(frozen=True)
class Estimate:
    """A mean over texts, each text once, with its 95 % bootstrap interval over texts."""

    value: float
    interval: Interval


@dataclass(frozen=True, eq=False)
class CorpusSinks:
    """The attention to each kind of token in every head of every text; made by `corpus_sinks`."""

    epsilon: float
    truncated: int
    """Texts of which only the beginning was read."""
    received_SLHX: NDArray[np.float32]
    """Attention that all tokens of a kind receive together, mean over the queries of a text; sums to 1."""
    tokens_SX: NDArray[np.float64]
    """Share of each kind among the tokens of a text: what uniform attention gives it."""
    sink_SLHX: NDArray[np.bool_]
    """Whether the token that receives the most is of the kind, and receives more than epsilon (adapted score,
    see `unmask.interpret.attention.sinks`)."""
    heads_L: tuple[int, ...]
    """H of each layer; further heads are 0."""

    def share(self, kind: str, layer: int | None = None, head: int | None = None) -> Estimate:
        """Attention received by a kind of token, mean over the heads of a layer, or over all heads."""
        return self._mean(self.received_SLHX[..., _kind(kind)], layer, head)

    def rate(self, kind: str, layer: int | None = None, head: int | None = None) -> Estimate:
        """Share of texts and heads whose strongest token is of the kind and above epsilon."""
        return self._mean(self.sink_SLHX[..., _kind(kind)], layer, head)

    def baseline(self, kind: str) -> Estimate:
        """The share that uniform attention gives the kind."""
        return _estimates(self.tokens_SX[:, [_kind(kind)]])[0]

    def _mean(self, of_SLH: NDArray[np.generic], layer: int | None, head: int | None) -> Estimate:
        if layer is None and head is not None:
            raise InvalidRequest(f"head {head} was given without a layer; name both")
        if layer is not None:
            one_of("layer", layer, len(self.heads_L), "this encoder has layers")
        layers = range(len(self.heads_L)) if layer is None else (layer,)
        parts = [of_SLH[:, number, : self.heads_L[number]] for number in layers]
        if head is not None:
            one_of("head", head, parts[0].shape[1], f"layer {layer} has heads")
            parts = [parts[0][:, [head]]]
        values_SH = np.concatenate(parts, axis=1).astype(np.float64)
        return _estimates(values_SH.mean(1, keepdims=True))[0]


@dataclass(frozen=True)
class Removal:
    """Predictions of a masked word without the values of some tokens, in nats; means over texts."""

    kind: str
    texts: int
    tokens: float
    """Tokens per text whose values were removed."""
    divergence: Estimate
    """KL(with, without) of the predicted distribution over the vocabulary."""
    control: Estimate
    """The same for as many other tokens of the text, drawn at random."""
    difference: Estimate
    """`divergence` minus `control`, paired by text."""


def corpus_sinks(
    encoder: Encoder,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    max_tokens: int | None = None,
    limit: int | None = None,
    epsilon: float = EPSILON,
    watch: Watch | None = None,
) -> CorpusSinks:
    """Measure what each kind of token receives, in every head and text.

    Args:
        encoder: what reads the texts.
        tokenizer: of the encoder.
        corpus: the texts.
        max_tokens: what the encoder reads; texts of more tokens, and of more than 512, are truncated.
        limit: only the first texts of the corpus, whose order is random.
        epsilon: the score above which a token is a sink.
        watch: called after each layer of a batch with the texts done and in all.

    Raises:
        UnknownArchitecture: the encoder has no attention.
        InvalidRequest: ``epsilon`` is not between 0 and 1, or ``limit`` is less than 1.
        Cancelled: ``watch`` stopped the work.
    """
    if not 0 < epsilon < 1:
        raise InvalidRequest(f"epsilon is {epsilon}; it is a share of attention, between 0 and 1")
    encodings = _encodings(encoder, tokenizer, corpus, max_tokens, limit)
    heads_L = tuple(layer.mixer.heads for layer in encoder.spec.layers)
    shape = (len(encodings), len(heads_L), max(heads_L), len(KINDS))
    received_SLHX, sink_SLHX = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.bool_)
    watch, done = watch or unwatched, 0
    for numbers in batches(encodings, range(len(encodings)), encoder):
        some = [encodings[number] for number in numbers]
        kinds_SNX = torch.from_numpy(np.stack([kinds_of(encoding) for encoding in some]))
        batch = EqualLengthBatch.run(encoder, some, unwatched)
        for layer, heads in enumerate(heads_L):
            p_SHNN, _ = batch.attention(layer)
            received_SHN = p_SHNN.mean(2, dtype=torch.float64)
            received_SHX = received_SHN @ kinds_SNX.double()
            largest = received_SHN.max(-1)
            of_largest_SHX = kinds_SNX[torch.arange(len(some))[:, None], largest.indices]
            received_SLHX[numbers, layer, :heads] = received_SHX.numpy()
            sink_SLHX[numbers, layer, :heads] = (
                of_largest_SHX & (largest.values > epsilon)[..., None]
            ).numpy()
            watch("measuring sinks", done + len(numbers) * (layer + 1) // len(heads_L), len(encodings))
        done += len(numbers)
    return CorpusSinks(
        epsilon=epsilon,
        truncated=sum(encoding.original_tokens > encoding.kept_tokens for encoding in encodings),
        received_SLHX=received_SLHX,
        tokens_SX=np.stack([kinds_of(encoding).mean(0) for encoding in encodings]),
        sink_SLHX=sink_SLHX,
        heads_L=heads_L,
    )


def remove_values(
    encoder: Encoder,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    max_tokens: int | None = None,
    limit: int = 200,
    seed: int = 0,
    watch: Watch | None = None,
) -> tuple[Removal, ...]:
    """The change of the prediction of a masked word without the values of each kind of token.

    In each text one token that is neither special nor punctuation is masked, drawn at random. Then the
    encoder runs without the values of all tokens of a kind in all heads and layers, see `without_values`,
    and, as a control, without those of as many tokens of the kind ``other`` (but the masked one), drawn at
    random. A text without a token of the kind, or with too few others, is left out of that kind. Where the
    enhanced mask decoder predicts, its own layer is left as it is.

    Args:
        encoder: with an MLM head.
        tokenizer: of the encoder.
        corpus: the texts.
        max_tokens: as in `corpus_sinks`.
        limit: the first texts of the corpus, whose order is random.
        seed: of the drawn tokens.
        watch: called after each text.

    Returns:
        One for each of `KINDS` but ``other`` that is in some text.

    Raises:
        UnknownArchitecture: the encoder has no attention.
        InvalidRequest: the model does not predict words, has no mask token, or no text has two words.
        Cancelled: ``watch`` stopped the work.
    """
    encodings, watch = _encodings(encoder, tokenizer, corpus, max_tokens, limit), watch or unwatched
    effects: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in KINDS[:-1]}
    for number, encoding in enumerate(encodings):
        draw = np.random.default_rng((seed, number))
        kinds_NX = kinds_of(encoding)
        others = np.flatnonzero(kinds_NX[:, KINDS.index("other")])
        if len(others) > 1:
            place = int(draw.choice(others))
            question = _MaskedWord(encoder, masked(encoding, [place], tokenizer), place)
            candidates = others[others != place]
            for at, kind in enumerate(effects):
                tokens = np.flatnonzero(kinds_NX[:, at])
                if 0 < len(tokens) <= len(candidates):
                    control = draw.choice(candidates, len(tokens), replace=False)
                    effects[kind].append(
                        (question.divergence(tokens), question.divergence(control), len(tokens))
                    )
        watch("taking values away", number + 1, len(encodings))
    removals = [_removal(kind, np.array(rows)) for kind, rows in effects.items() if rows]
    if not removals:
        raise InvalidRequest(
            f"no text of {corpus.name} has a word to mask and another one; give longer texts"
        )
    return tuple(removals)


def kinds_of(encoding: Encoding) -> NDArray[np.bool_]:
    """The kind of each token, (N, X) in the order of `KINDS`; one in each row."""
    first_N, special_N, punctuation_N = column_classes(encoding)
    punctuation_N = punctuation_N & ~first_N
    other_N = ~(first_N | special_N | punctuation_N)
    return np.stack([first_N, special_N, punctuation_N, other_N], axis=-1)


class _MaskedWord:
    """One text with a masked word, and what is predicted for it."""

    def __init__(self, encoder: Encoder, encoding: Encoding, place: int) -> None:
        self.cache, self.place = ActivationCache.of(encoder, encoding), place
        self.score = TargetScore(self.cache, Word(token=place, id=0))
        self.layers = self.cache.layer_count - self.score.by_decoder
        self.before_V = self._predicted(self.cache.states[self.layers])

    def divergence(self, tokens: NDArray[np.int64]) -> float:
        """KL(with, without the values of the tokens), in nats."""
        after_V = self._predicted(without_values(self.cache, tokens.tolist(), layers=self.layers))
        return float((self.before_V.exp() * (self.before_V - after_V)).sum())

    def _predicted(self, x_ND: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.score.word_logits(x_ND, self.place).double().log_softmax(-1)


def _encodings(
    encoder: Encoder, tokenizer: Tokenizer, corpus: Corpus, max_tokens: int | None, limit: int | None
) -> Sequence[Encoding]:
    check_attention(encoder)
    texts = corpus.texts if limit is None else corpus.texts[: whole_number("limit", limit, 1)]
    most = MOST_TOKENS if max_tokens is None else min(MOST_TOKENS, max_tokens)
    return tokenizer.encode_batch(
        [text.text for text in texts], max_tokens=most, truncation="end", name=lambda at: texts[at].source
    )


def _removal(kind: str, rows: NDArray[np.float64]) -> Removal:
    divergence, control, tokens = rows.T
    estimates = _estimates(np.stack([divergence, control, divergence - control], axis=1))
    return Removal(kind, len(rows), float(tokens.mean()), *estimates)


def _estimates(values_SF: NDArray[np.float64]) -> tuple[Estimate, ...]:
    """The mean over texts of each column."""
    resampled = sample_counts(len(values_SF)) @ values_SF / len(values_SF)
    tail = (1 - CONFIDENCE) / 2
    ends = np.quantile(resampled, (tail, 1 - tail), axis=0)
    each = zip(values_SF.mean(0).tolist(), *ends.tolist(), strict=True)
    return tuple(Estimate(value, Interval(low, high)) for value, low, high in each)


def _kind(kind: str) -> int:
    if kind not in KINDS:
        raise InvalidRequest(f"kind is {kind!r}; it can be {', '.join(KINDS)}")
    return KINDS.index(kind)
