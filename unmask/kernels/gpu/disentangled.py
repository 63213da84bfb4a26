"""Disentangled attention on a GPU in Triton, with extra memory linear in tokens and fast distant tiles.

Position terms come from bands (`unmask.kernels.triton.disentangled_launch`), made by matrix products for as
many heads at a time as `BYTES_AT_ONCE` allows. With ``TRITON_INTERPRET=1`` in the environment before triton
is first imported, the kernel runs on a CPU, slowly, for tests.
"""

import os

import torch
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.tile import AttentionBias
from unmask.kernels.triton.disentangled_launch import Attention, Tiles
from unmask.spec import AttentionPattern, Disentangled, FullAttention
from unmask.text.batch import SequenceLayout


class TritonDisentangledKernel(Kernel):
    """Flash attention with disentangled position terms, forward and backward.

    Products of 16-bit inputs accumulate in float32, softmax is in float32; bands, probabilities and their
    gradients are rounded to the dtype of the inputs before they enter a product.
    """

    capability = Capability(
        name="triton-disentangled",
        computes="Triton tiles with position terms from bands",
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        patterns=frozenset({FullAttention}),
        positions=frozenset({Disentangled}),
        gradients=True,
        dropout=True,
        log_sum_exp=True,
        head_widths=frozenset({32, 64, 128}),
        module="triton",
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Tiles:
        """The tiles, made at the first launch."""
        return Tiles(layout, device)

    def compute(self, call: AttentionCall, plan: Tiles) -> AttentionOutput:
        """All tiles of some heads at a time."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        refused = self._refusal(q_THK, pattern, bias)
        if refused is not None:
            raise KernelError(f"the triton-disentangled kernel {refused}")
        distances = bias.distances
        assert distances is not None
        keys_PHK, queries_PHK = (
            None if table is None else table.to(q_THK)
            for table in (distances.keys_PHK, distances.queries_PHK)
        )
        # Features of one head must be contiguous.
        q_THK, k_THK, v_THK = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_THK, k_THK, v_THK))
        o_THK, lse_HT = Attention.apply(  # type: ignore[no-untyped-call]
            q_THK, k_THK, v_THK, keys_PHK, queries_PHK, distances.position, plan, dropout
        )
        return AttentionOutput(o_THK, lse_HT.T if log_sum_exp else None)

    def _refusal(self, q_THK: Tensor, pattern: AttentionPattern, bias: AttentionBias) -> str | None:
        """Why it cannot run this; None if it can."""
        can = self.capability
        if can.unavailable() is not None:
            return can.unavailable()
        listed = (
            isinstance(pattern, FullAttention)
            and bias.distances is not None
            and bias.slopes_H is None
            and bias.relative is None
            and bias.sinks_H is None
            and str(q_THK.dtype).removeprefix("torch.") in can.dtypes
            and can.head_widths is not None
            and q_THK.shape[-1] in can.head_widths
        )
        if not listed:
            return "was called for something its record does not list"
        if q_THK.device.type not in can.devices and os.environ.get("TRITON_INTERPRET") != "1":
            return f"runs on cuda, not on {q_THK.device.type} unless Triton interprets"
        return None
