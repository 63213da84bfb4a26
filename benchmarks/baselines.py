"""What neighboring words alone predict: count-based baselines for a small model's figures.

A bigram gives the probability of a word after another, interpolated with how frequent the word is as Witten
& Bell (1991) do: a word that was followed by many different ones lends more to those not seen after it. It
predicts a masked word from its left neighbor, or from both neighbors as the chain l -> w -> r has it:
``p(w | l, r) ~ p(w | l) p(r | w)``. And it suspects a word of having been replaced where it is improbable.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.training.vocabulary import Vocabulary

Sight = Literal["none", "left", "both"]
"""What is seen of a word's neighbors; ``none`` is a unigram."""

ROWS_AT_ONCE = 256
"""Distributions over the vocabulary that are held together."""


@dataclass(frozen=True, eq=False)
class Bigram:
    """Counts of tokens and pairs in texts that begin with [CLS] and end with [SEP]; see `count`."""

    frequency_V: NDArray[np.float64]
    """Of each token, with one added to its count; that of [CLS], which follows nothing, is 0. Sums to 1."""
    special_V: NDArray[np.bool_]
    """Never masked, replaced or foretold; counted all the same, since words have them as neighbors."""
    pairs_B: NDArray[np.int64]
    """``left * V + right`` of each pair that occurs, rising."""
    counts_B: NDArray[np.int64]
    totals_V: NDArray[np.int64]
    """How often a token is the left one of a pair."""
    kinds_V: NDArray[np.int64]
    """How many different tokens follow it."""

    @property
    def size(self) -> int:
        """V."""
        return len(self.frequency_V)

    @property
    def trust_V(self) -> NDArray[np.float64]:
        """How much counts after a token count beside the frequency: n / (n + kinds), 0 where n is 0."""
        trust_V: NDArray[np.float64] = self.totals_V / np.maximum(1, self.totals_V + self.kinds_V)
        return trust_V

    def pair_p(self, left_M: NDArray[np.int64], right_M: NDArray[np.int64]) -> NDArray[np.float64]:
        """p(right | left) of pairs."""
        keys_M = left_M * self.size + right_M
        found_M = np.minimum(np.searchsorted(self.pairs_B, keys_M), len(self.pairs_B) - 1)
        seen_M = np.where(self.pairs_B[found_M] == keys_M, self.counts_B[found_M], 0)
        trust_M = self.trust_V[left_M]
        share_M = seen_M / np.maximum(1, self.totals_V[left_M])
        p_M: NDArray[np.float64] = trust_M * share_M + (1 - trust_M) * self.frequency_V[right_M]
        return p_M

    def after(self, left_M: NDArray[np.int64]) -> NDArray[np.float64]:
        """p(w | left) of every token w, shape (M, V)."""
        left_MV = np.broadcast_to(left_M[:, None], (len(left_M), self.size))
        return self.pair_p(left_MV, np.arange(self.size)[None, :])

    def before(self, right_M: NDArray[np.int64]) -> NDArray[np.float64]:
        """p(right | w) of every token w, shape (M, V)."""
        right_MV = np.broadcast_to(right_M[:, None], (len(right_M), self.size))
        return self.pair_p(np.arange(self.size)[None, :], right_MV)


def count(pieces: Iterable[NDArray[np.int64]], vocabulary: Vocabulary) -> Bigram:
    """The bigram of texts, given as ids without special tokens.

    Raises:
        InvalidRequest: there is no text.
    """
    size, cls, sep = vocabulary.size, [vocabulary.cls_id], [vocabulary.sep_id]
    ids = [part for piece in pieces for part in (cls, piece, sep)]
    if not ids:
        raise InvalidRequest("no text was given to count; give at least one piece")
    ids_T = np.concatenate(ids).astype(np.int64)
    # The pair [SEP] [CLS] is no text's.
    follows_T = ids_T[1:] != vocabulary.cls_id
    pairs_B, counts_B = np.unique((ids_T[:-1] * size + ids_T[1:])[follows_T], return_counts=True)
    counts_V = np.bincount(ids_T, minlength=size) + 1.0
    # It follows nothing, unless a generator puts it there.
    counts_V[vocabulary.cls_id] = 1.0
    return Bigram(
        frequency_V=counts_V / counts_V.sum(),
        special_V=vocabulary.special_V,
        pairs_B=pairs_B,
        counts_B=counts_B,
        totals_V=np.bincount(pairs_B // size, weights=counts_B, minlength=size).astype(np.int64),
        kinds_V=np.bincount(pairs_B // size, minlength=size),
    )


def foretell(
    bigram: Bigram, ids_T: NDArray[np.int64], places_M: NDArray[np.int64], sight: Sight
) -> tuple[float, float]:
    """Loss in nats and accuracy of words at some places of packed texts, from their true neighbors.

    A model that sees a mask in the place of a neighbor knows less. Special tokens have no part in what may
    stand there, so probabilities are those of the other tokens.

    Args:
        bigram: of other text.
        ids_T: the true ids, special tokens included, texts end to end.
        places_M: at least one place, none that of a special token.
        sight: what is seen beside them.

    Raises:
        InvalidRequest: no place, one of a special token, or no such sight.
    """
    if sight not in get_args(Sight):
        raise InvalidRequest(f"sight is {sight!r}; it can be {', '.join(get_args(Sight))}")
    if not len(places_M) or bigram.special_V[ids_T[places_M]].any():
        raise InvalidRequest("places must be of words, at least one and none of a special token")
    loss, right = 0.0, 0
    for start in range(0, len(places_M), ROWS_AT_ONCE):
        some_M = places_M[start : start + ROWS_AT_ONCE]
        words_M, rows_M = ids_T[some_M], np.arange(len(some_M))
        if sight == "none":
            p_MV = np.repeat(bigram.frequency_V[None, :], len(some_M), axis=0)
        else:
            p_MV = bigram.after(ids_T[some_M - 1])
        if sight == "both":
            p_MV = p_MV * bigram.before(ids_T[some_M + 1])
        p_MV[:, bigram.special_V] = 0.0
        loss -= float(np.log(p_MV[rows_M, words_M] / p_MV.sum(1)).sum())
        right += int((p_MV.argmax(1) == words_M).sum())
    return loss / len(places_M), right / len(places_M)


def suspicion(bigram: Bigram, ids_T: NDArray[np.int64], sight: Sight) -> NDArray[np.float64]:
    """How improbable each token is where it stands, in nats, shape (T,); minus infinity for special tokens.

    ``none``: -log p(w); ``left``: -log p(w | l); ``both``: -log p(w | l) - log p(r | w).

    Raises:
        InvalidRequest: no such sight.
    """
    if sight not in get_args(Sight):
        raise InvalidRequest(f"sight is {sight!r}; it can be {', '.join(get_args(Sight))}")
    found_T = np.full(len(ids_T), -np.inf)
    places_N = np.flatnonzero(~bigram.special_V[ids_T])
    words_N = ids_T[places_N]
    if sight == "none":
        found_T[places_N] = -np.log(bigram.frequency_V[words_N])
        return found_T
    found_T[places_N] = -np.log(bigram.pair_p(ids_T[places_N - 1], words_N))
    if sight == "both":
        found_T[places_N] -= np.log(bigram.pair_p(words_N, ids_T[places_N + 1]))
    return found_T


def f1(said_T: NDArray[np.bool_], true_T: NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall; 0 where nothing was found."""
    return 2 * float((said_T & true_T).sum()) / max(1.0, float(said_T.sum() + true_T.sum()))


def best_threshold(score_T: NDArray[np.float64], true_T: NDArray[np.bool_]) -> float:
    """The score from which on saying yes gives the highest `f1`.

    Raises:
        InvalidRequest: nothing is true, so that no threshold is better than another.
    """
    if not true_T.any():
        raise InvalidRequest("nothing was replaced in the text that the threshold is chosen on; give more")
    order_T = np.argsort(-score_T, kind="stable")
    score_T, found_T = score_T[order_T], np.cumsum(true_T[order_T])
    f1_T = 2 * found_T / (np.arange(1, len(score_T) + 1) + found_T[-1])
    # Equal scores are said together.
    last_T = np.append(score_T[1:] != score_T[:-1], True)
    return float(score_T[np.where(last_T, f1_T, -1.0).argmax()])
