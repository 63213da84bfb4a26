"""FlexAttention: forms of attention without a dedicated GPU kernel, mainly global tokens.

One function says whether a query attends to a key, another what is added to their score; torch compiles both
into a kernel (Dong et al. 2024). It treats the packed batch as one long sequence, padded to whole blocks.
Which blocks of queries and keys interact is computed here, on the host, from the layout: torch's own method
evaluates the function for every pair of the batch.

The block map takes T²/16,384 numbers. Products accumulate in float32; float32 inputs are multiplied as
``torch.backends.cuda.matmul`` allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from unmask.errors import KernelError
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.spec import (
    Alibi,
    AttentionPattern,
    BlockSparse,
    CausalAttention,
    FullAttention,
    NoPosition,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.text.batch import SequenceLayout

BLOCK = 128
"""Queries and keys per block of the map, torch's default."""

FILLING = -1
"""The sequence of the padding in the last block; it attends to itself, so that no softmax is empty."""


@dataclass(frozen=True)
class FlexPlan:
    """Everything that depends on the layout and the attention pattern."""

    tokens: int
    """T, without padding."""
    block_mask: Any
    """Torch's `BlockMask`: the map of blocks and the rule for their inside."""


class FlexKernel(Kernel):
    """One call of compiled `flex_attention` for the whole batch; uncompiled, and slow, on a CPU.

    Compiled without graph breaks: exceeding torch's recompilation limit in one process is an error, never a
    dense run. On a CPU torch provides no gradients, so it is not offered there, except in tests.
    """

    capability = Capability(
        name="flex",
        computes="torch FlexAttention, its map of blocks from the layout",
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        patterns=frozenset({FullAttention, CausalAttention, SlidingWindow, SlidingWindowGlobal}),
        positions=frozenset({NoPosition, Alibi}),
        gradients=True,
        dropout=False,
        log_sum_exp=True,
        head_widths=frozenset({16, 32, 64, 128, 256}),
        module="triton",
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> FlexPlan:
        """The map of blocks and the rule, with its tensors on the device."""
        from torch.nn.attention.flex_attention import BlockMask

        any_allowed, every = block_map(layout, pattern)
        number_some, index_some = (array.to(device) for array in _listed(any_allowed & ~every))
        number_every, index_every = (array.to(device) for array in _listed(every))
        filled = len(any_allowed) * BLOCK
        mask = BlockMask.from_kv_blocks(
            number_some,
            index_some,
            number_every,
            index_every,
            BLOCK_SIZE=BLOCK,
            mask_mod=_rule(layout, pattern, filled, device),
            seq_lengths=(filled, filled),
        )
        return FlexPlan(layout.token_count, mask)

    def compute(self, call: AttentionCall, plan: FlexPlan) -> AttentionOutput:
        """The whole batch as one sequence whose parts do not attend to one another."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        if dropout or not bias.only_slopes or type(pattern) not in self.capability.patterns:
            raise KernelError("the flex kernel was called for something its record does not list")
        from torch.nn.attention.flex_attention import AuxRequest

        filling = plan.block_mask.seq_lengths[0] - plan.tokens
        q_1HTK, k_1HTK, v_1HTK = (
            pad(x_THK, (0, 0, 0, 0, 0, filling)).transpose(0, 1)[None] for x_THK in (q_THK, k_THK, v_THK)
        )
        score_mod = None if bias.slopes_H is None else _bias(bias.slopes_H.to(q_THK.device, torch.float32))
        o_1HTK, sums = _flex_attention(q_THK.device.type)(
            q_1HTK,
            k_1HTK,
            v_1HTK,
            score_mod=score_mod,
            block_mask=plan.block_mask,
            return_aux=AuxRequest(lse=log_sum_exp),
        )
        lse_TH = sums.lse[0].T[: plan.tokens] if log_sum_exp else None
        return AttentionOutput(o_1HTK[0].transpose(0, 1)[: plan.tokens], lse_TH)


def block_map(
    layout: SequenceLayout, pattern: AttentionPattern
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which query blocks attend to any of each key block, and which to all of it.

    Both have shape (blocks, blocks). The first may contain extra blocks, the second may miss some.

    Raises:
        KernelError: the attention pattern is not supported.
    """
    sequence_T = _filled_sequences(layout)
    first, last = sequence_T[::BLOCK], sequence_T[BLOCK - 1 :: BLOCK]
    # Padding comes after every sequence, and sequences are numbered in order.
    first, last = (np.where(numbers == FILLING, layout.sequence_count, numbers) for numbers in (first, last))
    share = (first[:, None] <= last[None, :]) & (first[None, :] <= last[:, None])
    alone = first == last
    same = share & alone[:, None] & alone[None, :]
    between = np.abs(np.subtract.outer(np.arange(len(first)), np.arange(len(first))))
    nearest = np.maximum(between * BLOCK - (BLOCK - 1), 0)
    match pattern:
        case FullAttention():
            return share, same
        case CausalAttention():
            return np.tril(share), np.tril(same, -1)
        case SlidingWindow(radius=radius, dilation=dilation):
            any_allowed = share & (nearest <= radius * dilation)
            inside = (between + 1) * BLOCK - 1 <= radius
            return any_allowed, same & inside if dilation == 1 else np.zeros_like(same)
        case SlidingWindowGlobal():
            any_allowed, every = block_map(layout, pattern.window)
            for block, blocks in _global_places(layout):
                any_allowed[block, blocks] = any_allowed[blocks, block] = True
            return any_allowed, every
        case _:
            raise KernelError(f"the flex kernel has no {type(pattern).__name__} pattern")


def _filled_sequences(layout: SequenceLayout) -> NDArray[np.int64]:
    """The sequence of every token, padding included."""
    return np.pad(layout.sequence_of_T, (0, -layout.token_count % BLOCK), constant_values=FILLING)


def _global_places(layout: SequenceLayout) -> list[tuple[int, slice]]:
    """Blocks that hold a global token, each with the blocks of the sequence it belongs to."""
    if layout.globals_T is None:
        return []
    (places,) = np.nonzero(layout.globals_T)
    pairs = np.unique(np.stack((places // BLOCK, layout.sequence_of_T[places])), axis=1)
    ends = (layout.offsets[1:] - 1) // BLOCK + 1
    return [
        (int(block), slice(int(layout.offsets[sequence]) // BLOCK, int(ends[sequence])))
        for block, sequence in pairs.T
    ]


def _listed(blocks: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Torch's format: the number of blocks of each row, (1, 1, rows), and their indices, those first."""
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    number = blocks.sum(axis=1, dtype=np.int32)
    return torch.from_numpy(number)[None, None], torch.from_numpy(order)[None, None]


def _rule(
    layout: SequenceLayout, pattern: AttentionPattern, filled: int, device: torch.device
) -> Callable[..., Tensor]:
    """Whether a query attends to a key; both are positions in the batch."""
    sequence_T = torch.from_numpy(_filled_sequences(layout).astype(np.int32)).to(device)
    window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        together = sequence_T[query] == sequence_T[key]
        match window:
            case CausalAttention():
                return together & (key <= query)
            case FullAttention():
                return together
            case BlockSparse():
                raise AssertionError("the kernel declares that it does not compute sparse blocks")
            case SlidingWindow():
                pass
            case _:
                assert_never(window)
        near = (query - key).abs() <= window.radius * window.dilation
        if window.dilation > 1:
            near = near & ((query - key) % window.dilation == 0)
        return together & near

    if not isinstance(pattern, SlidingWindowGlobal) or layout.globals_T is None:
        return seen
    globals_T = torch.from_numpy(np.pad(layout.globals_T, (0, filled - layout.token_count))).to(device)

    def seen_or_global(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        marked = (globals_T[query] | globals_T[key]) & (sequence_T[query] == sequence_T[key])
        return seen(batch, head, query, key) | marked

    return seen_or_global


def _bias(slopes_H: Tensor) -> Callable[..., Tensor]:
    """The ALiBi bias of a query and a key."""

    def biased(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score - slopes_H[head] * (query - key).abs()

    return biased


@cache
def _flex_attention(device: str) -> Callable[..., Any]:
    """Compiled except on a CPU; without graph breaks, so that it never runs densely on a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    plain: Callable[..., Any] = flex_attention
    return plain if device == "cpu" else torch.compile(plain, fullgraph=True)
