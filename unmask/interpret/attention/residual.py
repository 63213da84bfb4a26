"""How large the residual stream is, and what attention adds to it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.hooks import HookPoint
from unmask.interpret.activation_cache import ActivationCache

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ResidualNorms:
    """Norms of every token's vectors, in the units of the encoder's states."""

    state_LN: Floats
    """(L + 1, N): of the residual stream, the input of each layer, and last the output of the last layer."""
    attention_LN: Floats
    """(L, N): of the attention output, after the output projection and its bias, which the layer adds."""


def residual_norms(cache: ActivationCache) -> ResidualNorms:
    """Euclidean norms of the residual stream and of each attention output, by one more forward pass."""
    attention: dict[int, Floats] = {}

    def record(place: HookPoint, layer: int, mixed: Tensor) -> None:
        if place is HookPoint.MIXED:
            attention[layer] = _norms(attention_output(cache, layer, mixed))

    with torch.no_grad():
        cache.encoder.encode(cache.batch, hook=record)
    states = [_norms(x_ND) for x_ND in cache.states]
    return ResidualNorms(np.stack(states), np.stack([attention[at] for at in range(cache.layer_count)]))


def attention_output(cache: ActivationCache, layer: int, mixed_NHK: Tensor) -> Tensor:
    """The attention output of a layer, (N, D), from the values that it mixed."""
    with torch.no_grad():
        out_ND: Tensor = cache.mixer(layer).out(mixed_NHK.flatten(-2))
    return out_ND


def _norms(x_ND: Tensor) -> Floats:
    norms: Floats = torch.linalg.vector_norm(x_ND.float(), dim=-1).cpu().numpy()
    return norms
