"""The strongest edges of the heads of a layer, of all tokens or without some, and what they add to states."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.hooks import HookPoint
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.arguments import at_least
from unmask.interpret.attention.rows import NEVER, LayerRows, cells_at_once
from unmask.interpret.attention.topk import topk
from unmask.interpret.watch import Watch, unwatched
from unmask.kernels import Tile

Floats = NDArray[np.float32]

SEEN = NEVER / 10
"""Scores above it are of keys that may be seen."""


@dataclass(frozen=True, eq=False)
class LayerEdges:
    """The top-k keys of every query of every head of one layer on one text of N tokens.

    Where tokens are left out, the attention of the queries that are listed to the other keys is divided by
    its sum, so that rows sum to 1 again.
    """

    keys_HNk: NDArray[np.int32]
    """Largest first, ties in text order; -1 where fewer keys may be seen."""
    shares_HNk: Floats
    """Attention weights, or each key's part in ``sum_j p_ij n_j``; 0 where the key is -1."""
    left_out_HN: Floats
    """What each query gives to the tokens that are left out, before the rest is divided by its sum."""
    kept_HN: Floats
    """The rest: what the shares of a query are multiplied by to have them as they were."""
    received_HN: Floats
    """Mean over the queries that are listed of what they give each key; sums to 1 over keys."""
    lse_HN: NDArray[np.float64]
    """Logarithm of what each row was divided by: the sum over the keys that are kept of ``exp(score)``, or
    of ``exp(score) n_j``."""


def layer_edges(
    rows: LayerRows,
    k: int,
    *,
    weighted: bool = False,
    without_N: NDArray[np.bool_] | None = None,
    queries_N: NDArray[np.bool_] | None = None,
    watch: Watch | None = None,
) -> LayerEdges:
    """The top-k keys of every query of every head, from complete rows in blocks; no array has N x N.

    Args:
        rows: the layer.
        k: how many keys; all of a text that has fewer.
        weighted: weigh keys by the norm of what they contribute (Kobayashi et al. 2020), see `value_norms`.
        without_N: tokens that are left out as keys. None leaves out none.
        queries_N: queries that are listed; None: those of the tokens that are not left out.
        watch: called after each block of rows.

    Raises:
        InvalidRequest: ``k`` is less than 1.
        Cancelled: ``watch`` stopped the work.
    """
    length, heads, watch = rows.length, rows.heads, watch or unwatched
    k = min(at_least("k", k), length)
    keys_HNk = np.full((heads, length, k), -1, dtype=np.int32)
    shares_HNk = np.zeros((heads, length, k), dtype=np.float32)
    left_out_HN = np.zeros((heads, length), dtype=np.float32)
    kept_HN = np.zeros((heads, length), dtype=np.float32)
    lse_HN = np.zeros((heads, length))
    received_HN = np.zeros((heads, length))
    hidden_N = torch.zeros(length, dtype=torch.bool)
    if without_N is not None:
        hidden_N = torch.tensor(without_N)
    listed_N = ~hidden_N if queries_N is None else torch.tensor(queries_N)
    every = slice(0, heads)
    for first, end in rows.stretches(0, length, max(1, cells_at_once(length) // (length * heads))):
        side = rows.side(first)
        start, stop = rows.band(side, first, end)
        s_HRC = rows.scores(side, Tile(first, end, start, stop), every)
        if weighted:
            s_HRC += side.norms_HN[:, None, start:stop].log()
            s_HRC.clamp_(min=NEVER)
        hidden_C = hidden_N[start:stop].to(s_HRC.device)
        all_HR = torch.logsumexp(s_HRC, dim=-1)
        left_HR = torch.logsumexp(s_HRC.masked_fill(~hidden_C, NEVER), dim=-1)
        s_HRC.masked_fill_(hidden_C, NEVER)
        lse_HR = torch.logsumexp(s_HRC, dim=-1)
        largest_HR1 = s_HRC.amax(-1, keepdim=True)
        below_HRC = s_HRC - largest_HR1.clamp_min(SEEN)
        at_HRk = topk(below_HRC, below_HRC, 1, k)
        shown_HR = (largest_HR1[..., 0] > SEEN) & listed_N[first:end].to(s_HRC.device)
        at_HRk = at_HRk.masked_fill(~shown_HR[..., None], -1)
        p_HRC = s_HRC.sub_(lse_HR[..., None]).exp_().masked_fill_(~shown_HR[..., None], 0)
        found_HRk = p_HRC.gather(-1, at_HRk.clamp_min(0)).masked_fill_(at_HRk < 0, 0)
        between = slice(first, end)
        keys_HNk[:, between] = torch.where(at_HRk < 0, at_HRk, at_HRk + start).int().cpu().numpy()
        shares_HNk[:, between] = found_HRk.float().cpu().numpy()
        left_out_HN[:, between] = (left_HR - all_HR).exp().masked_fill(left_HR <= SEEN, 0).cpu().numpy()
        kept_HN[:, between] = (lse_HR - all_HR).exp().masked_fill(lse_HR <= SEEN, 0).cpu().numpy()
        lse_HN[:, between] = lse_HR.double().cpu().numpy()
        received_HN[:, start:stop] += p_HRC.double().sum(1).cpu().numpy()
        watch("the strongest edges", end, length)
    received_HN /= max(1, int(listed_N.sum()))
    return LayerEdges(keys_HNk, shares_HNk, left_out_HN, kept_HN, received_HN.astype(np.float32), lse_HN)


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
