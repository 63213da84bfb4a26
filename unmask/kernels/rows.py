"""Every form of attention by its definition, a block of queries at a time, without an N x N matrix.

This kernel runs what no faster one supports: the tile functions on complete rows, in the precision of the
inputs (float32 for half precision, in which a softmax would lose precision). Memory is linear in tokens in
inference; with gradients, torch keeps the probabilities of every block.
"""

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from unmask.kernels.dropout import dropout as dropped
from unmask.kernels.interface import AttentionOutput, Capability
from unmask.kernels.tile import AttentionBias, MaskContext, Tile, probabilities
from unmask.spec import Alibi, AttentionPattern, Disentangled, NoPosition, RelativePositionBias
from unmask.text.batch import SequenceLayout

SCORES_AT_ONCE = 1 << 22
"""Scores of one block over all heads: 16 MiB in float32, with a few copies alive at once."""


class RowsKernel:
    """Blocks of complete rows, sequence by sequence."""

    capability = Capability(
        name="rows",
        computes="the definitions, a block of queries at a time",
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

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: SequenceLayout,
        *,
        pattern: AttentionPattern,
        bias: AttentionBias,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> AttentionOutput:
        """Block by block: scores, mask, softmax, dropout of probabilities, mix."""
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
