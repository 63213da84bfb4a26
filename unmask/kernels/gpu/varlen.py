"""Torch's own attention over packed sequences: FlashAttention 2 behind `varlen_attn` (Dao 2023).

It takes the packed batch unchanged, so cost depends only on the tokens, and for windows only on the keys in
them. Its products accumulate in float32; probabilities are rounded to the inputs' half precision before the
product with values. Its backward ignores a gradient of the log-sum-exp, so the log-sum-exp is not returned.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.tile import AttentionBias
from unmask.spec import AttentionPattern, CausalAttention, FullAttention, NoPosition, SlidingWindow
from unmask.text.batch import SequenceLayout

UNBOUNDED = (-1, -1)
"""Torch's value for full attention."""


@dataclass(frozen=True)
class Offsets:
    """A packed batch in the kernel's format."""

    offsets: Tensor
    """Where each sequence begins, and the end, int32, shape (S + 1,), on the tokens' device."""
    longest: int
    """Tokens of the longest sequence; on the host, so that nothing waits for the device."""
    window: tuple[int, int]
    """Keys of the window before and after a query."""


class VarlenKernel(Kernel):
    """One call of `torch.nn.attention.varlen.varlen_attn` for the whole batch."""

    capability = Capability(
        name="varlen",
        computes="torch varlen_attn (FlashAttention 2)",
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"bfloat16", "float16"}),
        patterns=frozenset({FullAttention, CausalAttention, SlidingWindow}),
        positions=frozenset({NoPosition}),
        gradients=True,
        dropout=False,
        log_sum_exp=False,
        head_widths=frozenset(range(8, 257, 8)),
        preferred_lengths=(129, None),
        module="torch.nn.attention.varlen",
        dilation=False,
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Offsets:
        """Offsets on the device."""
        offsets = torch.from_numpy(layout.offsets.astype(np.int32)).to(device)
        return Offsets(offsets, int(layout.lengths.max()), window_of(pattern))

    def compute(self, call: AttentionCall, plan: Offsets) -> AttentionOutput:
        """All sequences at once."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        listed = (
            q_THK.device.type in self.capability.devices
            and str(q_THK.dtype).removeprefix("torch.") in self.capability.dtypes
        )
        if dropout or log_sum_exp or bias != AttentionBias() or not listed:
            raise KernelError("the varlen kernel was called for something its record does not list")
        if plan.window != window_of(pattern):
            raise KernelError("the varlen kernel was called with the plan of another pattern")
        from torch.nn.attention.varlen import varlen_attn

        # Arguments up to window_size have the same names and meaning from torch 2.11 on; later ones differ.
        o_THK = varlen_attn(
            q_THK,
            k_THK,
            v_THK,
            plan.offsets,
            plan.offsets,
            plan.longest,
            plan.longest,
            window_size=plan.window,
        )
        assert isinstance(o_THK, Tensor)
        return AttentionOutput(o_THK, None)


def window_of(pattern: AttentionPattern) -> tuple[int, int]:
    """Keys before and after a query.

    Raises:
        KernelError: the pattern is neither full nor causal attention nor an undilated window.
    """
    match pattern:
        case FullAttention():
            return UNBOUNDED
        case CausalAttention():
            return (-1, 0)
        case SlidingWindow(radius=radius, dilation=1):
            return (radius, radius)
        case _:
            raise KernelError(
                f"the varlen kernel was called for {pattern}, and its record lists none but whole and causal "
                "attention and windows without gaps"
            )
