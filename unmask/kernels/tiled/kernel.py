"""Exact softmax attention in blocks of complete rows, in memory linear in tokens, on any device.

A plan turns an attention pattern into groups of equal work (`plan`), and one runner computes any group,
forward and backward: products, softmax over complete rows, mix. Only queries, keys, values, results and
log-sum-exps are kept for the backward pass, which recomputes probabilities (as in Dao et al. 2022) and
dropout masks from their seed.

Axes: P places of tokens in the plan, empty ones among them.
"""

import math
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.dropout import apply_keep_mask, keep_mask
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.products import SharedKeys, once, onednn_takes
from unmask.kernels.tiled.groups import Group, TiledPlan
from unmask.kernels.tiled.plan import make_plan
from unmask.spec import Alibi, AttentionPattern, NoPosition
from unmask.text.batch import SequenceLayout

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


@dataclass(frozen=True, eq=False)
class TiledPlans:
    """The plans of a batch by number of heads, which only layers know."""

    layout: SequenceLayout
    pattern: AttentionPattern
    device: torch.device
    plans: dict[int, TiledPlan] = field(default_factory=dict)

    def of(self, heads: int) -> TiledPlan:
        """The plan for this number of heads, plans on first use."""
        if heads not in self.plans:
            self.plans[heads] = make_plan(self.layout, self.pattern, heads, self.device)
        return self.plans[heads]


class TiledKernel(Kernel):
    """Blocks of queries against all of their keys.

    Computes float64 in float64 and everything else in float32, except inference in bfloat16 on CPU without a
    log-sum-exp: there bfloat16 products accumulate in float32, and scores and probabilities are rounded to
    bfloat16 between products. See `test_tiled.py` for the bound.
    """

    capability = Capability(
        name="tiled",
        computes="blocks of complete rows, computed again in the backward pass",
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        patterns=frozenset(get_args(AttentionPattern)),
        positions=frozenset({NoPosition, Alibi}),
        gradients=True,
        dropout=True,
        log_sum_exp=True,
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> TiledPlans:
        """Groups of equal work, plans when the first layer's number of heads is known."""
        return TiledPlans(layout, pattern, device)

    def compute(self, call: AttentionCall, plan: TiledPlans) -> AttentionOutput:
        """Group by group."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        if not bias.only_slopes or plan.pattern != pattern:
            raise KernelError(
                "the tiled kernel was called for something its record or its plan does not list"
            )
        seed = int(torch.randint(1 << 62, (), device="cpu")) if dropout else 0
        work = Work(plan.of(q_THK.shape[1]), bias.slopes_H, dropout, seed)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q_THK, k_THK, v_THK)):
            o_THK, lse_TH = _Tiled.apply(q_THK, k_THK, v_THK, work)  # type: ignore[no-untyped-call]
        else:
            dtype = q_THK.dtype
            narrow = dtype == torch.bfloat16 and q_THK.device.type == "cpu" and onednn_takes(dtype)
            exact = dtype if narrow and not log_sum_exp else torch.promote_types(dtype, torch.float32)
            o_THK, lse_TH = _attend(q_THK, k_THK, v_THK, work, exact, log_sum_exp=log_sum_exp)
        return AttentionOutput(o_THK, lse_TH if log_sum_exp else None)


def _attend(
    q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, work: Work, exact: torch.dtype, *, log_sum_exp: bool
) -> tuple[Tensor, Tensor | None]:
    """Mixed values in the dtype of the queries, log-sum-exps in ``exact``."""
    spread, gather = work.plan.spread, work.plan.gather
    q_PHK, k_PHK, v_PHK = (spread(x_THK, exact) for x_THK in (q_THK, k_THK, v_THK))
    o_PHK, lse_PH1 = forward(q_PHK, k_PHK, v_PHK, work, log_sum_exp=log_sum_exp)
    lse_TH = None if lse_PH1 is None else gather(lse_PH1, exact)[..., 0]
    return gather(o_PHK, q_THK.dtype), lse_TH


class _Tiled(torch.autograd.Function):
    """Attention with a backward pass in linear memory."""

    @staticmethod
    def forward(
        ctx: Any, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        exact = torch.promote_types(q_THK.dtype, torch.float32)
        o_THK, lse_TH = _attend(q_THK, k_THK, v_THK, work, exact, log_sum_exp=True)
        ctx.save_for_backward(q_THK, k_THK, v_THK, o_THK, lse_TH)
        ctx.work = work
        return o_THK, lse_TH

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do_THK: Tensor, dlse_TH: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_THK, k_THK, v_THK, o_THK, lse_TH = ctx.saved_tensors
        work: Work = ctx.work
        exact = lse_TH.dtype
        spread, gather = work.plan.spread, work.plan.gather
        less_TH1 = torch.linalg.vecdot(do_THK.to(exact), o_THK.to(exact))[..., None] - dlse_TH[..., None]
        lse_PH1 = spread(lse_TH[..., None], exact)
        lse_PH1 = lse_PH1.masked_fill(work.plan.text_P[:, None, None] < 0, math.inf)
        q_PHK, k_PHK, v_PHK = (spread(x, exact) for x in (q_THK, k_THK, v_THK))
        do_PHK, less_PH1 = (spread(x, exact) for x in (do_THK, less_TH1))
        grads = backward(q_PHK, k_PHK, v_PHK, do_PHK, lse_PH1=lse_PH1, less_PH1=less_PH1, work=work)
        dq_THK, dk_THK, dv_THK = (gather(grad_PHK, q_THK.dtype) for grad_PHK in grads)
        return dq_THK, dk_THK, dv_THK, None
