"""Exact softmax attention in blocks of complete rows, in memory linear in tokens, on any device.

A plan turns an attention pattern into groups of equal work (`plan`), and one runner computes any group
(`run`). Only queries, keys, values, results and log-sum-exps are kept for the backward pass, which recomputes
probabilities (as in Dao et al. 2022) and dropout masks from their seed.

Axes: P places of tokens in the plan, empty ones among them.
"""

import math
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionOutput, Capability
from unmask.kernels.products import onednn_takes
from unmask.kernels.tile import AttentionBias
from unmask.kernels.tiled.groups import TiledPlan
from unmask.kernels.tiled.plan import make_plan
from unmask.kernels.tiled.run import Work, backward, forward
from unmask.spec import (
    Alibi,
    AttentionPattern,
    NoPosition,
)
from unmask.text.batch import SequenceLayout


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


class TiledKernel:
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

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: TiledPlans,
        *,
        pattern: AttentionPattern,
        bias: AttentionBias,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> AttentionOutput:
        """Group by group; see `Kernel.attend`."""
        if bias.distances is not None or bias.relative is not None or plan.pattern != pattern:
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
        return AttentionOutput(o_THK, lse_TH.to(q_THK.dtype) if lse_TH is not None and log_sum_exp else None)


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
