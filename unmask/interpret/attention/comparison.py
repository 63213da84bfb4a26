"""Two runs of one encoder compared: a text before and after an edit, or with other global tokens.

Axes: P words that both texts have; W words of one text; A heads of all layers; G groups of words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.arguments import one_of, token_of, whole_number
from unmask.base.progress import Watch, unwatched
from unmask.encoder.decoder import decode_states, predicts_by_decoder, word_role
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import embed
from unmask.errors import InvalidRequest, not_finite, quoted
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.head_distances import Grouped, by_layer, evenly, grouped_weights
from unmask.interpret.words.alignment import WordPair, groups_of, pair_words
from unmask.interpret.words.words import Words, words
from unmask.spec import PooledVector, role_of
from unmask.spec.global_tokens import (
    GlobalTokens,
    has_global_tokens,
    places,
    trained_global_tokens,
)
from unmask.spec.heads import is_per_token
from unmask.text import Encoding
from unmask.text.borders import sentence_starts, word_borders

CELLS = 1 << 24
"""Weights that are read of each text at most, over all heads; the rows of more are sampled."""


@dataclass(frozen=True, eq=False)
class TextComparison:
    """What changed inside the encoder from one text to another, word by word.

    ``aligned`` numbers the words of the first text that have a counterpart in the second, (P,); arrays with
    the axis P are in its order.
    """

    before: Words
    after: Words
    pairs: tuple[WordPair, ...]
    """Every word of both texts, in order."""
    state_cosine: NDArray[np.float64]
    """Cosine of a word's state in the two texts, (L + 1, P): level 0 is the embeddings, the last is the
    output of the encoder. The state of a word is the mean of those of its tokens; a state of zero has
    cosine 0."""
    embedding_cosine: float
    """Cosine of the embeddings of the two texts."""

    @property
    def aligned(self) -> NDArray[np.int64]:
        """(P,)."""
        return np.array([pair.before for pair in self.pairs if _both(pair)], dtype=np.int64)

    @property
    def counterparts(self) -> NDArray[np.int64]:
        """The words of the second text that stand for those of ``aligned``, (P,)."""
        return np.array([pair.after for pair in self.pairs if _both(pair)], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class AttentionChange:
    """How much the attention of each head changed, mean over the words that both texts have; 0 where a layer
    has no such head.

    Attention is summed over the tokens of the word attended to and averaged over those of the word that
    attends (Clark et al. 2019). Words of one text alone attend to nothing here; what they receive counts as
    moved, because the other text gives it elsewhere.
    """

    moved: NDArray[np.float64]
    """Share of a word's attention that goes to other words than before: the total variation distance of the
    two rows, (L, H), from 0 to 1."""
    to_removed: NDArray[np.float64]
    """Attention in the first text to words that the second does not have, (L, H)."""
    to_inserted: NDArray[np.float64]
    """Attention in the second text to words that the first did not have, (L, H)."""
    queries: int
    """Number of words that attend; in long texts, an evenly spaced sample."""
    of: int
    """How many there are."""


@dataclass(frozen=True, eq=False)
class PredictionChange:
    """Words predicted at one token of each of two texts: the k most likely in either."""

    ids: NDArray[np.int64]
    """Distinct words, those that are most likely in the second text first; at least k, at most 2 k."""
    before: NDArray[np.float64]
    """Their probabilities in the first text."""
    after: NDArray[np.float64]


def compare_texts(
    before: ActivationCache, after: ActivationCache, *, head: PooledVector | None = None
) -> TextComparison:
    """Align the words of two texts in one encoder and compare their states.

    Args:
        before: the first text.
        after: the second, read by the same encoder.
        head: how the embeddings are pooled; None means the mean over all tokens.

    Raises:
        InvalidRequest: the texts were read by two encoders, or have no word in common.
    """
    words_before, words_after = _words_of(before, after)
    pairs = pair_words(words_before, words_after)
    aligned = [(pair.before, pair.after) for pair in pairs if _both(pair)]
    if not aligned:
        raise InvalidRequest("the two texts have no word or special token in common, so nothing is aligned")
    places = [np.array(side) for side in zip(*aligned, strict=True)]
    cosines = []
    for level in range(before.layer_count + 1):
        x_PD, y_PD = (
            _word_states(_level(cache, level), text_words)[chosen]
            for cache, text_words, chosen in zip(
                (before, after), (words_before, words_after), places, strict=True
            )
        )
        cosines.append(_cosine(x_PD, y_PD))
    head = PooledVector(("mean",)) if head is None else head
    alike = _cosine(_embedding(before, head), _embedding(after, head))
    return TextComparison(words_before, words_after, pairs, np.stack(cosines), float(alike[0]))


def attention_change(
    before: ActivationCache, after: ActivationCache, *, cells: int = CELLS, watch: Watch | None = None
) -> AttentionChange:
    """How much the attention of every head changed from one text to another.

    Args:
        before: the first text.
        after: the second, read by the same encoder.
        cells: at most this many weights are read of each text; of a longer one, evenly spaced words.
        watch: called after each block of rows.

    Raises:
        InvalidRequest: the texts were read by two encoders, or have no word in common.
        Cancelled: ``watch`` stopped the work.
    """
    words_before, words_after = _words_of(before, after)
    groups_before, groups_after, count = groups_of(
        pair_words(words_before, words_after), words_before, words_after
    )
    common = count - 2
    if common == 0:
        raise InvalidRequest("the two texts have no word or special token in common, so nothing is aligned")
    watched, layers = watch or unwatched, before.layer_count
    heads = [before.heads(layer) for layer in range(layers)]
    row_cells = sum(heads) * max(len(before), len(after))
    chosen = evenly(common, max(1, whole_number("cells", cells, 1) // row_cells))

    def tick(done: int) -> None:
        watched("reading heads", done, 2 * layers)

    p_ARG = grouped_weights(Grouped(before, groups_before), chosen, count, 0.0, tick)
    q_ARG = grouped_weights(Grouped(after, groups_after), chosen, count, 0.0, lambda at: tick(layers + at))
    tick(2 * layers)
    moved_A = (p_ARG - q_ARG).abs().sum(-1).double().mean(-1) / 2
    removed_A, inserted_A = p_ARG[..., -2].double().mean(-1), q_ARG[..., -1].double().mean(-1)
    moved, removed, inserted = (by_layer(values_A, heads) for values_A in (moved_A, removed_A, inserted_A))
    return AttentionChange(moved, removed, inserted, len(chosen), common)


def prediction_change(
    before: ActivationCache,
    token_before: int,
    after: ActivationCache,
    token_after: int,
    *,
    top_k: int = 8,
    also: Sequence[int] = (),
) -> PredictionChange:
    """The words that the MLM head predicts at a token of each text, which should be masked there.

    See `unmask.text.tokenizer.masked`. Every word that is among the ``top_k`` of either text, or in ``also``,
    has both of its probabilities.

    Raises:
        InvalidRequest: the model does not predict words; or no such token or number of words.
        NonFiniteResult: a probability is not finite.
    """
    positions = ((before, token_before), (after, token_after))
    p_V, q_V = (word_probabilities(cache, token) for cache, token in positions)
    if whole_number("top_k", top_k, 1) > len(p_V):
        raise InvalidRequest(f"top_k is {top_k}; it can be 1 to {len(p_V)}")
    for word in also:
        one_of("word", word, len(p_V), "this vocabulary has words")
    best = {*also} | {
        int(word)
        for probability_V in (p_V, q_V)
        for word in np.argsort(-probability_V, kind="stable")[:top_k]
    }
    ids = np.array(sorted(best, key=lambda word: (-q_V[word], -p_V[word], word)), dtype=np.int64)
    return PredictionChange(ids, p_V[ids], q_V[ids])


def word_probabilities(cache: ActivationCache, token: int) -> NDArray[np.float64]:
    """The prediction of the MLM head at a token, (V,), which sums to 1.

    Raises:
        InvalidRequest: the model does not predict words, or there is no such token.
        NonFiniteResult: a probability is not finite.
    """
    encoder, layout = cache.encoder, cache.batch.layout
    role = word_role(encoder)
    token_of(len(cache), token)
    with torch.no_grad():
        if predicts_by_decoder(encoder, role):
            at_M = torch.tensor([token], device=cache.final_ND.device)
            read_MD = decode_states(encoder, cache.states[cache.layer_count - 1], layout, at_M)
        else:
            read_MD = cache.final_ND[token : token + 1]
        p_V: NDArray[np.float64] = encoder.logits(role, read_MD, layout)[0].double().softmax(-1).cpu().numpy()
    if not np.isfinite(p_V).all():
        raise not_finite("a predicted probability", str(cache.states[0].dtype))
    return p_V


def _both(pair: WordPair) -> bool:
    return pair.before is not None and pair.after is not None


def _words_of(before: ActivationCache, after: ActivationCache) -> tuple[Words, Words]:
    if before.encoder is not after.encoder:
        raise InvalidRequest("the two texts were read by two encoders; read both with the same one")
    return words(before.encoding), words(after.encoding)


def _level(cache: ActivationCache, level: int) -> NDArray[np.float64]:
    """States of a level, (N, D); the last is the output of the encoder."""
    x_ND = cache.final_ND if level == cache.layer_count else cache.states[level]
    return np.asarray(x_ND.double().cpu().numpy())


def _embedding(cache: ActivationCache, head: PooledVector) -> NDArray[np.float64]:
    """(1, E)."""
    with torch.no_grad():
        layers = cache.encoder.output if head.projections else None
        e_1E = embed(cache.final_ND, cache.batch.layout, head, layers)
    return np.asarray(e_1E.double().cpu().numpy())


def _word_states(x_ND: NDArray[np.float64], of: Words) -> NDArray[np.float64]:
    """The mean of the tokens of each word, (W, D)."""
    sums_WD = np.zeros((len(of), x_ND.shape[1]))
    np.add.at(sums_WD, of.of_token, x_ND)
    return np.asarray(sums_WD / np.bincount(of.of_token, minlength=len(of))[:, None])


def _cosine(x_PD: NDArray[np.float64], y_PD: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths_P = np.linalg.norm(x_PD, axis=1) * np.linalg.norm(y_PD, axis=1)
    dots_P = (x_PD * y_PD).sum(1)
    cosine_P = np.divide(dots_P, lengths_P, out=np.zeros_like(dots_P), where=lengths_P > 0)
    return np.asarray(np.clip(cosine_P, -1, 1))


NO_GLOBAL_TOKENS = (
    "this encoder has no global tokens, so none can be chosen; use one that has, such as Longformer"
)


@dataclass(frozen=True)
class GlobalText:
    """A choice of global tokens for ``global_tokens=``: tokens of words, sentences, ranges of characters.

    In a pair, of the first text.
    """

    words: tuple[str, ...] = ()
    """Words or phrases; every occurrence counts, in any case."""
    sentences: tuple[int, ...] = ()
    """Numbers of sentences, from 0."""
    spans: tuple[tuple[int, int], ...] = ()
    """Ranges of characters, half open: all tokens that share a character with one."""
    beside: GlobalTokens = "none"
    """Tokens that are global as well."""

    def __call__(self, encoding: Encoding) -> Sequence[int]:
        """The positions of the chosen tokens, ascending.

        Raises:
            InvalidRequest: the text does not contain a word, or has no sentence of a number, or no token in a
                range.
        """
        text = encoding.text
        spans = [span for word in self.words for span in _occurrences(text, word)]
        spans += [_sentence(text, number) for number in self.sentences]
        starts_N, ends_N = encoding.offsets.T
        of_text_N = ~encoding.special & (encoding.sequence_ids != 1)
        chosen_N = np.zeros(len(encoding), dtype=np.bool_)
        for start, end in [*spans, *self.spans]:
            chosen_N |= of_text_N & (starts_N < end) & (ends_N > start)
        for start, end in self.spans:
            if not (of_text_N & (starts_N < end) & (ends_N > start)).any():
                raise InvalidRequest(f"characters {start} to {end} are to be global, and no token is there")
        chosen_N[list(places(encoding, self.beside))] = True
        return [int(token) for token in np.flatnonzero(chosen_N)]


@dataclass(frozen=True, eq=False)
class GlobalEffect:
    """What a choice of global tokens changes in one text."""

    before: tuple[int, ...]
    """The global tokens that the encoder's head was trained with."""
    after: tuple[int, ...]
    """Those that were chosen."""
    states: TextComparison
    """The same words under both choices, and their states."""
    attention: AttentionChange
    """How much of its attention each head moved."""
    received_before: NDArray[np.float64]
    """Attention to the tokens that became global, mean over queries, added up over these tokens: (L, H)."""
    received_after: NDArray[np.float64]
    logits: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    """Of each head of whole texts, by role: its logits before and after, (C,) each."""

    @property
    def added(self) -> tuple[int, ...]:
        """The tokens that became global."""
        return tuple(sorted(set(self.after) - set(self.before)))


def global_effect(
    encoder: Encoder,
    encoding: Encoding,
    choice: GlobalTokens,
    *,
    head: PooledVector | None = None,
    watch: Watch | None = None,
) -> GlobalEffect:
    """Compare a choice of global tokens with those that the encoder's head was trained with.

    Args:
        encoder: an encoder with global tokens, such as Longformer.
        encoding: the text.
        choice: the global tokens, such as a `GlobalText`.
        head: how embeddings are pooled; None means the mean over all tokens.
        watch: called after each layer, and while heads are read.

    Raises:
        InvalidRequest: the encoder has no global tokens, or the choice adds none.
        Cancelled: ``watch`` stopped the work.
    """
    if not has_global_tokens(encoder.spec):
        raise InvalidRequest(NO_GLOBAL_TOKENS)
    trained = trained_global_tokens(encoder.spec, paired=encoding.pair is not None)
    before, after = (
        ActivationCache.of(encoder, encoding, global_tokens=tokens, watch=watch)
        for tokens in (trained, choice)
    )
    as_trained, as_chosen = (_marked(cache) for cache in (before, after))
    added = sorted(set(as_chosen) - set(as_trained))
    if not added:
        raise InvalidRequest(
            "all chosen tokens are global already, as the encoder's head was trained; choose others"
        )
    roles = [role_of(task_head) for task_head in encoder.spec.heads if not is_per_token(task_head)]
    return GlobalEffect(
        before=as_trained,
        after=as_chosen,
        states=compare_texts(before, after, head=head),
        attention=attention_change(before, after, watch=watch),
        received_before=attention_to(before, added, watch),
        received_after=attention_to(after, added, watch),
        logits={role: (_logits(before, role), _logits(after, role)) for role in roles},
    )


def _marked(cache: ActivationCache) -> tuple[int, ...]:
    assert cache.globals_N is not None
    return tuple(np.flatnonzero(cache.globals_N).tolist())


def _occurrences(text: str, word: str) -> list[tuple[int, int]]:
    """Where a word or phrase occurs in whole words, in any case."""
    folded, borders = word.strip().casefold(), word_borders(text)
    if not folded:
        raise InvalidRequest("a word that is to be global is empty; name one of the text's words")
    # Casefolding may change lengths, so candidates are cut from the text itself.
    starts = np.flatnonzero(borders)
    spans = [
        (int(start), int(start) + len(folded))
        for start in starts
        if start + len(folded) <= len(text)
        and borders[start + len(folded)]
        and text[start : start + len(folded)].casefold() == folded
    ]
    if not spans:
        raise InvalidRequest(f"the text has no word {quoted(word)}, so it cannot be global")
    return spans


def _sentence(text: str, number: int) -> tuple[int, int]:
    cuts = [0, *sentence_starts(text), len(text)]
    if not 0 <= number < len(cuts) - 1:
        last = len(cuts) - 2
        has = "sentence 0 only" if last == 0 else f"sentences 0 to {last}"
        raise InvalidRequest(f"sentence {number} is to be global, and the text has {has}")
    return cuts[number], cuts[number + 1]


def attention_to(
    cache: ActivationCache, tokens: Sequence[int], watch: Watch | None = None
) -> NDArray[np.float64]:
    """Attention of every head to some tokens, added up, mean over queries: (L, H)."""
    statistics = AttentionStatistics(cache)
    statistics.measure(watch)
    received_LH = np.zeros((cache.layer_count, max(map(cache.heads, range(cache.layer_count)))))
    for layer in range(cache.layer_count):
        received_H = statistics.layer(layer).attention_received_HN[:, list(tokens)].sum(-1)
        received_LH[layer, : len(received_H)] = received_H
    return received_LH


def _logits(cache: ActivationCache, role: str) -> NDArray[np.float64]:
    with torch.no_grad():
        logits_1C = cache.encoder.logits(role, cache.final_ND, cache.batch.layout)
    return np.asarray(logits_1C[0].double().cpu().numpy())
