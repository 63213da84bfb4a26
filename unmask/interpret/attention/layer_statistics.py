"""Attention statistics of one layer on one text as arrays, and what they say of a head. Free of torch."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.text import Encoding

if TYPE_CHECKING:
    from unmask.interpret.activation_cache import Kind


@dataclass(frozen=True)
class HeadSummary:
    """Summary of one head on one text."""

    layer: int
    head: int
    entropy_nats: float
    """Mean over queries."""
    entropy_share: float
    """Entropy as a share of the maximum over the allowed keys: 0 is one key, 1 is uniform."""
    distance_tokens: float
    """Mean distance from query to key."""
    sink_token: int
    """The token that receives the most attention."""
    sink_mass: float
    """The attention it receives, as a share of all queries' attention; uniform attention gives 1/N."""
    relation: str
    """The one of `unmask.interpret.attention.view.RELATIONS` that receives the most attention."""
    relation_mass: float


Floats = NDArray[np.float32]

CLASSES = ("self", "previous", "next", "first", "special", "punctuation", "other")
"""Classes of keys: by relation to the query (the same token, the previous, the next), or by kind (the first
token of the sequence, a special token other than the first, punctuation). A key may be in several classes;
it is in ``other`` if it is in none."""


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Every head of one layer on one text of N tokens; no array has N x N of anything.

    ``p_ij`` is the attention from query i to key j; rows of ``p`` sum to 1. ``n_j`` is the norm of the
    contribution of key j, see `unmask.interpret.attention.rows.value_norms`;
    ``w_ij = p_ij n_j / sum_j p_ij n_j`` is the norm-weighted map, on the same scale as
    ``p`` (all 0 in a row where every norm is 0).
    """

    kind: "Kind"
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
    punctuation_N = np.array([is_punctuation(encoding, token) for token in range(length)], dtype=np.bool_)
    return first_N, encoding.special & ~first_N, punctuation_N


def is_punctuation(encoding: Encoding, token: int) -> bool:
    """Whether a token is punctuation, see `column_classes`."""
    if encoding.special[token]:
        return False
    characters = encoding.surface(token).strip()
    return bool(characters) and all(unicodedata.category(character)[0] in "PS" for character in characters)


LABELS = ("self", "previous", "next", "offset", "first", "special", "punctuation", "diffuse", "mixed")
"""Labels of heads: by the relative position of the top key (the token itself, the previous, the next, or one
at another fixed distance), by the class of the keys, diffuse, or none of these."""

POSITIONAL_SHARE = 0.9
"""Minimum share of queries whose top key is at one distance, for a positional head (Voita et al. 2019)."""

CLASS_MASS = 0.5
"""Minimum mean attention to one class of keys, for a head to be labeled with it."""

DIFFUSE_SHARE = 0.8
"""Minimum mean entropy, as a share of the maximum, for a head without a class label to be diffuse."""

OFFSET_LABELS = {0: "self", -1: "previous", 1: "next"}
"""Labels of heads by the most frequent distance of the top key."""


@dataclass(frozen=True)
class HeadLabel:
    """The label of a head on one text, with the values behind it. Another text may give another label."""

    label: str
    """One of `LABELS`."""
    share: float
    """The deciding value: the share of queries, the mass of the class or the entropy share; for ``mixed``,
    the largest mass, which was below the threshold."""
    offset: int
    """The most frequent distance of the top key: key minus query."""
    offset_share: float
    """Share of queries with that distance, among those that have a key there."""
    confidence: float
    """Mean of the largest weight over queries that are not special tokens (Voita et al. 2019, who leave out
    the end of the sentence)."""


def label_heads(layer: LayerStatistics, special_N: NDArray[np.bool_]) -> tuple[HeadLabel, ...]:
    """A label for every head of a layer: the first rule that holds.

    1. At least `POSITIONAL_SHARE` of the top keys are at one distance: ``self``, ``previous``, ``next``
       or ``offset``.
    2. One class of keys (except ``other``) gets at least `CLASS_MASS`: the class with the most.
    3. The entropy is at least `DIFFUSE_SHARE` of the maximum: ``diffuse``.
    4. ``mixed``.

    The thresholds of 2 and 3 are ours; Clark et al. label heads by inspection. In short texts, special tokens
    and punctuation receive much of even uniform attention, so compare with their share of the tokens.
    """
    return tuple(_label(layer, head, special_N) for head in range(layer.heads))


def _label(layer: LayerStatistics, head: int, special_N: NDArray[np.bool_]) -> HeadLabel:
    offset, share = positional(layer.edges_keys_HNk[head, :, 0])
    mass_X = layer.classes_HX[head, : CLASSES.index("other")]
    entropy = float(layer.entropy_share_HN[head].mean())
    most = int(mass_X.argmax())
    if share >= POSITIONAL_SHARE and len(layer) > 1:
        label, decided = OFFSET_LABELS.get(offset, "offset"), share
    elif mass_X[most] >= CLASS_MASS:
        label, decided = CLASSES[most], float(mass_X[most])
    elif entropy >= DIFFUSE_SHARE:
        label, decided = "diffuse", entropy
    else:
        label, decided = "mixed", float(mass_X[most])
    counted_N = ~special_N if not special_N.all() else np.ones_like(special_N)
    confidence = float(layer.edges_HNk[head, counted_N, 0].mean())
    return HeadLabel(label, decided, offset, share, confidence)


def positional(strongest_N: NDArray[np.int32] | Sequence[int]) -> tuple[int, float]:
    """The most frequent distance from a query to its top key, and the share of queries that have it.

    The share is relative to the queries that have a token at that distance, if these are at least half of
    all: the first token, for example, has no previous token.
    """
    keys_N = np.asarray(strongest_N, dtype=np.int64)
    length = len(keys_N)
    offsets, counts = np.unique(keys_N - np.arange(length), return_counts=True)
    possible = np.maximum(length - np.abs(offsets), (length + 1) // 2)
    shares = counts / possible
    best = int(shares.argmax())
    return int(offsets[best]), float(shares[best])
