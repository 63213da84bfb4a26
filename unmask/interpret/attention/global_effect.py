"""Global tokens chosen by word or by sentence, and what the choice changes in one text.

Longformer's global tokens attend to all tokens and are attended to by all (Beltagy, Peters & Cohan 2020). Its
tasks choose them by position; here they are chosen by what they say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, quoted
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.comparison import (
    AttentionChange,
    TextComparison,
    attention_change,
    compare_texts,
)
from unmask.interpret.watch import Watch
from unmask.spec import PooledVector, role_of
from unmask.spec.global_tokens import (
    GlobalTokens,
    has_global_tokens,
    places,
    trained_global_tokens,
)
from unmask.spec.heads import is_per_token
from unmask.text import Encoding
from unmask.text.borders import word_borders
from unmask.text.sentences import sentence_starts

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
    roles = [role_of(one) for one in encoder.spec.heads if not is_per_token(one)]
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
    wanted, borders = word.strip().casefold(), word_borders(text)
    if not wanted:
        raise InvalidRequest("a word that is to be global is empty; name one of the text's words")
    # Casefolding may change lengths, so candidates are cut from the text itself.
    starts = np.flatnonzero(borders)
    found = [
        (int(start), int(start) + len(wanted))
        for start in starts
        if start + len(wanted) <= len(text)
        and borders[start + len(wanted)]
        and text[start : start + len(wanted)].casefold() == wanted
    ]
    if not found:
        raise InvalidRequest(f"the text has no word {quoted(word)}, so it cannot be global")
    return found


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
    found = np.zeros((cache.layer_count, max(map(cache.heads, range(cache.layer_count)))))
    for layer in range(cache.layer_count):
        received_H = statistics.layer(layer).attention_received_HN[:, list(tokens)].sum(-1)
        found[layer, : len(received_H)] = received_H
    return found


def _logits(cache: ActivationCache, role: str) -> NDArray[np.float64]:
    with torch.no_grad():
        logits_1C = cache.encoder.logits(role, cache.final_ND, cache.batch.layout)
    found: NDArray[np.float64] = logits_1C[0].double().cpu().numpy()
    return found
