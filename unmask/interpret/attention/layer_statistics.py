"""Attention statistics of one layer on one text as arrays, and what they say of a head. Free of torch.

Axes: A heads, of one layer or of several texts.
"""

import math
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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

CLASSES = ("self", "previous", "next", "first", "special", "punctuation", "repeat", "other")
"""Classes of keys: by relation to the query (the same token, the previous, the next, an occurrence of the
same token elsewhere), or by kind (the first token of the sequence, a special token other than the first,
punctuation). Special tokens repeat nothing. A key may be in several classes; it is in ``other`` if it is in
none."""

BEYOND = ("self", "previous", "next", "first", "punctuation", "repeat")
"""Classes of keys that are not set aside, see `set_aside`; ``first`` is one where the first token is not
special."""


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Every head of one layer on one text of N tokens; no array has N x N of anything.

    ``p_ij`` is the attention from query i to key j; rows of ``p`` sum to 1. With attention sinks they sum to
    1 minus `to_sink_HN`, and what is added up from them to less than 1 as well; entropies and distances are
    then those of the attention divided by its sum. ``n_j`` is the norm of the contribution of key j, see
    `unmask.interpret.attention.rows.value_norms`; ``w_ij = p_ij n_j / sum_j p_ij n_j`` is the norm-weighted
    map, on the same scale as ``p`` (all 0 in a row where every norm is 0).
    """

    kind: "Kind"
    heads: int
    lse_HN: NDArray[np.float64]
    """Logarithm of the sum of exponentials of a query's scores, the head's attention sink among them; for
    linear attention, of its weights' sum."""
    to_sink_HN: Floats
    """The part of each query's attention that the head's attention sink takes; 0 without sinks."""
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
    special_HN: Floats
    """Attention of each query to the tokens that are set aside, see `set_aside`."""
    beyond_HX: Floats
    """Of the attention between tokens that are not set aside, the share of each class of `BEYOND`."""
    beyond_entropy_H: Floats
    """Entropy of that attention, divided by its sum for each query, as a share of the largest one; mean over
    queries, each counted by how much it gives to tokens that are not set aside."""
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


def profile_edges(length: int) -> NDArray[np.int64]:
    """Edges of bins of distance for a text of that many tokens: 0, 1, 2, 3, 5, 9, 17 ..."""
    bins = 2 if length <= 2 else 2 + math.ceil(math.log2(length - 1))
    return np.array([0, *(1 + (1 << bin_) // 2 for bin_ in range(bins))], dtype=np.int64)[: bins + 1]


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


LABELS = (
    *("self", "previous", "next", "offset", "first", "special", "punctuation", "repeat", "diffuse", "mixed"),
)
"""Labels of heads: by the relative position of the top key (the token itself, the previous, the next, or one
at another fixed distance), by the class of the keys, diffuse, or none of these."""

POSITIONAL_SHARE = 0.9
"""Minimum share of queries whose top key is at one distance, for a positional head (Voita et al. 2019)."""

CLASS_MASS = 0.5
"""Minimum share of the attention that one class of keys gets, for a head to be labeled with it."""

DIFFUSE_SHARE = 0.8
"""Minimum mean entropy, as a share of the maximum, for a head without a class label to be diffuse."""

REST = 0.1
"""Minimum share of the attention that does not go to special tokens, for a head to be named by it."""

RESTING = ("first", "special")
"""Labels of heads that do nothing that has a name but attend to special tokens."""

OFFSET_LABELS = {0: "self", -1: "previous", 1: "next"}
"""Labels of heads by the most frequent distance of the top key."""


@dataclass(frozen=True)
class HeadLabel:
    """The label of a head on one text, with the values behind it. Another text may give another label."""

    label: str
    """One of `LABELS`."""
    share: float
    """The deciding value: the share of queries, the share of the class or the entropy share; for ``mixed``,
    the largest share, which was below the threshold. For ``first`` and ``special``, the mean attention."""
    special: float
    """Mean attention to special tokens of the queries that are not special: how much of a head is a sink."""
    offset: int
    """The most frequent distance of the top key, special tokens not counted: key minus query."""
    offset_share: float
    """Share of queries with that distance, among those that have a key there."""
    confidence: float
    """Mean of the largest weight over queries that are not special tokens (Voita et al. 2019, who leave out
    the end of the sentence)."""


def set_aside(special_N: Marks) -> Marks:
    """The tokens that a head is named without: special ones, unless fewer than two others would be left."""
    return special_N if (~special_N).sum() > 1 else np.zeros_like(special_N)


@dataclass(frozen=True, eq=False)
class BeyondSpecial:
    """What names are decided by, of any number of heads A on texts of M tokens that are not set aside."""

    top_AM: NDArray[np.int64]
    """The key with most attention of each query, counted among the M tokens; -1 where it is not known."""
    given_AM: NDArray[np.float64]
    """How much each query gives to the M tokens."""
    shares_AX: NDArray[np.float64]
    """See `LayerStatistics.beyond_HX`."""
    entropy_A: NDArray[np.float64]
    """See `LayerStatistics.beyond_entropy_H`."""
    special_A2: NDArray[np.float64]
    """Mean attention of all queries to the first token, 0 if it is not set aside, and to the others that
    are."""
    to_sink_A: NDArray[np.float64] | float = 0.0
    """Mean over the M tokens of what the head's attention sink takes, which goes to no token."""

    def named(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Numbers of labels, the deciding values, offsets and their shares, (A,) each; see `label_heads`."""
        offset_A, positional_A = positional(self.top_AM, self.given_AM)
        itself_A, repeat_A = (self.shares_AX[:, BEYOND.index(name)] for name in ("self", "repeat"))
        same_A = itself_A + repeat_A
        # Without a repeated token, a head that looks for the same token finds but the token itself.
        shares_AX = self.shares_AX.copy()
        shares_AX[:, BEYOND.index("self")] = np.where(repeat_A < itself_A, same_A, 0)
        shares_AX[:, BEYOND.index("repeat")] = np.where(repeat_A < itself_A, 0, same_A)
        rest_A, most_A = self.given_AM.mean(-1) + self.to_sink_A, np.minimum(shares_AX.max(-1), 1)
        is_positional_A = (positional_A >= POSITIONAL_SHARE) & (self.top_AM.shape[-1] > 1)
        by_offset_A = np.full(offset_A.shape, LABELS.index("offset"))
        for offset, label in OFFSET_LABELS.items():
            by_offset_A[offset_A == offset] = LABELS.index(label)
        by_class_A = np.array([LABELS.index(name) for name in BEYOND])[shares_AX.argmax(-1)]
        by_special_A = np.array([LABELS.index(name) for name in RESTING])[self.special_A2.argmax(-1)]
        special_A = self.special_A2.max(-1)
        every = np.ones_like(is_positional_A)
        rules = (
            (rest_A < REST, by_special_A, special_A),
            (is_positional_A, by_offset_A, positional_A),
            (most_A >= CLASS_MASS, by_class_A, most_A),
            (1 - rest_A >= CLASS_MASS, by_special_A, special_A),
            (self.entropy_A >= DIFFUSE_SHARE, every * LABELS.index("diffuse"), self.entropy_A),
            (every, every * LABELS.index("mixed"), most_A),
        )
        holds, labels, values = zip(*rules, strict=True)
        return np.select(holds, labels), np.select(holds, values), offset_A, positional_A


def label_heads(layer: LayerStatistics, special_N: Marks) -> tuple[HeadLabel, ...]:
    """A label for every head of a layer, by what it does beyond special tokens: the first rule that holds.

    Rules 2, 3, 5 and 6 are about the attention between tokens that are not special, whose sum counts as 1: a
    head that finds the same word and otherwise rests on [CLS] is called by the word. A text with fewer than
    two such tokens is taken as a whole. What attention sinks take is left out of every rule.

    1. Less than `REST` of the attention of these tokens stays among them: ``first`` or ``special``, whichever
       gets more.
    2. At least `POSITIONAL_SHARE` of the top keys are at one distance: ``self``, ``previous``, ``next``
       or ``offset``. A query counts by how much it gives to tokens that are not special.
    3. One class of keys of `BEYOND` gets at least `CLASS_MASS`: the class with the most. The token itself and
       its other occurrences are counted together, and named by those that get more.
    4. Special tokens get at least `CLASS_MASS`: as 1.
    5. The entropy is at least `DIFFUSE_SHARE` of the maximum: ``diffuse``.
    6. ``mixed``.

    The thresholds of all but 2 are ours; Clark et al. label heads by inspection. In short texts, punctuation
    and repeated tokens receive much of even uniform attention, so compare with their share of the tokens.
    """
    aside_N = set_aside(special_N)
    number_N = np.where(aside_N, -1, np.cumsum(~aside_N) - 1)
    top_HNk = number_N[layer.edges_keys_HNk]
    # The largest edge to a key that is not set aside; edges are sorted.
    place_HN1 = (top_HNk >= 0).argmax(-1)[..., None]
    first, special = (layer.classes_HX[:, CLASSES.index(name)] for name in ("first", "special"))
    special_HM, to_sink_HM = (
        x_HN[:, ~aside_N].astype(np.float64) for x_HN in (layer.special_HN, layer.to_sink_HN)
    )
    given_HM = np.maximum(1 - to_sink_HM - special_HM, 0)
    beyond = BeyondSpecial(
        top_AM=np.take_along_axis(top_HNk, place_HN1, -1)[:, ~aside_N, 0],
        given_AM=given_HM,
        shares_AX=layer.beyond_HX.astype(np.float64),
        entropy_A=layer.beyond_entropy_H.astype(np.float64),
        special_A2=np.stack([first if aside_N[0] else np.zeros_like(first), special], -1).astype(np.float64),
        to_sink_A=to_sink_HM.mean(-1),
    )
    counted_N = ~special_N if not special_N.all() else np.ones_like(special_N)
    confidence_H = layer.edges_HNk[:, counted_N, 0].mean(-1)
    columns = (*beyond.named(), 1 - (given_HM + to_sink_HM).mean(-1), confidence_H)
    return tuple(
        HeadLabel(LABELS[label], share, special, offset, offset_share, confidence)
        for label, share, offset, offset_share, special, confidence in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )


def positional(
    top_AM: NDArray[np.integer[Any]], counts_AM: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The most frequent distance from a query to its top key, and the share of queries that have it, (A,).

    The share is relative to the queries that have a token at that distance, if these are at least half of
    all: the first token, for example, has no previous token. Queries count by ``counts_AM``.
    """
    rows, length = top_AM.shape
    offset_AM = np.arange(rows)[:, None] * (2 * length - 1) + top_AM - np.arange(length) + length - 1
    counted_AM = np.where(top_AM >= 0, counts_AM, 0)
    hits_AO = np.bincount(
        np.where(top_AM >= 0, offset_AM, 0).ravel(), counted_AM.ravel(), rows * (2 * length - 1)
    ).reshape(rows, -1)
    until_AM = np.cumsum(np.pad(counts_AM, ((0, 0), (1, 0))), -1)
    offset_O = np.arange(2 * length - 1) - (length - 1)
    first_O, end_O = np.maximum(-offset_O, 0), length - np.maximum(offset_O, 0)
    possible_AO = np.maximum(until_AM[:, end_O] - until_AM[:, first_O], until_AM[:, -1:] / 2)
    share_AO = np.divide(hits_AO, possible_AO, out=np.zeros_like(hits_AO), where=possible_AO > 0)
    best_A = share_AO.argmax(-1)
    return offset_O[best_A], np.minimum(share_AO.max(-1), 1)
