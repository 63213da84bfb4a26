"""Attention by its definitions alone: the reference for testing others, and the same by blocks of rows.

The second runs what no faster kernel supports: the tile functions on complete rows, in the precision of the
inputs (float32 for half precision, in which a softmax would lose precision), without an N x N matrix. Memory
is linear in tokens in inference; with gradients, torch keeps the probabilities of every block.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from unmask.kernels.dropout import dropout as dropped
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.tile import AttentionBias, MaskContext, Tile, probabilities
from unmask.spec import Alibi, AttentionPattern, Disentangled, NoPosition, RelativePositionBias
from unmask.text.batch import SequenceLayout


class ReferenceKernel(Kernel):
    """Slow and simple. Always computes in float64, and returns the dtype of the inputs."""

    capability = Capability(
        name="reference",
        computes="one tile per sequence, in float64",
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        patterns=frozenset(get_args(AttentionPattern)),
        positions=frozenset({NoPosition, Alibi, Disentangled, RelativePositionBias}),
        gradients=True,
        dropout=True,
        log_sum_exp=True,
        unattended=True,
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> SequenceLayout:
        """The layout itself."""
        return layout

    def compute(self, call: AttentionCall, plan: SequenceLayout) -> AttentionOutput:
        """Sequence by sequence: scores, mask, softmax, dropout of probabilities, mix."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        mixed, sums = [], []
        for sequence in range(plan.sequence_count):
            rows = plan.rows(sequence)
            tile = Tile.whole(rows.stop - rows.start)
            context = MaskContext.of(plan, sequence, q_THK.shape[1])
            q_RHK, k_CHK = q_THK[rows].double(), k_THK[rows].double()
            p_HRC, lse_HR = probabilities(tile, q_RHK, k_CHK, pattern, bias, context=context)
            p_HRC = torch.nn.functional.dropout(p_HRC, dropout)
            mixed.append(torch.einsum("hrc,chk->rhk", p_HRC, v_THK[rows].double()))
            sums.append(lse_HR.T)
        exact = torch.promote_types(q_THK.dtype, torch.float32)
        lse_TH = torch.cat(sums).to(exact) if log_sum_exp else None
        return AttentionOutput(torch.cat(mixed).to(q_THK.dtype), lse_TH)


SCORES_AT_ONCE = 1 << 22
"""Scores of one block over all heads: 16 MiB in float32, with a few copies alive at once."""


class RowsKernel(Kernel):
    """Blocks of complete rows, sequence by sequence."""

    capability = replace(
        ReferenceKernel.capability, name="rows", computes="the definitions, a block of queries at a time"
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> SequenceLayout:
        """The layout itself."""
        return layout

    def compute(self, call: AttentionCall, plan: SequenceLayout) -> AttentionOutput:
        """Block by block: scores, mask, softmax, dropout of probabilities, mix."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        blocks = _blocks(q_THK, k_THK, v_THK, plan, pattern=pattern, bias=bias, dropout=dropout)
        if torch.is_grad_enabled():
            _, mixed, sums = zip(*blocks, strict=True)
            o_THK, lse_TH = torch.cat(mixed), torch.cat(sums)
        else:
            # Keeping each result as it comes would fragment memory.
            exact = torch.promote_types(q_THK.dtype, torch.float32)
            o_THK, lse_TH = torch.empty_like(q_THK), torch.empty_like(q_THK[..., 0], dtype=exact)
            for rows, o_RHK, lse_RH in blocks:
                o_THK[rows], lse_TH[rows] = o_RHK, lse_RH
        return AttentionOutput(o_THK.to(q_THK.dtype), lse_TH if log_sum_exp else None)


def _blocks(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THK: Tensor,
    layout: SequenceLayout,
    *,
    pattern: AttentionPattern,
    bias: AttentionBias,
    dropout: float,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows of the batch, in order: their position, mixed values, log-sum-exp."""
    exact, heads = torch.promote_types(q_THK.dtype, torch.float32), q_THK.shape[1]
    for sequence in range(layout.sequence_count):
        tokens = layout.rows(sequence)
        length = tokens.stop - tokens.start
        context = MaskContext.of(layout, sequence, heads)
        q_NHK, k_NHK, v_NHK = (x[tokens].to(exact) for x in (q_THK, k_THK, v_THK))
        block = max(1, SCORES_AT_ONCE // (heads * length))
        for first in range(0, length, block):
            end = min(first + block, length)
            tile = Tile(first, end, 0, length)
            p_HRN, lse_HR = probabilities(tile, q_NHK[first:end], k_NHK, pattern, bias, context=context)
            p_HRN = dropped(p_HRN, dropout)
            o_RHK = torch.einsum("hrn,nhk->rhk", p_HRN, v_NHK)
            yield slice(tokens.start + first, tokens.start + end), o_RHK, lse_HR.T
