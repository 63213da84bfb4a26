"""Attention rollout (Abnar & Zuidema 2020) of one token, without any N x N array."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, assert_never, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.arguments import token_of
from unmask.interpret.attention.rows import CELLS_AT_ONCE, LayerRows, RowBlock
from unmask.interpret.watch import Watch, unwatched

Fusion = Literal["mean", "max", "min", "norm"]
"""How the heads of a layer are fused: ``mean``, as in the paper; ``max`` or ``min``; or
``norm``, which weights each head by the norm of its values, ``sum_h p_hij n_hj`` (after Kobayashi et al.
2020, who add the vectors of different heads before taking norms; here norms are added)."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """The sources of a token's state (or of the mean of all tokens), level by level."""

    values: NDArray[np.float64]
    """Shape (L + 1, N), rows sum to 1. Row L is the start; row l holds the shares of the input states of
    layer l, so row 0 refers to the embeddings of the tokens."""
    fusion: Fusion
    token: int | None


def rollout(
    cache: ActivationCache, token: int | None = None, *, fusion: Fusion = "mean", watch: Watch | None = None
) -> Rollout:
    """Trace a token's state from the last layer down to the input.

    At each layer the row becomes ``r (P + I)`` with rows of ``P + I`` divided by their sum, as in the
    authors' code: half attention, half residual, where rows of P sum to 1. With ``max`` and ``min`` they do
    not, so the residual gets less than half with ``max`` and more than half with ``min``. Norms,
    feed-forward networks and value vectors are not considered. Exact in float64 up to the encoder's own
    dtype.

    Args:
        cache: the activation cache of the text.
        token: where to start; None starts from all tokens equally.
        fusion: how heads are fused, see `Fusion`.
        watch: called with the layers done before each layer and after each block of its rows.

    Raises:
        InvalidRequest: no such token or fusion.
        Cancelled: ``watch`` stopped the work.
    """
    length, layers = len(cache), cache.layer_count
    if fusion not in get_args(Fusion):
        raise InvalidRequest(f"fusion is {fusion!r}; it can be {', '.join(get_args(Fusion))}")
    token = None if token is None else token_of(length, token)
    values = np.zeros((layers + 1, length))
    values[-1, slice(None) if token is None else token] = 1 if token is not None else 1 / length
    watch = watch or unwatched
    for layer in reversed(range(layers)):
        tick = partial(watch, "rollout", layers - 1 - layer, layers)
        tick()
        values[layer] = _below(LayerRows(cache, layer), torch.from_numpy(values[layer + 1]), fusion, tick)
    watch("rollout", layers, layers)
    return Rollout(values, fusion, token)


@torch.no_grad()
def _below(layer: LayerRows, row_N: Tensor, fusion: Fusion, tick: Callable[[], None]) -> NDArray[np.float64]:
    """One step: the row of the level below."""
    below_N = torch.zeros_like(row_N)
    for block in layer.blocks(rows=reached(row_N), cells=CELLS_AT_ONCE):
        rows, columns = slice(block.first_row, block.end_row), slice(block.first_column, block.end_column)
        fused_RC = _fused(block, fusion)
        share_R = row_N[rows] / (fused_RC.sum(-1) + 1)
        below_N[columns] += share_R @ fused_RC
        below_N[rows] += share_R
        tick()
    return below_N.numpy()


def reached(row_N: Tensor) -> slice:
    """The range of tokens outside of which a row is 0; no others need to be read."""
    places = torch.nonzero(row_N)[:, 0]
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _fused(block: RowBlock, fusion: Fusion) -> Tensor:
    """The fused heads of a block, (R, C), float64, on the CPU."""
    p_HRC = block.p_HRC
    match fusion:
        case "norm":
            fused_RC = torch.einsum("hrc,hc->rc", p_HRC, block.norms_HC.to(p_HRC)).double()
            fused_RC = fused_RC / fused_RC.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        case "max":
            fused_RC = p_HRC.amax(0).double()
        case "min":
            fused_RC = p_HRC.amin(0).double()
        case "mean":
            fused_RC = p_HRC.mean(0, dtype=torch.float64)
        case _:
            assert_never(fusion)
    return fused_RC.cpu()
