"""Attention statistics of one layer on one text, as arrays."""

import unicodedata
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.activation_cache import Kind
from unmask.text import Encoding

Floats = NDArray[np.float32]

CLASSES = ("self", "previous", "next", "first", "special", "punctuation", "other")
"""Classes of keys: by relation to the query (the same token, the previous, the next), or by kind (the first
token of the sequence, a special token other than the first, punctuation). A key may be in several classes;
it is in ``other`` if it is in none."""


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Every head of one layer on one text of N tokens; no array has N x N of anything.

    ``p_ij`` is the attention from query i to key j; rows of ``p`` sum to 1. ``n_j`` is the norm of the
    contribution of key j, see `unmask.interpret.attention.norms.value_norms`;
    ``w_ij = p_ij n_j / sum_j p_ij n_j`` is the norm-weighted map, on the same scale as
    ``p`` (all 0 in a row where every norm is 0).
    """

    kind: Kind
    heads: int
    lse_HN: NDArray[np.float64]
    """Logarithm of the sum of exponentials of a query's scores; for linear attention, of its weights' sum."""
    entropy_HN: Floats
    """Of each query's attention, in nats."""
    keys_HN: NDArray[np.int32]
    """Number of keys allowed for each query."""
    entropy_share_HN: Floats
    """Entropy divided by ``log(keys)``: 0 is one key, 1 is uniform; 0 if only one key is allowed."""
    distance_HN: Floats
    """Mean distance from each query to its keys, in tokens."""
    attention_received_HN: Floats
    """Attention each key receives, mean over all queries; sums to 1 over keys."""
    causal_received_HN: Floats
    """Attention received from the queries from the key on, ``sum_{i >= k} p_ik / (N - k)`` (Gu et al.
    2025)."""
    max_received_HN: Floats
    """Maximum attention each key receives from any query."""
    norm_HN: Floats
    """``n_j`` of each key; where global tokens have projections of their own, as all others see it."""
    norm_sum_HN: Floats
    """``sum_j p_ij n_j`` of each query."""
    received_norm_HN: Floats
    """Mean over queries of ``w_ik``: what each key receives, weighted by norms; sums to 1 over keys."""
    edges_keys_HNk: NDArray[np.int32]
    """The top keys of each query, largest first; ties are in text order."""
    edges_HNk: Floats
    """Their attention weights. If fewer keys are allowed than listed, the rest are 0."""
    classes_HX: Floats
    """Mean over queries of the attention to keys of each class of `CLASSES`."""
    profile_HB: Floats
    """Mean over queries of the attention at each bin of distance; sums to 1."""
    profile_edges: NDArray[np.int64]
    """Bin b holds distances from edge b up to, not with, edge b + 1: 0, 1, 2, 3-4, 5-8 ... tokens."""
    map_mean_HSS: Floats
    """Mean of ``p`` over cells of `cell` x `cell` tokens; the last row and column of cells may be smaller."""
    map_max_HSS: Floats
    """Largest ``p`` of each cell."""
    map_norm_HSS: Floats
    """Mean of ``w`` over each cell."""
    cell: int
    """Tokens along the side of a cell."""

    classes_names = CLASSES

    def __len__(self) -> int:
        """N."""
        return int(self.lse_HN.shape[1])

    def diagonal_mean_H(self, name: Literal["self", "previous", "next"]) -> NDArray[np.float64]:
        """Mean attention of each head to the token itself, the one before or the one after, (H,).

        The mean is over the queries that have such a token: the first token has none before it.
        """
        queries = max(1, len(self) - (name != "self"))
        return self.classes_HX[:, CLASSES.index(name)].astype(np.float64) * len(self) / queries


def uniform_distance(keys_HN: NDArray[np.int32]) -> NDArray[np.float64]:
    """Mean distance from query to key under uniform attention, in tokens, (H,).

    ``keys_HN`` is the number of keys of each query. They are taken to lie around the query, evenly to both
    sides as far as the text goes: exact for full attention and for windows, too short where single keys far
    away are allowed too.
    """
    length = keys_HN.shape[-1]
    at_N = np.arange(length)
    side = (int(keys_HN.max()) - 1) / 2
    whole_HN = keys_HN == length
    before = np.where(whole_HN, at_N, np.minimum(at_N, side))
    after = np.where(whole_HN, length - 1 - at_N, np.minimum(length - 1 - at_N, side))
    total = before * (before + 1) / 2 + after * (after + 1) / 2
    return np.asarray((total / (before + after + 1)).mean(axis=-1))


Marks = NDArray[np.bool_]


def column_classes(encoding: Encoding) -> tuple[Marks, Marks, Marks]:
    """Which tokens are the first, special but not the first, and punctuation; (N,) each.

    Punctuation has characters, spaces at its ends not counted, and every one of them is in one of Unicode's
    categories of punctuation or symbols (P, S). Special tokens are none.
    """
    length = len(encoding)
    first_N = np.arange(length) == 0
    punctuation_N = np.array([_is_punctuation(encoding, token) for token in range(length)], dtype=np.bool_)
    return first_N, encoding.special & ~first_N, punctuation_N


def _is_punctuation(encoding: Encoding, token: int) -> bool:
    if encoding.special[token]:
        return False
    characters = encoding.surface(token).strip()
    return bool(characters) and all(unicodedata.category(one)[0] in "PS" for one in characters)
