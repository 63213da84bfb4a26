"""Distances between heads on one text, the most similar heads of two models, and attention within a pair.

Axes: A heads of the first text; B heads of the second; G groups of tokens.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.progress import Watch, unwatched
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import Tick
from unmask.interpret.attention.rows import LayerRows
from unmask.interpret.words.alignment import align

PRODUCTS = 1_000_000_000
"""Pairs of weights that are compared at most; more queries than that allows are sampled. A few seconds."""

CELLS = 1 << 22
"""Weights that are held at most: 16 MB in float32 for each model."""

PAIRS_AT_ONCE = 1 << 20

Head = tuple[int, int]
"""Layer and head."""


class Grouped(NamedTuple):
    """A text and the group that each of its tokens is of."""

    cache: ActivationCache
    groups_N: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Jensen-Shannon divergence between heads, mean over queries, in nats: 0 is equal, ln 2 is disjoint."""

    heads_a: tuple[Head, ...]
    """(A,)."""
    heads_b: tuple[Head, ...]
    """(B,)."""
    divergence: NDArray[np.float64]
    """(A, B)."""
    queries: int
    """Number of queries used; in long texts, an evenly spaced sample."""
    of: int
    """How many there are."""


@dataclass(frozen=True)
class HeadMatch:
    """A head of one model and its match in another."""

    a: Head
    b: Head
    divergence: float


def head_distances(
    cache: ActivationCache, *, smoothing: float = 0.0, watch: Watch | None = None
) -> HeadDistances:
    """Divergence of every two heads of a model on one text.

    Clark et al. 2019 add 0.001 to every weight first (``smoothing``). The divergence needs none, being finite
    without, and over thousands of keys so much added drowns the weights; so the default adds nothing.

    Args:
        cache: the activation cache of the text.
        smoothing: added to every weight before rows are made to sum to 1 again.
        watch: called after each block of rows read and each block of heads compared.

    Raises:
        InvalidRequest: ``smoothing`` is negative or not finite.
        Cancelled: ``watch`` stopped the work.
    """
    whole = Grouped(cache, np.arange(len(cache)))
    return _distances(whole, None, len(cache), smoothing, watch)


def compare_heads(
    a: ActivationCache, b: ActivationCache, *, smoothing: float = 0.0, watch: Watch | None = None
) -> HeadDistances:
    """Divergence of every head of one model from every head of another on one text.

    If the two have different tokens, they are compared on the finest spans of the text that both share
    (`unmask.interpret.words.alignment`): attention to the tokens of a span is summed, and attention from them
    is averaged, as Clark et al. do for words. Text that only one of them has tokens for forms one more span,
    which only receives attention.

    Raises:
        InvalidRequest: the activation caches are of different texts.
        Cancelled: ``watch`` stopped the work.
    """
    groups_a, groups_b, count = align(a.encoding, b.encoding).groups()
    return _distances(Grouped(a, groups_a), Grouped(b, groups_b), count, smoothing, watch)


def match_heads(distances: HeadDistances) -> tuple[HeadMatch, ...]:
    """Pairs of heads, each head once, of the least divergence in sum; as many as the smaller model has.

    By the Hungarian method; in the order of the first model's heads.
    """
    cost = distances.divergence
    if cost.shape[0] <= cost.shape[1]:
        pairs = list(enumerate(assign(cost).tolist()))
    else:
        pairs = sorted((a, b) for b, a in enumerate(assign(cost.T).tolist()))
    return tuple(HeadMatch(distances.heads_a[a], distances.heads_b[b], float(cost[a, b])) for a, b in pairs)


def _distances(
    a: Grouped, b: Grouped | None, count: int, smoothing: float, watch: Watch | None
) -> HeadDistances:
    if not 0 <= smoothing < np.inf:
        raise InvalidRequest(f"smoothing is {smoothing}; it must be at least 0")
    watched = watch or unwatched
    asking = np.intersect1d(a.groups_N, (b or a).groups_N)
    if b is not None and len(asking) > 1 and asking[-1] == count - 1:
        asking = asking[:-1]  # what has no counterpart asks nothing
    heads_a, heads_b = _heads(a.cache), _heads((b or a).cache)
    chosen = asking[evenly(len(asking), _queries(len(heads_a), len(heads_b), count))]
    layers = [of.cache.layer_count for of in (a, b) if of is not None]

    def tick(done: int) -> None:
        watched("reading heads", done, sum(layers))

    p_ARG = grouped_weights(a, chosen, count, smoothing, tick)
    p_BRG = p_ARG
    if b is not None:
        p_BRG = grouped_weights(b, chosen, count, smoothing, lambda done: tick(layers[0] + done))
    tick(sum(layers))
    divergence = _divergence(p_ARG, p_BRG, b is None, watched)
    return HeadDistances(heads_a, heads_b, divergence, len(chosen), len(asking))


def _queries(heads_a: int, heads_b: int, groups: int) -> int:
    by_memory, by_time = CELLS // (max(heads_a, heads_b) * groups), PRODUCTS // (heads_a * heads_b * groups)
    return max(1, min(by_memory, by_time))


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of ``count`` places, evenly spaced."""
    if count <= most:
        return np.arange(count)
    return ((np.arange(most) + 0.5) * count // most).astype(np.int64)


def _heads(cache: ActivationCache) -> tuple[Head, ...]:
    return tuple((layer, head) for layer in range(cache.layer_count) for head in range(cache.heads(layer)))


@torch.no_grad()
def grouped_weights(
    of: Grouped, chosen_R: NDArray[np.int64], count: int, smoothing: float, tick: Tick
) -> Tensor:
    """Attention of some groups to all groups, every head: (A, R, G), rows sum to 1.

    ``tick`` is called after every block of rows with the number of finished layers.
    """
    cache, groups_N = of
    row_of_group = np.full(count, -1)
    row_of_group[chosen_R] = np.arange(len(chosen_R))
    row_N = row_of_group[groups_N]
    sizes_R = torch.from_numpy(np.bincount(row_N[row_N >= 0], minlength=len(chosen_R)))
    tokens = np.flatnonzero(row_N >= 0)
    breaks = [0, *(np.flatnonzero(np.diff(tokens) > 1) + 1).tolist(), len(tokens)]
    runs = [slice(int(tokens[first]), int(tokens[end - 1]) + 1) for first, end in pairwise(breaks)]
    columns_N, rows_N = torch.from_numpy(groups_N), torch.from_numpy(row_N)
    parts = []
    for layer in range(cache.layer_count):
        rows = LayerRows(cache, layer)
        p_HRG = torch.zeros(rows.heads, len(chosen_R), count)
        for run in runs:
            for block in rows.blocks(rows=run):
                p_HRC = block.p_HRC.float().cpu()
                grouped_HRG = p_HRC.new_zeros(*p_HRC.shape[:2], count)
                grouped_HRG.index_add_(2, columns_N[block.first_column : block.end_column], p_HRC)
                p_HRG.index_add_(1, rows_N[block.first_row : block.end_row], grouped_HRG)
                tick(layer)
        parts.append(p_HRG.div_(sizes_R[:, None]))
    p_ARG = torch.cat(parts).add_(smoothing)
    return p_ARG.div_(p_ARG.sum(-1, keepdim=True))


def _divergence(p_ARG: Tensor, p_BRG: Tensor, same: bool, watch: Watch) -> NDArray[np.float64]:
    """``H((p + q) / 2) - (H(p) + H(q)) / 2`` of every pair, mean over queries, (A, B)."""
    entropy_A, entropy_B = (_entropy(p) for p in (p_ARG, p_BRG))
    divergence_AB = np.zeros((len(p_ARG), len(p_BRG)))
    at_once = max(1, PAIRS_AT_ONCE // p_ARG[0].numel())
    for a in range(len(p_ARG)):
        for first in range(a + 1 if same else 0, len(p_BRG), at_once):
            some = slice(first, first + at_once)
            mixed_B = _entropy((p_ARG[a] + p_BRG[some]).div_(2))
            divergence_AB[a, some] = (mixed_B - (entropy_A[a] + entropy_B[some]) / 2).clamp(min=0).numpy()
            watch("comparing heads", a, len(p_ARG))
        watch("comparing heads", a + 1, len(p_ARG))
    return divergence_AB + divergence_AB.T if same else divergence_AB


def _entropy(p_BRG: Tensor) -> Tensor:
    """Mean over rows, (B,), float64."""
    entropy_B: Tensor = torch.special.entr(p_BRG).sum(-1).double().mean(-1)
    return entropy_B


def assign(cost_RC: NDArray[np.float64]) -> NDArray[np.int64]:
    """A column for every row of a matrix with R <= C, each column once, at the least total cost: (R,).

    Shortest augmenting paths with potentials (Kuhn 1955, in the form of Jonker & Volgenant 1987): R times at
    most R steps over C columns.

    Raises:
        NonFiniteResult: a cost is infinite or not a number.
    """
    rows, columns = cost_RC.shape
    assert rows <= columns
    if not np.isfinite(cost_RC).all():
        raise NonFiniteResult("a cost to pair by is not finite")
    row_of_C = np.full(columns + 1, -1)  # the last column is where each path begins
    of_row_R, of_column_C = np.zeros(rows), np.zeros(columns + 1)
    for row in range(rows):
        row_of_C[columns], at = row, columns
        least_C, before_C = np.full(columns, np.inf), np.full(columns, columns)
        visited_C = np.zeros(columns + 1, dtype=np.bool_)
        while row_of_C[at] >= 0:
            visited_C[at] = True
            here = row_of_C[at]
            open_C = ~visited_C[:columns]
            reduced_C = cost_RC[here] - of_row_R[here] - of_column_C[:columns]
            nearer_C = open_C & (reduced_C < least_C)
            least_C[nearer_C], before_C[nearer_C] = reduced_C[nearer_C], at
            nearest = int(np.where(open_C, least_C, np.inf).argmin())
            step = least_C[nearest]
            of_row_R[row_of_C[visited_C]] += step
            of_column_C[visited_C] -= step
            least_C[open_C] -= step
            at = nearest
        while at != columns:
            row_of_C[at] = row_of_C[before_C[at]]
            at = before_C[at]
    column_of_R = np.zeros(rows, dtype=np.int64)
    paired_C = np.flatnonzero(row_of_C[:columns] >= 0)
    column_of_R[row_of_C[paired_C]] = paired_C
    return column_of_R


def segment_attention(cache: ActivationCache, *, watch: Watch | None = None) -> NDArray[np.float64]:
    """How much each text of a pair attends to itself, to the other and to special tokens: (L, H, 2, 3).

    The third axis is the text that attends, the fourth what it attends to: the first text, the second,
    special tokens, which belong to neither text. A row is the mean over the tokens of a text and sums to 1;
    it is 0 where a layer has no such head.

    Raises:
        InvalidRequest: the text is not a pair, or one of its texts has no token left.
        Cancelled: ``watch`` stopped the work.
    """
    encoding, watched, layers = cache.encoding, watch or unwatched, cache.layer_count
    if encoding.pair is None:
        raise InvalidRequest("this is a single text; attention between two texts is that of a pair")
    groups_N = np.where(encoding.special, 2, encoding.sequence_ids == 1)
    for text, name in enumerate(("first", "second")):
        if not (groups_N == text).any():
            raise InvalidRequest(f"the {name} text has no token left; truncate less, or give shorter texts")
    heads = [cache.heads(layer) for layer in range(layers)]
    chosen = np.array([0, 1])
    weights = grouped_weights(
        Grouped(cache, groups_N), chosen, 3, 0.0, lambda done: watched("reading heads", done, layers)
    )
    watched("reading heads", layers, layers)
    return by_layer(weights.double(), heads)


def by_layer(values_A: Tensor, heads: list[int]) -> NDArray[np.float64]:
    """Values of heads, (A, ...) to (L, H, ...), 0 where a layer has fewer heads."""
    values_LH = np.zeros((len(heads), max(heads), *values_A.shape[1:]))
    for layer, part in enumerate(torch.split(values_A, heads)):
        values_LH[layer, : heads[layer]] = part.cpu().numpy()
    return values_LH
