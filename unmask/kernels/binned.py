"""Attention of many short texts as a few square blocks, for training on a CPU.

Texts are packed into bins of R tokens, R being the longest text's length rounded up. All bins and heads then
run as one product for scores and one for values, and a mask separates the texts of a bin. Many scores of a
bin are computed and discarded, which costs less than one call per distinct length.

Axes: B bins; R places of a bin; P places of all bins; G heads times bins.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.dropout import apply_keep_mask, keep_mask
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.tile import Tile, allowed
from unmask.spec import Alibi, AttentionPattern, CausalAttention, FullAttention, NoPosition, SlidingWindow
from unmask.text.batch import SequenceLayout

SMALLEST_BIN, STEP = 64, 32
"""The minimum number of tokens of a bin, which its size is a multiple of."""


@dataclass(frozen=True, eq=False)
class Bins:
    """The arrangement of tokens in B bins of R places."""

    size: int
    """R."""
    count: int
    """B."""
    token_P: Tensor
    """The token of each of the B R places; 0 in empty places, whose results are never read."""
    place_T: Tensor
    """The place of each token."""
    sequence_BR: Tensor
    """The sequence of each place; -1 in empty places, which attend to one another: no row lacks keys."""
    pattern: AttentionPattern
    masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> "Bins":
        """The bins of a batch."""
        lengths = layout.lengths
        size = max(SMALLEST_BIN, -(-int(lengths.max()) // STEP) * STEP)
        first_S, count = fill(lengths, size)
        place_T = np.repeat(first_S, lengths) + layout.positions_T
        token_P = np.zeros(count * size, dtype=np.int64)
        token_P[place_T] = np.arange(layout.token_count)
        sequence_P = np.full(count * size, -1)
        sequence_P[place_T] = layout.sequence_of_T
        token, place, sequence = (torch.from_numpy(x).to(device) for x in (token_P, place_T, sequence_P))
        return cls(size, count, token, place, sequence.view(count, size), pattern)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """The additive mask, 0 or minus infinity, (B, R, R); made once per batch."""
        if dtype not in self.masks:
            seen_BRR = self.sequence_BR[:, :, None] == self.sequence_BR[:, None, :]
            near_RR = allowed(Tile.whole(self.size), self.pattern, seen_BRR.device)
            if near_RR is not None:
                seen_BRR &= near_RR
            zero = torch.zeros(seen_BRR.shape, dtype=dtype, device=seen_BRR.device)
            self.masks[dtype] = zero.masked_fill_(~seen_BRR, -math.inf)
        return self.masks[dtype]

    def spread(self, x_THK: Tensor) -> Tensor:
        """Tokens in their places, grouped by head, then by bin: (H B, R, K)."""
        x_HPK = x_THK.transpose(0, 1).index_select(1, self.token_P)
        return x_HPK.view(-1, self.size, x_THK.shape[-1])

    def gather(self, x_GRK: Tensor, heads: int) -> Tensor:
        """The inverse of `spread`."""
        x_HPK = x_GRK.view(heads, self.count * self.size, -1)
        return x_HPK.index_select(1, self.place_T).transpose(0, 1).contiguous()


def fill(lengths: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int]:
    """The first place of each sequence, and the number of bins of ``size`` places.

    Sequences are placed longest first, each in the fullest bin that has room for it.
    """
    first_S = np.zeros(len(lengths), dtype=np.int64)
    room: list[tuple[int, int]] = []  # free places of a bin and its number, ascending
    count = 0
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sequence])
        place = bisect_left(room, (length, 0))
        if place == len(room):
            free, number, count = size, count, count + 1
        else:
            free, number = room.pop(place)
        first_S[sequence] = (number + 1) * size - free
        if free > length:
            insort(room, (free - length, number))
    return first_S, count


class BinnedKernel(Kernel):
    """Texts of a batch in bins; see the module.

    Computes in the dtype of its inputs: in bfloat16, products accumulate in float32, and scores,
    probabilities and their gradients are rounded to bfloat16 between products. Probabilities are kept for
    the backward pass, R numbers per token and head.
    """

    capability = Capability(
        name="binned",
        computes="short texts side by side in square blocks, probabilities kept for the backward pass",
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float64", "float32", "bfloat16"}),
        patterns=frozenset({FullAttention, CausalAttention, SlidingWindow}),
        positions=frozenset({NoPosition, Alibi}),
        gradients=True,
        dropout=True,
        log_sum_exp=False,
        # In float32 SDPA is as fast; with longer texts too many scores are discarded.
        preferred_lengths=(1, 0),
        preferred_lengths_by={"gradients bfloat16": (1, 256)},
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Bins:
        """The place of each token; the mask is made when the dtype of the first layer is known."""
        return Bins.of(layout, pattern, device)

    def compute(self, call: AttentionCall, plan: Bins) -> AttentionOutput:
        """All bins at once."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        if log_sum_exp or not bias.only_slopes or plan.pattern != pattern:
            raise KernelError(
                "the binned kernel was called for something its record or its plan does not list"
            )
        work = _Work(plan, bias.slopes_H, dropout)
        o_THK: Tensor = _Binned.apply(q_THK, k_THK, v_THK, work)  # type: ignore[no-untyped-call]
        return AttentionOutput(o_THK, None)


@dataclass(frozen=True, eq=False)
class _Work:
    """Inputs of a pass other than queries, keys and values."""

    plan: Bins
    slopes_H: Tensor | None
    dropout: float


class _Binned(torch.autograd.Function):
    """Attention within bins."""

    @staticmethod
    def forward(ctx: Any, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, work: "_Work") -> Tensor:
        plan, slopes_H, dropout = work.plan, work.slopes_H, work.dropout
        heads, width = q_THK.shape[1:]
        q_GRK, k_GRK, v_GRK = plan.spread(q_THK * width**-0.5), plan.spread(k_THK), plan.spread(v_THK)
        s_GRR = torch.bmm(q_GRK, k_GRK.mT)
        s_HBRR = s_GRR.view(heads, plan.count, plan.size, plan.size)
        if slopes_H is not None:  # the places of a bin are as far apart as its tokens
            far_RR = Tile.whole(plan.size).distance_RC(s_GRR.device).abs()
            s_HBRR -= (slopes_H[:, None, None] * far_RR).to(s_GRR)[:, None]
        s_HBRR += plan.mask(s_GRR.dtype)
        p_GRR = torch.softmax(s_GRR, -1)
        kept_GRR = None
        if dropout:
            kept_GRR = keep_mask(p_GRR.shape, dropout, p_GRR.device)
        o_GRK = torch.bmm(_dropped(p_GRR, kept_GRR, dropout), v_GRK)
        ctx.save_for_backward(q_GRK, k_GRK, v_GRK, p_GRR, kept_GRR)
        ctx.work = work
        return plan.gather(o_GRK, heads)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do_THK: Tensor) -> tuple[Tensor | None, ...]:
        q_GRK, k_GRK, v_GRK, p_GRR, kept_GRR = ctx.saved_tensors
        plan, dropout = ctx.work.plan, ctx.work.dropout
        do_GRK = plan.spread(do_THK)
        dv_GRK = torch.bmm(_dropped(p_GRR, kept_GRR, dropout).mT, do_GRK)
        dp_GRR = _dropped(torch.bmm(do_GRK, v_GRK.mT), kept_GRR, dropout)
        ds_GRR = _SOFTMAX_BACKWARD(dp_GRR, p_GRR, -1, p_GRR.dtype)
        dq_GRK, dk_GRK = torch.bmm(ds_GRR, k_GRK), torch.bmm(ds_GRR.mT, q_GRK)
        dq_THK, dk_THK, dv_THK = (plan.gather(x_GRK, do_THK.shape[1]) for x_GRK in (dq_GRK, dk_GRK, dv_GRK))
        return dq_THK.mul_(do_THK.shape[-1] ** -0.5), dk_THK, dv_THK, None


_SOFTMAX_BACKWARD: Callable[..., Tensor] = torch.ops.aten._softmax_backward_data.default


def _dropped(p_GRR: Tensor, kept_GRR: Tensor | None, dropout: float) -> Tensor:
    """Apply dropout, with the kept probabilities divided by the kept share."""
    if kept_GRR is None:
        return p_GRR
    return apply_keep_mask(p_GRR, kept_GRR, dropout)
