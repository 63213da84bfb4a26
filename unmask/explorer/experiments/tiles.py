"""Attention computed otherwise: in tiles, which is exact, and by products of features, which is not."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import one_of
from unmask.encoder.layers.linear_attention import log_features, orthogonal_rows
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText, entropy_share
from unmask.kernels import Tile, allowed, scores
from unmask.spec import (
    Alibi,
    CausalAttention,
    Disentangled,
    FullAttention,
    LinearAttention,
    RelativePositionBias,
    SlidingWindow,
    SoftmaxAttention,
)

KERNEL_TILE = 64
"""Queries and keys of a tile in fast kernels, about."""
LENGTHS = (512, 2048, 8192, 32768)
BYTES = 4
"""Bytes of a float32, in which scores are usually held."""


@dataclass(frozen=True)
class Step:
    """The running state of one query after a tile of keys."""

    end_key: int
    """The keys before this index have been processed."""
    maximum: float
    """Maximum of their scores."""
    sum: float
    """Sum of exp(score - maximum) over them."""
    rescaled: float
    """The factor by which earlier sums were rescaled, exp(old maximum - new maximum); 0 at the first tile."""


@dataclass(frozen=True, eq=False)
class Tiled:
    """One head, computed at once and in tiles, in float64."""

    layer: int
    head: int
    query: int
    tile: int
    """Side of a tile, in queries and in keys."""
    steps: tuple[Step, ...]
    """The running states of the query."""
    error: float
    """Largest absolute difference between the two outputs."""
    output_size: float
    """Root mean square of the output, to compare the error with."""
    held_whole: int
    """Number of values held at once without tiles."""
    held_tiled: int
    """Number of values held at once with tiles: one tile of scores, and a maximum and a sum per query."""
    kernel_tile: int
    """Side of a tile of the size that kernels use."""
    lengths: tuple[int, ...]
    bytes_whole: tuple[int, ...]
    """Bytes of the float32 scores of one head, by length of text; counted, not measured."""
    bytes_tiled: tuple[int, ...]
    """Bytes of one tile of `kernel_tile` with the maximum, the sum and the output of each of its queries;
    independent of the length."""


def tiled(recorded: RecordedText, layer: int, head: int, query: int, *, tile: int = 8) -> Tiled:
    """Compute a head in tiles with an online softmax, and compare it with the direct computation.

    Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022.

    Raises:
        InvalidRequest: there is no such layer, head or query, or the tile is below 1.
    """
    mixer = recorded.mixer(layer)
    if not 0 <= head < mixer.heads or not 0 <= query < len(recorded) or tile < 1:
        raise InvalidRequest(
            f"head {head} (of {mixer.heads}), query {query} (of {len(recorded)}) or tile {tile} is out of "
            "range; heads and queries count from 0, and a tile has at least 1 token"
        )
    count = len(recorded)
    output, trace = np.empty((count, mixer.head_width)), []
    for first in range(0, count, tile):
        end = min(first + tile, count)
        part, steps = _rows(recorded, layer, head, (first, end), tile=tile, query=query)
        output[first:end] = part
        trace += steps
    whole = recorded.mixed(layer, recorded.probabilities(layer))[:, head].numpy()
    tile_values = tile * tile + 2 * tile
    return Tiled(
        layer,
        head,
        query,
        tile,
        tuple(trace),
        error=float(np.abs(output - whole).max()),
        output_size=float(np.sqrt((whole**2).mean())),
        held_whole=count * count,
        held_tiled=tile_values,
        kernel_tile=KERNEL_TILE,
        lengths=LENGTHS,
        bytes_whole=tuple(BYTES * length**2 for length in LENGTHS),
        bytes_tiled=tuple(BYTES * KERNEL_TILE * (KERNEL_TILE + 2 + mixer.head_width) for _ in LENGTHS),
    )


def _rows(
    recorded: RecordedText, layer: int, head: int, rows: tuple[int, int], *, tile: int, query: int
) -> tuple[NDArray[np.float64], list[Step]]:
    """The output of some queries, (R, K), and the steps of ``query`` if it is one of them."""
    mixer, bias = recorded.mixer(layer), recorded.bias(layer).of_head(head)
    q_R1K = recorded.queries[layer][rows[0] : rows[1], head : head + 1]
    maximum_R = torch.full((len(q_R1K),), -torch.inf, dtype=torch.float64)
    sum_R, mixed_RK = torch.zeros(len(q_R1K), dtype=torch.float64), torch.zeros_like(q_R1K[:, 0])
    allowed_HNN = recorded.allowed(layer)[head] if _heads_differ(recorded, layer) else None
    steps = []
    for first in range(0, len(recorded), tile):
        part = Tile(*rows, first, min(first + tile, len(recorded)))
        columns = slice(part.first_column, part.end_column)
        s_RC = scores(part, q_R1K, recorded.keys[layer][columns, head : head + 1], bias)[0]
        if allowed_HNN is not None:
            allowed_RC = allowed_HNN[rows[0] : rows[1], columns]
        else:
            whole = allowed(part, mixer.pattern, torch.device("cpu"))
            allowed_RC = torch.ones_like(s_RC, dtype=torch.bool) if whole is None else whole
        s_RC = s_RC.masked_fill(~allowed_RC, -torch.inf)
        new_R = torch.maximum(maximum_R, s_RC.amax(-1))
        # Before its first allowed key, a query has maximum -inf; 0 replaces it, since all sums are 0.
        safe_R = torch.where(new_R.isfinite(), new_R, 0.0)
        factor_R = (maximum_R - safe_R).exp()
        weight_RC = (s_RC - safe_R[:, None]).exp()
        sum_R = sum_R * factor_R + weight_RC.sum(-1)
        mixed_RK = mixed_RK * factor_R[:, None] + weight_RC @ recorded.values[layer][columns, head]
        maximum_R = new_R
        if rows[0] <= query < rows[1] and bool(new_R[query - rows[0]].isfinite()):
            row = query - rows[0]
            steps.append(Step(part.end_column, float(new_R[row]), float(sum_R[row]), float(factor_R[row])))
    return (mixed_RK / sum_R[:, None]).numpy(), steps


def _heads_differ(recorded: RecordedText, layer: int) -> bool:
    """Whether the attention pattern depends on more than the tile: random blocks, global tokens."""
    return not isinstance(recorded.mixer(layer).pattern, FullAttention | CausalAttention | SlidingWindow)


FEATURES = (8, 16, 32, 64, 128, 256, 512)
SHOWN_FEATURES = 64
DRAWS = 3


@dataclass(frozen=True, eq=False)
class Blur:
    """A softmax head on one text, and the weights of feature maps with the same queries and keys."""

    layer: int
    head: int
    exact: NDArray[np.float64]
    """(N, N): weights of the softmax."""
    elu: NDArray[np.float64]
    """(N, N): weights of the feature map elu + 1."""
    favor: NDArray[np.float64]
    """(N, N): weights of `SHOWN_FEATURES` random features."""
    variation_elu: float
    """Total variation distance from the exact row (half the sum of absolute differences), mean over queries:
    0 for equal rows, 1 for disjoint mass."""
    features: tuple[int, ...]
    variation_favor: tuple[float, ...]
    """The same distance for ``favor+`` by number of features, mean over `DRAWS` draws."""
    variation_even: float
    """The same distance for uniform attention, as a baseline."""
    entropy_share: dict[str, float]
    """Entropy as a share of the maximum, mean over queries, for ``exact``, ``elu`` and ``favor``."""
    largest_score: float
    """The largest |q k| / sqrt(K); random features are accurate only if it is small."""


def blur(
    recorded: RecordedText, layer: int, head: int, *, features: Sequence[int] = FEATURES, seed: int = 0
) -> Blur:
    """Compare elu + 1 (Katharopoulos et al. 2020) and ``favor+`` (Choromanski et al. 2021) with softmax.

    The encoder was trained with softmax. This measures how well kernels approximate it, not the behavior of
    an encoder trained with kernels; for that see `evenness`.

    Raises:
        InvalidRequest: the head masks keys or adds a bias to scores, which feature maps cannot represent.
    """
    mixer = recorded.mixer(layer)
    one_of("head", head, mixer.heads, f"layer {layer} has heads")
    if not bool(recorded.allowed(layer).all()) or isinstance(
        mixer.position, Alibi | Disentangled | RelativePositionBias
    ):
        raise InvalidRequest(
            f"layer {layer} masks keys or adds a bias to scores, which features of q and k cannot represent"
        )
    q_NK, k_NK = recorded.queries[layer][:, head], recorded.keys[layer][:, head]
    exact = recorded.probabilities(layer)[head]
    elu = _from_features(torch.nn.functional.elu(q_NK) + 1, torch.nn.functional.elu(k_NK) + 1)
    generator = torch.Generator().manual_seed(seed)
    apart, favor = [], exact
    for count in features:
        draws = [_favor(q_NK, k_NK, count, generator) for _ in range(DRAWS)]
        apart.append(float(np.mean([_variation(approximation, exact) for approximation in draws])))
        favor = draws[0] if count == SHOWN_FEATURES or count == features[-1] != SHOWN_FEATURES else favor
    keys = torch.full((len(recorded),), len(recorded))
    weights = {"exact": exact, "elu": elu, "favor": favor}
    return Blur(
        layer,
        head,
        exact=exact.numpy(),
        elu=elu.numpy(),
        favor=favor.numpy(),
        variation_elu=_variation(elu, exact),
        features=tuple(features),
        variation_favor=tuple(apart),
        variation_even=_variation(torch.full_like(exact, 1 / len(recorded)), exact),
        entropy_share={name: float(entropy_share(p, keys).mean()) for name, p in weights.items()},
        largest_score=float((q_NK @ k_NK.T).abs().max() / mixer.head_width**0.5),
    )


def evenness(recorded: RecordedText) -> NDArray[np.float64]:
    """(L, H): entropy of the rows of every head relative to uniform attention, mean over queries.

    Uses the softmax, or the implied weights of linear attention. All layers must have the same number of
    heads.
    """
    rows = []
    for layer in range(recorded.layer_count):
        mixer = recorded.encoder.spec.layers[layer].mixer
        if isinstance(mixer, SoftmaxAttention):
            p_HNN, keys = recorded.probabilities(layer), recorded.allowed(layer).sum(-1)
        else:
            p_HNN = kernel_weights(recorded, layer)
            keys = torch.full(p_HNN.shape[:-1], len(recorded))
        rows.append(entropy_share(p_HNN, keys).mean(-1).numpy())
    return np.stack(rows)


def kernel_weights(recorded: RecordedText, layer: int) -> Tensor:
    """Implied attention weights of a linear layer, (H, N, N): rows sum to 1 (to 1 - eps / sum).

    Raises:
        InvalidRequest: the layer has softmax.
    """
    mixer = recorded.encoder.spec.layers[layer].mixer
    if not isinstance(mixer, LinearAttention):
        raise InvalidRequest(
            f"layer {layer} has softmax, whose weights are its probabilities; use probabilities()"
        )
    q_HNK, k_HNK = recorded.queries[layer].transpose(0, 1), recorded.keys[layer].transpose(0, 1)
    if mixer.feature_map == "elu+1":
        q, k = torch.nn.functional.elu(q_HNK) + 1, torch.nn.functional.elu(k_HNK) + 1
        p_HNN = q @ k.mT
        return p_HNN / (p_HNN.sum(-1, keepdim=True) + mixer.eps)
    rows = recorded.encoder.block(layer).attention.projection
    assert isinstance(rows, Tensor)
    logs_q, logs_k = (log_features(x, rows.detach().to("cpu", torch.float64)) for x in (q_HNK, k_HNK))
    q = (logs_q - logs_q.amax(-1, keepdim=True)).exp() + mixer.eps
    k = (logs_k - logs_k.amax((-1, -2), keepdim=True)).exp() + mixer.eps
    return _from_features(q, k)


def _favor(q_NK: Tensor, k_NK: Tensor, count: int, generator: torch.Generator) -> Tensor:
    rows = orthogonal_rows(count, q_NK.shape[-1], generator=generator)
    logs_q, logs_k = log_features(q_NK, rows), log_features(k_NK, rows)
    return _from_features((logs_q - logs_q.amax(-1, keepdim=True)).exp(), (logs_k - logs_k.max()).exp())


def _from_features(q: Tensor, k: Tensor) -> Tensor:
    """Weights from features; a row whose features are all 0 in float64 becomes uniform."""
    products = q @ k.mT
    sums = products.sum(-1, keepdim=True)
    return torch.where(sums > 0, products / sums.clamp_min(1e-300), 1 / products.shape[-1])


def _variation(p: Tensor, exact: Tensor) -> float:
    return float((p - exact).abs().sum(-1).mean() / 2)
