"""Softmax attention when exp(q k) is replaced by a product of features."""

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
from unmask.spec import Alibi, Disentangled, LinearAttention, RelativePositionBias, SoftmaxAttention

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
    elu = _rows(torch.nn.functional.elu(q_NK) + 1, torch.nn.functional.elu(k_NK) + 1)
    generator = torch.Generator().manual_seed(seed)
    apart, shown = [], exact
    for count in features:
        drawn = [_favor(q_NK, k_NK, count, generator) for _ in range(DRAWS)]
        apart.append(float(np.mean([_variation(one, exact) for one in drawn])))
        shown = drawn[0] if count == SHOWN_FEATURES or count == features[-1] != SHOWN_FEATURES else shown
    keys = torch.full((len(recorded),), len(recorded))
    named = {"exact": exact, "elu": elu, "favor": shown}
    return Blur(
        layer,
        head,
        exact=exact.numpy(),
        elu=elu.numpy(),
        favor=shown.numpy(),
        variation_elu=_variation(elu, exact),
        features=tuple(features),
        variation_favor=tuple(apart),
        variation_even=_variation(torch.full_like(exact, 1 / len(recorded)), exact),
        entropy_share={name: float(entropy_share(p, keys).mean()) for name, p in named.items()},
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
    return _rows(q, k)


def _favor(q_NK: Tensor, k_NK: Tensor, count: int, generator: torch.Generator) -> Tensor:
    rows = orthogonal_rows(count, q_NK.shape[-1], generator=generator)
    logs_q, logs_k = log_features(q_NK, rows), log_features(k_NK, rows)
    return _rows((logs_q - logs_q.amax(-1, keepdim=True)).exp(), (logs_k - logs_k.max()).exp())


def _rows(q: Tensor, k: Tensor) -> Tensor:
    """Weights from features; a row whose features are all 0 in float64 becomes uniform."""
    products = q @ k.mT
    sums = products.sum(-1, keepdim=True)
    return torch.where(sums > 0, products / sums.clamp_min(1e-300), 1 / products.shape[-1])


def _variation(p: Tensor, exact: Tensor) -> float:
    return float((p - exact).abs().sum(-1).mean() / 2)
