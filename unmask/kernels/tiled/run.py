"""The groups of a plan, forward and backward: products, softmax over complete rows, mix.

Axes: P places of tokens in the plan, empty ones among them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.kernels.dropout import apply_keep_mask, keep_mask
from unmask.kernels.products import SharedKeys, once, onednn_takes
from unmask.kernels.tiled.groups import Group, TiledPlan

APART_FROM = {torch.float32: 1 << 17, torch.bfloat16: 1 << 19}
"""Minimum scores of a block for which its products run alone through oneDNN, by measurement. In bfloat16
torch's own products of many blocks also use oneDNN."""


@dataclass(frozen=True, eq=False)
class Work:
    """Inputs of a pass over the groups other than queries, keys and values."""

    plan: TiledPlan
    slopes_H: Tensor | None
    dropout: float = 0.0
    seed: int = 0

    def generator(self, device: torch.device) -> torch.Generator:
        """The dropout generator, which draws the same masks in every pass."""
        return torch.Generator(device).manual_seed(self.seed)

    def add_to(self, s_HBRC: Tensor, number: int, heads: slice, blocks: slice, band: Tensor | None) -> None:
        """Add position terms, counts and the mask in place."""
        if self.slopes_H is not None:
            distances = self.plan.distances(number, heads, blocks, s_HBRC.dtype)
            s_HBRC.addcmul_(distances, self.slopes_H[heads, None, None, None].to(s_HBRC), value=-1)
        log_counts = self.plan.groups[number].log_counts
        if log_counts is not None:
            counts = log_counts[heads, blocks] if log_counts.ndim == 3 else log_counts[blocks]
            s_HBRC += counts[..., None, :].to(s_HBRC.dtype)
        if band is not None:
            s_HBRC[..., s_HBRC.shape[-1] - band.shape[-1] :] += band

    def dropout_factors(self, p_HBRC: Tensor, generator: torch.Generator) -> Tensor:
        """The dropout factors of probabilities: 0, or 1 divided by the kept share."""
        kept_HBRC = keep_mask(p_HBRC.shape, self.dropout, p_HBRC.device, generator)
        return apply_keep_mask(p_HBRC.new_ones(()), kept_HBRC, self.dropout)


def forward(
    q_PHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, work: Work, *, log_sum_exp: bool
) -> tuple[Tensor, Tensor | None]:
    """Mixed values (P, H, K) and, if asked for, the log-sum-exp (P, H, 1), infinite on empty places."""
    o_PHK = torch.empty_like(v_PHK, memory_format=torch.contiguous_format)
    lse_PH1 = o_PHK.new_full((*o_PHK.shape[:2], 1), float("inf")) if log_sum_exp else None
    generator, scale = work.generator(q_PHK.device), 1 / math.sqrt(q_PHK.shape[-1])
    for number, group in enumerate(work.plan.groups):
        apart = _runs_apart(group, q_PHK)
        shared = _shared(group, k_PHK, v_PHK) if apart and group.keys.spacing == 0 else None
        for blocks, slabs in group.slabs(q_PHK.shape[1], apart=apart):
            band = work.plan.band(number, blocks, q_PHK.dtype)
            for heads in slabs:
                q_HBRK = group.rows.take(q_PHK, heads, blocks) * scale
                if shared is not None:
                    keys = shared[heads.start]
                else:
                    k_HBCK, v_HBCK = (group.keys.take(x, heads, blocks) for x in (k_PHK, v_PHK))
                    keys = SharedKeys(k_HBCK[0, 0], v_HBCK[0, 0], q_HBRK.shape[2]) if apart else None
                s_HBRC = keys.scores(q_HBRK) if keys else _times(q_HBRK, k_HBCK, turned=True)
                work.add_to(s_HBRC, number, heads, blocks, band)
                greatest_HBR1 = None if lse_PH1 is None else s_HBRC.amax(-1, keepdim=True)
                p_HBRC = _softmax(s_HBRC)
                if lse_PH1 is not None and greatest_HBR1 is not None:
                    # The largest probability is exp(its score - lse), which saves exponentials.
                    lse_HBR1 = greatest_HBR1 - p_HBRC.amax(-1, keepdim=True).log()
                    group.rows.put(lse_PH1, heads, blocks, lse_HBR1)
                if work.dropout:
                    p_HBRC *= work.dropout_factors(p_HBRC, generator)
                o_HBRK = keys.mix(p_HBRC) if keys else _times(p_HBRC, v_HBCK)
                group.rows.put(o_PHK, heads, blocks, o_HBRK)
    return o_PHK, lse_PH1


def backward(
    q_PHK: Tensor,
    k_PHK: Tensor,
    v_PHK: Tensor,
    do_PHK: Tensor,
    *,
    lse_PH1: Tensor,
    less_PH1: Tensor,
    work: Work,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values on their places, probabilities recomputed.

    Args:
        q_PHK: queries.
        k_PHK: keys.
        v_PHK: values.
        do_PHK: gradient of the mixed values.
        lse_PH1: log-sum-exp, infinite on empty places.
        less_PH1: subtracted from the gradient of every probability of a row: the product of the mixed
            values with their gradient, minus the gradient of the log-sum-exp.
        work: the plan and the other inputs of the forward pass.
    """
    dq_PHK, dk_PHK, dv_PHK = (x.new_zeros(x.shape) for x in (q_PHK, k_PHK, v_PHK))
    generator, marks_P = work.generator(q_PHK.device), work.plan.globals_P
    scale = 1 / math.sqrt(q_PHK.shape[-1])
    for number, group in enumerate(work.plan.groups):
        group_lse = lse_PH1
        if group.band and marks_P is not None:  # a later group replaced these rows
            group_lse = lse_PH1.masked_fill(marks_P[:, None, None], float("inf"))
        apart = _runs_apart(group, q_PHK)
        by_queries, by_keys = (_by_queries_apart, _by_keys_apart) if apart else (_by_queries, _by_keys)
        for blocks, slabs in group.slabs(q_PHK.shape[1], apart=apart):
            band = work.plan.band(number, blocks, q_PHK.dtype)
            for heads in slabs:
                q_HBRK, do_HBRK, lse_HBR1, less_HBR1 = (
                    group.rows.take(x, heads, blocks) for x in (q_PHK, do_PHK, group_lse, less_PH1)
                )
                q_HBRK = q_HBRK * scale
                k_HBCK, v_HBCK = (group.keys.take(x, heads, blocks) for x in (k_PHK, v_PHK))
                s_HBRC = by_queries(q_HBRK, k_HBCK)
                work.add_to(s_HBRC, number, heads, blocks, band)
                p_HBRC = s_HBRC.sub_(lse_HBR1).exp_()
                dp_HBRC = by_queries(do_HBRK, v_HBCK)
                mixed_HBRC = p_HBRC
                if work.dropout:
                    kept_HBRC = work.dropout_factors(p_HBRC, generator)
                    mixed_HBRC = p_HBRC * kept_HBRC
                    dp_HBRC *= kept_HBRC
                group.keys.add(dv_PHK, heads, blocks, by_keys(mixed_HBRC, do_HBRK))
                ds_HBRC = dp_HBRC.sub_(less_HBR1).mul_(p_HBRC)
                group.rows.put(dq_PHK, heads, blocks, _times(ds_HBRC, k_HBCK).mul_(scale))
                group.keys.add(dk_PHK, heads, blocks, by_keys(ds_HBRC, q_HBRK))
    return dq_PHK, dk_PHK, dv_PHK


def _times(x: Tensor, y: Tensor, *, turned: bool = False) -> Tensor:
    """A product for each head and block, with ``y`` transposed if ``turned``."""
    if y.dtype == torch.bfloat16:  # oneDNN wants this contiguous, and reorders a transposed one slowly
        y = y.contiguous()
    y = y.mT if turned else y
    return torch.bmm(x.flatten(0, 1), y.flatten(0, 1)).view(*x.shape[:-1], y.shape[-1])


def _by_queries(x_HBRK: Tensor, y_HBCK: Tensor) -> Tensor:
    """Shape (H, B, R, C)."""
    return _times(x_HBRK, y_HBCK, turned=True)


def _by_keys(p_HBRC: Tensor, x_HBRK: Tensor) -> Tensor:
    """Shape (H, B, C, K)."""
    return _times(p_HBRC.mT, x_HBRK)


def _by_queries_apart(x_11RK: Tensor, y_11CK: Tensor) -> Tensor:
    """The same for one block: computed keys first, as `_by_keys_apart` needs it, and transposed."""
    return once(y_11CK[0, 0], x_11RK[0, 0]).mT[None, None]


def _by_keys_apart(p_11RC: Tensor, x_11RK: Tensor) -> Tensor:
    return once(p_11RC[0, 0].mT, x_11RK[0, 0].mT)[None, None]


def _softmax(s_HBRC: Tensor) -> Tensor:
    """Softmax over keys; on CPU, which reads each row before writing it, in the memory of the scores."""
    return torch.softmax(s_HBRC, dim=-1, out=s_HBRC if s_HBRC.device.type == "cpu" else None)


def _runs_apart(group: Group, x_PHK: Tensor) -> bool:
    """Whether blocks are large enough to run one by one through oneDNN."""
    _, rows, keys = group.shape
    if x_PHK.device.type != "cpu" or not onednn_takes(x_PHK.dtype):
        return False
    return rows * keys >= APART_FROM[x_PHK.dtype]


def _shared(group: Group, k_PHK: Tensor, v_PHK: Tensor) -> list[SharedKeys]:
    """The keys of each head, shared by all blocks of queries."""
    _, rows, length = group.shape
    places = slice(group.keys.first, group.keys.first + length)
    every = zip(k_PHK[places].unbind(1), v_PHK[places].unbind(1), strict=True)
    return [SharedKeys(k_CK, v_CK, rows) for k_CK, v_CK in every]
