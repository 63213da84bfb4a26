"""Our own attention over packed sequences for GPUs, in Triton.

Short sequences share tiles: one program holds a few whole sequences, mixes them under a mask, and in the
backward pass writes all three gradients. Long sequences are split into tiles with an online softmax (Dao et
al. 2022); windows visit the tiles within their band. Every gradient has one writer, so results are
reproducible to the bit. The log-sum-exp has a gradient.

Products accumulate in float32, as does the softmax. In half precision probabilities and gradients of scores
are rounded to the inputs' dtype before products with values, queries and keys: in float16 within 4e-3 of the
definition for inputs of standard deviation 1. float32 is multiplied exactly, outside the tensor cores.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.tile import AttentionBias
from unmask.kernels.triton.packed_tiles import GROUPS, TILE
from unmask.spec import Alibi, AttentionPattern, CausalAttention, FullAttention, NoPosition, SlidingWindow
from unmask.text.batch import SequenceLayout

PER_LN = 1 / np.log(2)
"""Scores are exponentiated to base 2."""

ALIGNED = 4
"""int32 numbers of 16 bytes, at whose multiples tables begin: Triton compiles again for others."""


@dataclass(frozen=True, eq=False)
class PackedTables:
    """The tokens of each program: int32 tables on the tokens' device, the longest sequences first."""

    owner_T: Tensor
    """The first token of each token's sequence."""
    groups: Tensor
    """First token and end of groups of neighboring short sequences, (G, 2)."""
    tiles: Tensor
    """For every tile: its sequence's first token, that sequence's length, the tile's first row, (I, 3)."""
    long_tiles: int
    """The number of tiles of sequences in no group."""
    size: int
    """Maximum tokens of a group."""
    pattern: AttentionPattern
    span: int
    """Tokens of a window on each side; -1 if the window covers every sequence."""
    dilation: int


class TritonPackedKernel(Kernel):
    """Two programs forward and three backward for any batch."""

    capability = Capability(
        name="triton",
        computes="tiles with a running softmax, several short texts to a tile, in Triton",
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        patterns=frozenset({FullAttention, CausalAttention, SlidingWindow}),
        positions=frozenset({NoPosition, Alibi}),
        gradients=True,
        dropout=True,
        log_sum_exp=True,
        head_widths=frozenset({16, 32, 64, 80, 96, 128}),
        module="triton",
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> PackedTables:
        """Groups and tiles, copied to the device at once."""
        missing = self.capability.unavailable()
        if missing is not None:
            raise KernelError(f"the triton kernel {missing}")
        span, dilation = _span(pattern, int(layout.lengths.max()))
        size = _group_size(layout)
        tables = (
            np.repeat(layout.offsets[:-1], layout.lengths),
            group(layout, size),
            cut(layout),
        )
        owner_T, groups, tiles = _copy(tables, device)
        long_tiles = int((-(-layout.lengths[layout.lengths > size] // TILE)).sum())
        return PackedTables(
            owner_T, groups.view(-1, 2), tiles.view(-1, 3), long_tiles, size, pattern, span, dilation
        )

    def compute(self, call: AttentionCall, plan: PackedTables) -> AttentionOutput:
        """All sequences at once. ALiBi's slopes get no gradient."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        self._check(q_THK, plan, pattern, bias)
        from unmask.kernels.triton.packed_launch import INTERPRETED, packed_attention

        if q_THK.device.type != "cuda" and not INTERPRETED:
            raise KernelError(f"the triton kernel runs on cuda, not on {q_THK.device.type}")
        slopes_H = seed = None
        if bias.slopes_H is not None:
            slopes_H = (bias.slopes_H * PER_LN).to(q_THK.device, torch.float32)
        if dropout > 0:
            seed = torch.randint(2**62, (1,), device=q_THK.device)
        o_THK, lse_HT = packed_attention(
            q_THK,
            k_THK,
            v_THK,
            slopes_H,
            seed,
            plan.owner_T,
            plan.groups,
            plan.tiles,
            plan.long_tiles,
            plan.size,
            plan.span,
            plan.dilation,
            isinstance(pattern, CausalAttention),
            float(dropout),
        )
        return AttentionOutput(o_THK, lse_HT.mT if log_sum_exp else None)

    def _check(
        self, q_THK: Tensor, plan: PackedTables, pattern: AttentionPattern, bias: AttentionBias
    ) -> None:
        capability = self.capability
        width, dtype = q_THK.shape[-1], str(q_THK.dtype).removeprefix("torch.")
        if (
            not bias.only_slopes
            or width not in (capability.head_widths or ())
            or dtype not in capability.dtypes
        ):
            raise KernelError("the triton kernel was called for something its record does not list")
        if plan.pattern != pattern:
            raise KernelError(f"the triton kernel was called for {pattern} with a plan for {plan.pattern}")


def _span(pattern: AttentionPattern, longest: int) -> tuple[int, int]:
    """The radius and dilation of a query's window; a window that covers every text counts as none."""
    match pattern:
        case FullAttention() | CausalAttention():
            return -1, 1
        case SlidingWindow(radius=radius, dilation=dilation):
            whole = dilation == 1 and radius >= longest - 1
            return (-1, 1) if whole else (min(radius * dilation, longest), dilation)
        case _:
            raise KernelError(f"the triton kernel has no {type(pattern).__name__} pattern")


def _group_size(layout: SequenceLayout) -> int:
    """The smaller size if it holds every sequence that the larger one would."""
    short = layout.lengths[layout.lengths <= GROUPS[-1]]
    return next(size for size in GROUPS if not short.size or short.max() <= size)


def group(layout: SequenceLayout, size: int) -> NDArray[np.int64]:
    """Neighboring sequences that fit into ``size`` tokens together: first token and end, (G, 2)."""
    groups: list[list[int]] = []
    for start, end in zip(layout.offsets[:-1].tolist(), layout.offsets[1:].tolist(), strict=True):
        if end - start > size:
            continue
        if groups and groups[-1][1] == start and end - groups[-1][0] <= size:
            groups[-1][1] = end
        else:
            groups.append([start, end])
    return np.array(groups, dtype=np.int64).reshape(-1, 2)


def cut(layout: SequenceLayout) -> NDArray[np.int64]:
    """Tiles of every sequence, the longest sequence first, so that no long one starts last: (I, 3)."""
    order = np.argsort(-layout.lengths, kind="stable")
    count = -(-layout.lengths[order] // TILE)
    sequence = np.repeat(order, count)
    first = (np.arange(len(sequence)) - np.repeat(np.cumsum(count) - count, count)) * TILE
    return np.stack((layout.offsets[sequence], layout.lengths[sequence], first), axis=1)


def _copy(tables: tuple[NDArray[np.int64], ...], device: torch.device) -> list[Tensor]:
    """All tables in one transfer, flat."""
    padded = [np.pad(table.ravel(), (0, -table.size % ALIGNED)) for table in tables]
    together = torch.from_numpy(np.concatenate(padded).astype(np.int32)).to(device)
    ends = np.cumsum([table.size for table in padded])
    return [
        together[end - len(whole) :][: table.size]
        for end, whole, table in zip(ends.tolist(), padded, tables, strict=True)
    ]
