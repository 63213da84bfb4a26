"""The strongest edges of the heads of a layer, of all tokens or without some, and what they add to states.

Axes: s cells that are looked into.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import whole_number
from unmask.base.progress import Watch, unwatched
from unmask.encoder.hooks import HookPoint
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.rows import NEVER, LayerRows, cells_at_once
from unmask.kernels import Tile

UNSEEN = 1e29
"""A score this far below the largest of its row belongs to a masked key."""


def topk(below_HRC: Tensor, top_HRS: Tensor, cell: int, k: int) -> Tensor:
    """Columns of the largest scores of each row, (H, R, k), largest first; -1 where no key may be seen.

    A column among the k largest stands in one of the k runs with the largest maxima, where equal ones are
    taken in order, so only those runs are searched.

    Args:
        below_HRC: scores, less the largest of their row: at most 0.
        top_HRS: the largest of each run of ``cell`` columns, likewise.
        cell: columns of a run.
        k: how many.
    """
    heads, rows, columns = below_HRC.shape
    runs_HRs = _first(top_HRS, min(k, columns // cell))
    runs_HRs = runs_HRs.sort(dim=-1).values
    parts = below_HRC.view(heads, rows, -1, cell)
    indices = runs_HRs[..., None].expand(-1, -1, -1, cell)
    candidates_HRC = parts.gather(2, indices).flatten(-2)
    chosen = _first(candidates_HRC, min(k, candidates_HRC.shape[-1]))
    unseen = candidates_HRC.gather(-1, chosen) <= -UNSEEN
    at = runs_HRs.gather(-1, chosen // cell) * cell + chosen % cell
    at = at.masked_fill(unseen, -1)
    return torch.nn.functional.pad(at, (0, k - at.shape[-1]), value=-1)


def _first(below: Tensor, k: int) -> Tensor:
    """Places of the k largest of the last axis, of equal ones the first; numbers are at most 0."""
    if below.dtype != torch.float32:
        return below.abs().sort(dim=-1, stable=True).indices[..., :k]
    # The bits of numbers that are not negative are in their order; the place below them parts equals.
    bits = below.abs().view(torch.int32).long() << 32
    keys = bits | torch.arange(below.shape[-1], device=below.device)
    return keys.topk(k, dim=-1, largest=False).values & 0xFFFFFFFF


def filled(keys_HRk: Tensor, length: int) -> Tensor:
    """Keys with -1 replaced by the first keys of the text that are not listed, which get nothing."""
    k = keys_HRk.shape[-1]
    if bool((keys_HRk[..., -1] >= 0).all()):
        return keys_HRk
    first = torch.arange(min(2 * k, length), device=keys_HRk.device)
    listed = (keys_HRk[..., None] == first).any(-2)
    free = listed.byte().sort(dim=-1, stable=True).indices  # those not listed come first, in order
    missing = keys_HRk < 0
    number = (missing.cumsum(-1) - 1).clamp_min(0)
    return torch.where(missing, free.gather(-1, number), keys_HRk)


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
    """The attention of each query to the tokens that are left out, before the rest is divided by its sum."""
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
    k = min(whole_number("k", k, 1), length)
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
        top_HRk = p_HRC.gather(-1, at_HRk.clamp_min(0)).masked_fill_(at_HRk < 0, 0)
        between = slice(first, end)
        keys_HNk[:, between] = torch.where(at_HRk < 0, at_HRk, at_HRk + start).int().cpu().numpy()
        shares_HNk[:, between] = top_HRk.float().cpu().numpy()
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
    return np.asarray(torch.linalg.vector_norm(x_ND.float(), dim=-1).cpu().numpy())
