"""The reference kernel for testing others: one tile per sequence, in float64, from the definitions alone."""

from typing import get_args

import torch
from torch import Tensor

from unmask.kernels.interface import AttentionOutput, Capability
from unmask.kernels.tile import AttentionBias, MaskContext, Tile, probabilities
from unmask.spec import Alibi, AttentionPattern, Disentangled, NoPosition, RelativePositionBias
from unmask.text.batch import SequenceLayout


class ReferenceKernel:
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
        """Sequence by sequence: scores, mask, softmax, dropout of probabilities, mix."""
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
