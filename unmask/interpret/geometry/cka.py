"""Similarity of layers: linear CKA of their states on the same tokens, and of their weights.

Axes: P is the whole text (0) and the text without each block; F features of a matrix; M sets of weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.base.intervals import NORMAL_95
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.encoder.layers.attention import SharedProjection, SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.encoder.layers.lora import weight_of
from unmask.encoder.layers.parts import (
    ExpertNetwork,
    GatedNetwork,
    GroupedLinear,
    PlainNetwork,
    StackedNetwork,
)
from unmask.encoder.layers.positions import DistanceProjections
from unmask.errors import InvalidRequest
from unmask.interpret.geometry.values import (
    BLOCKS,
    FloatArray,
    as_points,
    blocks_of,
    generator,
    sample,
    with_interval,
)

MOST_ROWS = 2048
FEWEST_ROWS = 30


@dataclass(frozen=True)
class Cka:
    """CKA of every layer of a with every layer of b, on the same rows. Arrays are (A, B), float64."""

    debiased: NDArray[np.float64]
    """CKA from the unbiased estimate of HSIC: about 0 for unrelated layers; can be negative."""
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    """The 95 % interval of ``debiased``, from leaving out one of ten runs of consecutive rows at a time."""
    biased: NDArray[np.float64]
    """CKA as first published; with fewer rows than dimensions it is high even for unrelated layers."""
    shuffled: NDArray[np.float64]
    """``debiased`` after shuffling the rows of b: the baseline for unrelated layers."""
    shuffled_biased: NDArray[np.float64]
    n: int
    """Number of rows measured."""
    rows: int
    """Number of rows given."""


def cka(
    states_a: Sequence[object],
    states_b: Sequence[object] | None = None,
    *,
    points: int = MOST_ROWS,
    seed: int = 0,
    watch: Watch = unwatched,
) -> Cka:
    """Linear CKA of layers (Kornblith et al. 2019), and its debiased version (Nguyen et al. 2021).

    It is ||Y^T X||^2 / (||X^T X|| ||Y^T Y||) of centered rows. The debiased version replaces each norm by the
    HSIC estimate of Song et al. 2012, which for a linear kernel is computed from D x D products and sums over
    rows, without an N x N array.

    Args:
        states_a: arrays (N, D), one per layer.
        states_b: arrays (N, E) of the same N rows; None compares the layers of a with each other.
        points: maximum number of rows measured; more are subsampled.
        seed: random seed of the sample and the shuffle.
        watch: called as ``watch("cka", layers of a done, layers)``, before each pair of layers.

    Raises:
        InvalidRequest: there are fewer than 30 rows, numbers of rows differ, or all rows of a layer are
            equal.
    """
    a = [as_points(states, f"the states of layer {layer}") for layer, states in enumerate(states_a)]
    b = a
    if states_b is not None:
        b = [as_points(states, f"the states of layer {layer}") for layer, states in enumerate(states_b)]
    rows = _rows(a, b)
    some = sample(rows, points, seed)
    shuffle = generator(seed).permutation(len(some))
    layers_a = [_Layer.of(x_ND[some]) for x_ND in a]
    layers_b = layers_a if b is a else [_Layer.of(x_ND[some]) for x_ND in b]
    for side in (layers_a, layers_b):
        for layer, measured in enumerate(side):
            if measured.alone <= 0 or measured.unbiased_P[0] <= 0:
                raise InvalidRequest(f"in layer {layer} all rows are the same vector, so CKA has no value")
    values = np.zeros((6, len(layers_a), len(layers_b)))
    for i, first in enumerate(layers_a):
        for j, second in enumerate(layers_b):
            watch("cka", i, len(layers_a))
            if layers_a is layers_b and j < i:
                values[:4, i, j] = values[:4, j, i]  # CKA is symmetric; the shuffled one only in expectation
                values[4:, i, j] = values[4:, j, i]
            else:
                values[:4, i, j] = _pair(first, second)
                values[4:, i, j] = _unrelated(first, second, shuffle)
    watch("cka", len(layers_a), len(layers_a))
    debiased, low, high, biased, shuffled, shuffled_biased = values
    return Cka(debiased, low, high, biased, shuffled, shuffled_biased, len(some), rows)


def _rows(a: Sequence[FloatArray], b: Sequence[FloatArray]) -> int:
    counts = {len(x_ND) for x_ND in (*a, *b)}
    if len(counts) != 1:
        numbers = " and ".join(map(str, sorted(counts))) or "no"
        raise InvalidRequest(
            f"layers have {numbers} rows; CKA compares the same rows, so give the same tokens for each layer"
        )
    (rows,) = counts
    if rows < FEWEST_ROWS:
        raise InvalidRequest(
            f"CKA needs at least {FEWEST_ROWS} rows (tokens or words), and there are {rows}; "
            "use a longer text"
        )
    return rows


@dataclass(frozen=True, eq=False)
class _Layer:
    """Centered rows, and precomputed sums for products of kernels."""

    x_ND: FloatArray
    diagonal_N: FloatArray
    """Squared norms of rows: the diagonal of the kernel."""
    rows_NP: FloatArray
    """Row sums of the kernel over the kept rows, without the diagonal; 0 for rows left out."""
    alone: float
    """||X^T X||^2."""
    unbiased_P: FloatArray

    @classmethod
    def of(cls, x_ND: FloatArray) -> "_Layer":
        y_ND = x_ND - x_ND.mean(0)
        size = np.sqrt((y_ND**2).sum(1).mean())
        y_ND = y_ND / size if size > 0 else y_ND
        diagonal_N, mask_NP = (y_ND**2).sum(1), _subsets(len(y_ND))
        rows_NP = (y_ND @ (y_ND.T @ mask_NP) - diagonal_N[:, None]) * mask_NP
        bare = cls(y_ND, diagonal_N, rows_NP, 0.0, np.empty(0))
        products_P = _products(y_ND, y_ND)
        return cls(y_ND, diagonal_N, rows_NP, float(products_P[0]), _unbiased(products_P, bare, bare))


def _subsets(n: int) -> FloatArray:
    """(N, P), 1 where a row is kept: first all rows, then all but each block."""
    mask_NP = np.ones((n, BLOCKS + 1))
    mask_NP[np.arange(n), blocks_of(n) + 1] = 0
    return mask_NP


def _products(x_ND: FloatArray, y_NE: FloatArray) -> FloatArray:
    """||X^T Y||^2 with all rows and without each block, (P,)."""
    blocks_N = blocks_of(len(x_ND))
    products = [x_ND[blocks_N == g].T @ y_NE[blocks_N == g] for g in range(BLOCKS)]
    whole_DE = np.sum(products, axis=0)
    return np.array([(whole_DE**2).sum(), *(((whole_DE - block_DE) ** 2).sum() for block_DE in products)])


def _unbiased(products_P: FloatArray, a: _Layer, b: _Layer) -> FloatArray:
    """HSIC_1 of Song et al. 2012, with linear kernels whose diagonals are set to 0, (P,).

    [tr(K L) + (1'K1)(1'L1) / ((n-1)(n-2)) - 2 (1'KL1) / (n-2)] / (n (n-3)), where tr(K L) is the sum of
    squares of X^T Y minus the diagonal terms, and row i of K sums to x_i . sum(x) - |x_i|^2.
    It is invariant to translation, so leaving out a block needs no new centering.
    """
    mask_NP = _subsets(len(a.diagonal_N))
    n_P = mask_NP.sum(0)
    trace_P = products_P - (a.diagonal_N * b.diagonal_N) @ mask_NP
    corner_P = a.rows_NP.sum(0) * b.rows_NP.sum(0) / ((n_P - 1) * (n_P - 2))
    cross_P = (a.rows_NP * b.rows_NP).sum(0)
    return np.asarray((trace_P + corner_P - 2 * cross_P / (n_P - 2)) / (n_P * (n_P - 3)))


def _pair(a: _Layer, b: _Layer) -> tuple[float, float, float, float]:
    """Debiased CKA, the bounds of its interval, and CKA as first published."""
    products_P = _products(a.x_ND, b.x_ND)
    alone_P = a.unbiased_P * b.unbiased_P
    value_P = _unbiased(products_P, a, b) / np.sqrt(np.maximum(alone_P, 1e-9 * alone_P[0]))
    estimate = with_interval(float(value_P[0]), value_P[1:].tolist(), len(a.x_ND))
    assert estimate.low is not None
    assert estimate.high is not None
    return float(value_P[0]), estimate.low, estimate.high, float(products_P[0] / np.sqrt(a.alone * b.alone))


def _unrelated(a: _Layer, b: _Layer, order: NDArray[np.int64]) -> tuple[float, float]:
    """Both kinds of CKA with the rows of b in another order."""
    # Only sums over all rows are needed, and those of b do not depend on the order.
    moved = replace(b, x_ND=b.x_ND[order], diagonal_N=b.diagonal_N[order], rows_NP=b.rows_NP[order])
    products_P = np.full(BLOCKS + 1, float(((a.x_ND.T @ moved.x_ND) ** 2).sum()))
    unbiased = float(_unbiased(products_P, a, moved)[0])
    debiased = unbiased / float(np.sqrt(a.unbiased_P[0] * b.unbiased_P[0]))
    return debiased, float(products_P[0] / np.sqrt(a.alone * b.alone))


# --- weights -----------------------------------------------------------------------------------------

FEWEST_DIMENSIONS = 4
ROUNDING = 1e-6
NUMBERS_AT_ONCE = 1 << 20
"""Of a matrix that are summed at a time in float64."""


@dataclass(frozen=True)
class WeightSimilarity:
    """How similar one matrix is in every two layers that have it in the same shape.

    Two matrices of independent entries have an expected ``cosine`` and ``cka`` of 0, whatever their shape.
    """

    name: str
    """Such as ``query`` or ``feed-forward out``."""
    features: int
    """F: the rows of a matrix that reads the residual stream, the columns of one that writes to it."""
    width: int
    """D, of the residual stream."""
    layers: tuple[int, ...]
    """The layers compared, in the order of the rows and columns of both tables."""
    cosine: tuple[tuple[float, ...], ...]
    """Of all entries: also 0 where the features of one layer are those of the other in another order."""
    cka: tuple[tuple[float, ...], ...]
    """Debiased linear CKA with the dimensions of the residual stream as rows: features may be permuted or
    rotated, and so may heads. 1 for equal up to that and to scale."""
    random_cosine: float
    """Of two matrices of independent normal entries, 95 % are between this and minus this."""
    random_cka: float
    """The same for ``cka``."""


@torch.no_grad()
def weight_similarity(encoder: Encoder) -> tuple[WeightSimilarity, ...]:
    """How similar each matrix is between the layers of an encoder; biases and norms are not compared.

    Layers that share their weights have exactly 1. The weights are those that the encoder computes with,
    including updates of adapters, but not the scales of norms before them.

    Args:
        encoder: a plain module, such as ``model.trainable_encoder(replace=False)``.

    Raises:
        InvalidRequest: the encoder is optimized for inference or narrower than four, no two layers have a
            matrix of the same shape, or a matrix is zero or orthogonal.
    """
    narrowest = min(layer.inner_width(encoder.spec.width) for layer in encoder.spec.layers)
    if narrowest < FEWEST_DIMENSIONS:
        raise InvalidRequest(
            f"the encoder's width is {narrowest}; weights are compared from {FEWEST_DIMENSIONS} on"
        )
    weights_of = encoder.spec.weights_of_layer
    found: dict[tuple[str, torch.Size], dict[int, Tensor]] = {}
    for number, block in enumerate(encoder.layers):
        for name, matrix_FD in _matrices(cast("Block", block)):
            found.setdefault((name, matrix_FD.shape), {})[number] = matrix_FD
    result = []
    for (name, (features, width)), of_weights in found.items():
        layers = tuple(layer for layer, weights in enumerate(weights_of) if weights in of_weights)
        if len(layers) < 2:
            continue
        places = [list(of_weights).index(weights_of[layer]) for layer in layers]
        matrices = list(of_weights.values())
        similar, cosine = (
            tuple(tuple(float(row[place]) for place in places) for row in table_MM[places])
            for table_MM in (_weight_cka(name, matrices), _cosines(matrices))
        )
        result.append(
            WeightSimilarity(
                name, features, width, layers, cosine, similar,
                random_cosine=NORMAL_95 / sqrt(features * width),
                random_cka=NORMAL_95 * sqrt(2 / (width * (width - 3))),
            )
        )  # fmt: skip
    if not result:
        raise InvalidRequest("no two layers have a matrix of the same shape, so there is nothing to compare")
    return tuple(result)


def _matrices(block: Block) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a layer by name, each (F, D) with the residual stream, or narrow states, last."""
    mixer = block.attention
    if not isinstance(mixer.out, nn.Linear):
        raise InvalidRequest(
            "this module is optimized for inference, and its weights have another layout; give "
            "model.trainable_encoder(replace=False)"
        )
    if block.bottleneck is not None:
        yield "bottleneck in", weight_of(block.bottleneck.inner)
        yield "bottleneck out", weight_of(block.bottleneck.outer).T
    if block.gate is not None:
        yield "gate in", weight_of(block.gate.inner)
        yield "gate out", weight_of(block.gate.outer).T
    yield from _attention_matrices(mixer)
    yield from _network_matrices(block.feedforward)


def _attention_matrices(mixer: SoftmaxMixer | LinearMixer) -> Iterator[tuple[str, Tensor]]:
    every = (mixer.spec.heads * mixer.spec.head_width,) * 3
    own = mixer.spec.qkv_widths if isinstance(mixer, SoftmaxMixer) else every
    names = ("query", "key", "value")
    if isinstance(mixer.qkv, SharedProjection):
        narrow = torch.split(weight_of(mixer.qkv.queries_keys), list(own)[:2])
        read = (*narrow, weight_of(mixer.qkv.values))
        yield "bottleneck of queries and keys", weight_of(mixer.qkv.shared)
    else:
        read = torch.split(weight_of(mixer.qkv), list(own))
    yield from zip(names, read, strict=True)
    yield "attention out", weight_of(mixer.out).T
    if isinstance(mixer, SoftmaxMixer):
        if mixer.globals is not None:
            parts = torch.split(weight_of(mixer.globals.qkv), list(every))
            yield from zip((f"global {name}" for name in names), parts, strict=True)
        if isinstance(mixer.distances, DistanceProjections):
            for name in ("key", "query"):
                projection = getattr(mixer.distances, name)
                if projection is not None:
                    yield f"distance {name}", weight_of(projection)


def _network_matrices(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    match network:
        case PlainNetwork():
            yield "feed-forward in", _whole(network.inner)
            yield "feed-forward out", _whole(network.outer).T
        case StackedNetwork():
            for number, part in enumerate((*network.earlier, network)):
                yield f"feed-forward {number} in", _whole(part.inner)
                yield f"feed-forward {number} out", _whole(part.outer).T
        case GatedNetwork():
            yield from zip(
                ("feed-forward gate", "feed-forward in"), weight_of(network.inner).chunk(2), strict=True
            )
            yield "feed-forward out", weight_of(network.outer).T
        case ExpertNetwork():
            yield "router", network.router.weight
            yield "experts in", network.experts.inner
            yield "experts out", network.experts.outer
        case _:
            raise InvalidRequest(f"the matrices of a {type(network).__name__} cannot be compared")


def _whole(linear: nn.Linear | GroupedLinear) -> Tensor:
    """The matrix of a linear map, (outputs, inputs), with zeros between its groups."""
    return weight_of(linear) if isinstance(linear, nn.Linear) else torch.block_diag(*linear.weight).T  # type: ignore[no-untyped-call]


def _cosines(matrices: Sequence[Tensor]) -> NDArray[np.float64]:
    """The cosine of the entries of every two matrices, (M, M), summed in float64."""
    products_MM = np.zeros((len(matrices),) * 2)
    for parts in zip(*(torch.split(matrix.flatten(), NUMBERS_AT_ONCE) for matrix in matrices), strict=True):
        part_MX = torch.stack(parts).double().cpu().numpy()
        products_MM += part_MX @ part_MX.T
    return _normalized(products_MM)


def _weight_cka(name: str, matrices: Sequence[Tensor]) -> NDArray[np.float64]:
    """Debiased linear CKA of every two matrices (F, D), whose D columns are the rows compared, (M, M)."""
    centered = []
    for number, matrix_FD in enumerate(matrices):
        kernel_DD = (matrix_FD.T @ matrix_FD).double().cpu().numpy()
        centered.append(_u_centered(kernel_DD).ravel())
        if np.abs(centered[-1]).max() <= ROUNDING * np.abs(kernel_DD).max():
            raise InvalidRequest(
                f"matrix {number} of {name} is zero or orthogonal and treats all dimensions alike, so CKA "
                "has no value"
            )
    stacked = np.stack(centered)
    return _normalized(stacked @ stacked.T)


def _u_centered(kernel_DD: FloatArray) -> FloatArray:
    """The kernel whose sums of products are those of `_unbiased` (Szekely and Rizzo 2014)."""
    count = len(kernel_DD)
    bare_DD = kernel_DD - np.diag(np.diag(kernel_DD))
    sums_D = bare_DD.sum(0)
    centered_DD = bare_DD - (sums_D[:, None] + sums_D) / (count - 2)
    centered_DD += sums_D.sum() / ((count - 1) * (count - 2))
    np.fill_diagonal(centered_DD, 0)
    return np.asarray(centered_DD)


def _normalized(products_MM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Products divided by the norms of both sides; exactly 1 on the diagonal."""
    norms_M = np.sqrt(np.diag(products_MM))
    normalized_MM = products_MM / np.outer(norms_M, norms_M)
    np.fill_diagonal(normalized_MM, 1)
    return np.asarray(normalized_MM)
