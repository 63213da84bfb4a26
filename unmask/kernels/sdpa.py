"""Torch's scaled dot product attention over a packed batch, one call per distinct length.

Sequences of equal length form a rectangle (B, H, N, K) that needs no padding mask. If sequences of equal
length are already adjacent, as `token_budget_batches` orders them, rectangles are views of the packed tensors
and nothing is moved.

For training on a CPU there are masks, one for each length. A window is a mask shared by all texts of a
length, and texts shorter than the window need none; ALiBi and relative position biases are additive masks.
Scores outside a window are computed and discarded, so for texts much longer than the window blocks are
faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.tile import AttentionBias, Tile, allowed
from unmask.spec import (
    Alibi,
    AttentionPattern,
    CausalAttention,
    FullAttention,
    NoPosition,
    RelativePositionBias,
    SlidingWindow,
)
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class Rectangles:
    """A packed batch as runs of sequences of equal length."""

    shapes: tuple[tuple[int, int], ...]
    """(B, N) of each run, in order; their products sum to T."""
    tokens_T: Tensor | None
    """Indices that sort packed tokens by run; None if they are already in that order."""
    restore_T: Tensor | None
    """The inverse permutation."""

    @classmethod
    def of(cls, layout: SequenceLayout, device: torch.device) -> "Rectangles":
        """One run for each distinct length; tokens are reordered only if equal lengths are not adjacent."""
        lengths = layout.lengths
        runs = [(length, len(list(run))) for length, run in groupby(lengths.tolist())]
        if len({length for length, _ in runs}) == len(runs):
            return cls(tuple((count, length) for length, count in runs), None, None)
        order = np.argsort(lengths, kind="stable")
        tokens_T = np.concatenate([np.arange(*layout.offsets[s : s + 2]) for s in order])
        distinct, counts = np.unique(lengths, return_counts=True)
        shapes = tuple(zip(counts.tolist(), distinct.tolist(), strict=True))
        return cls(
            shapes,
            torch.from_numpy(tokens_T).to(device),
            torch.from_numpy(np.argsort(tokens_T)).to(device),
        )

    def cut(self, x: Tensor) -> Iterator[Tensor]:
        """Packed tokens (T, ...) as one (B, N, ...) for each run; views if no token has to move."""
        yield from self.split(self.sort(x))

    def sort(self, x: Tensor) -> Tensor:
        """Packed tokens in the order of the runs."""
        return x if self.tokens_T is None else x.index_select(0, self.tokens_T)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of `sort`."""
        return x if self.restore_T is None else x.index_select(0, self.restore_T)

    def split(self, x: Tensor) -> Iterator[Tensor]:
        """Tokens in the order of the runs as one (B, N, ...) for each run, views.

        One split instead of slices: the gradient of each separate slice would be as large as the batch.
        """
        parts = torch.split(x, [count * length for count, length in self.shapes])
        for shape, part in zip(self.shapes, parts, strict=True):
            yield part.view(*shape, *x.shape[1:])

    def join(self, parts: list[Tensor]) -> Tensor:
        """The inverse of `cut`."""
        flat = [part.flatten(0, 1) for part in parts]
        return self.restore(flat[0] if len(flat) == 1 else torch.cat(flat))


class SdpaKernel(Kernel):
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

    def compute(self, call: AttentionCall, plan: Rectangles) -> AttentionOutput:
        """Each rectangle by SDPA."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        if log_sum_exp or type(pattern) not in self.capability.patterns or bias != AttentionBias():
            raise KernelError("the sdpa kernel was called for something its record does not list")
        mixed, causal = [], isinstance(pattern, CausalAttention)
        for each in zip(plan.cut(q_THK), plan.cut(k_THK), plan.cut(v_THK), strict=True):
            q_BHNK, k_BHNK, v_BHNK = (x_BNHK.transpose(1, 2) for x_BNHK in each)
            o_BHNK = scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, dropout_p=dropout, is_causal=causal)
            mixed.append(o_BHNK.transpose(1, 2))
        return AttentionOutput(plan.join(mixed), None)


@dataclass(frozen=True, eq=False)
class MaskedPlan:
    """The arrangement of a batch."""

    rectangles: Rectangles
    attended: tuple[Tensor, ...] | None
    """Of each run, which keys are attended to, (B, N); None if all are."""


class MaskedSdpaKernel(Kernel):
    """One call of SDPA per distinct length, computed in float32 or better."""

    capability = Capability(
        name="sdpa-masked",
        computes="torch SDPA, one call and one mask per distinct length",
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        patterns=frozenset({FullAttention, CausalAttention, SlidingWindow}),
        positions=frozenset({NoPosition, Alibi, RelativePositionBias}),
        gradients=True,
        dropout=True,
        log_sum_exp=False,
        preferred_lengths=(1, 0),
        # No faster kernel has relative position biases; longer texts would take too much memory.
        preferred_lengths_by={
            "unattended": (1, 1024),
            "RelativePositionBias": (1, 1024),
            "gradients": (1, 512),
        },
        unattended=True,
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> "MaskedPlan":
        """Runs of equal length, and the keys that are attended to."""
        rectangles, attended = Rectangles.of(layout, device), None
        if layout.unattended_T is not None:
            attended = tuple(rectangles.cut(torch.from_numpy(~layout.unattended_T).to(device)))
        return MaskedPlan(rectangles, attended)

    def compute(self, call: AttentionCall, plan: "MaskedPlan") -> AttentionOutput:
        """Each rectangle by SDPA."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        if log_sum_exp or bias.distances is not None or bias.sinks_H is not None:
            raise KernelError("the sdpa-masked kernel was called for something its record does not list")
        exact = torch.promote_types(q_THK.dtype, torch.float32)
        mixed, runs = [], plan.rectangles
        parts = zip(*(runs.cut(x_THK.to(exact)) for x_THK in (q_THK, k_THK, v_THK)), strict=True)
        for run, each in enumerate(parts):
            q_BHNK, k_BHNK, v_BHNK = (x_BNHK.transpose(1, 2) for x_BNHK in each)
            mask = added(q_BHNK.shape[2], pattern, bias, q_BHNK)
            if plan.attended is not None:
                mask = _without(plan.attended[run], mask)
            o_BHNK = scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, attn_mask=mask, dropout_p=dropout)
            mixed.append(o_BHNK.transpose(1, 2))
        return AttentionOutput(runs.join(mixed).to(q_THK.dtype), None)


def added(length: int, pattern: AttentionPattern, bias: AttentionBias, like: Tensor) -> Tensor | None:
    """The mask or bias of a text's scores: (N, N) or (1, H, N, N); None for neither."""
    tile = Tile.whole(length)
    ends_within = (
        isinstance(pattern, SlidingWindow) and pattern.dilation == 1 and length <= pattern.radius + 1
    )
    seen_NN = None if ends_within else allowed(tile, pattern, like.device)
    bias_HNN = bias.added(tile, like)
    if bias_HNN is None:
        return seen_NN
    return (bias_HNN if seen_NN is None else bias_HNN.masked_fill(~seen_NN, float("-inf")))[None]


def _without(attended_BN: Tensor, mask: Tensor | None) -> Tensor:
    """A mask or bias that also leaves out the keys that are not attended to: (B, 1 or H, N, N)."""
    seen_B11N = attended_BN[:, None, None, :]
    if mask is None:
        return seen_B11N
    return mask & seen_B11N if mask.dtype == torch.bool else mask.masked_fill(~seen_B11N, float("-inf"))
