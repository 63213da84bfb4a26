"""Torch's scaled dot product attention over a packed batch, without a padding mask.

Sequences of equal length form a rectangle (B, H, N, K) that needs no mask, so the batch runs as one
call per distinct length. If sequences of equal length are already adjacent, as `token_budget_batches`
orders them, rectangles are views of the packed tensors and nothing is moved.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionOutput, Capability
from unmask.kernels.rectangles import Rectangles
from unmask.kernels.tile import AttentionBias
from unmask.spec import AttentionPattern, CausalAttention, FullAttention, NoPosition
from unmask.text.batch import SequenceLayout


class SdpaKernel:
    """One call of `torch.nn.functional.scaled_dot_product_attention` per distinct length."""

    capability = Capability(
        name="sdpa",
        computes="torch SDPA, one call per distinct length",
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        patterns=frozenset({FullAttention, CausalAttention}),
        positions=frozenset({NoPosition}),
        gradients=True,
        dropout=True,
        log_sum_exp=False,
        # On CPU without gradients, `tiled` is faster in float32 from here on, in bfloat16 from 64 tokens.
        preferred_lengths=(1, 31),
        preferred_lengths_by={
            "cuda": (1, None),
            # On CPU `sdpa-masked`, which computes in float32, is twice as fast backward.
            "gradients bfloat16": (513, None),
            "gradients": (1, None),
            "bfloat16": (1, 63),
            "float16": (1, None),
            "float64": (1, None),
        },
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Rectangles:
        """Runs of equal length; tokens are reordered only if equal lengths are not adjacent."""
        return Rectangles.of(layout, device)

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: Rectangles,
        *,
        pattern: AttentionPattern,
        bias: AttentionBias,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> AttentionOutput:
        """Each rectangle by SDPA; see `Kernel.attend`."""
        if log_sum_exp or type(pattern) not in self.capability.patterns or bias != AttentionBias():
            raise KernelError("the sdpa kernel was called for something its record does not list")
        mixed, causal = [], isinstance(pattern, CausalAttention)
        for each in zip(plan.cut(q_THK), plan.cut(k_THK), plan.cut(v_THK), strict=True):
            q_BHNK, k_BHNK, v_BHNK = (x_BNHK.transpose(1, 2) for x_BNHK in each)
            o_BHNK = scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, dropout_p=dropout, is_causal=causal)
            mixed.append(o_BHNK.transpose(1, 2))
        return AttentionOutput(plan.join(mixed), None)
