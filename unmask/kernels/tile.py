"""The definition of attention: the score of a query and a key, and whether the query may attend to it.

Everything else evaluates these two functions: the reference kernel on whole sequences, a fast kernel's test
on its output, a plot of a head on the rectangle it shows.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import KernelError
from unmask.kernels.distances import DistanceBias, RelativeBias
from unmask.spec import (
    Alibi,
    AttentionPattern,
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    NoPosition,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
)
from unmask.spec.attention import AttentionPosition
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class Tile:
    """A rectangle of the attention of one sequence: queries ``rows`` by keys ``columns``.

    Both count tokens from the beginning of the sequence; ends are exclusive.
    """

    first_row: int
    end_row: int
    first_column: int
    end_column: int

    @classmethod
    def whole(cls, length: int) -> "Tile":
        """Every query by every key of a sequence of ``length`` tokens."""
        return cls(0, length, 0, length)

    @property
    def extent(self) -> tuple[int, int, int]:
        """The position of the first key minus that of the last query, the number of queries, that of keys."""
        rows, columns = self.end_row - self.first_row, self.end_column - self.first_column
        return self.first_column - self.end_row + 1, rows, columns

    def distance_RC(self, device: torch.device) -> Tensor:
        """The key's position minus the query's, int64, shape (R, C)."""
        rows = torch.arange(self.first_row, self.end_row, device=device)
        columns = torch.arange(self.first_column, self.end_column, device=device)
        return columns[None, :] - rows[:, None]


@dataclass(frozen=True, eq=False)
class MaskContext:
    """What an attention pattern may need to know of a sequence beyond the tile."""

    length: int
    """Its tokens."""
    heads: int
    """Heads of the layer."""
    globals_N: NDArray[np.bool_] | None = None
    """Which tokens are global; None for none."""
    head: int | None = None
    """The only head to compute; None for all."""
    unattended_N: NDArray[np.bool_] | None = None
    """Which tokens no token attends to; None for none."""

    @classmethod
    def of(cls, layout: SequenceLayout, sequence: int, heads: int) -> "MaskContext":
        """The context of one sequence of a batch, for all heads."""
        rows = layout.rows(sequence)
        globals_N = None if layout.globals_T is None else layout.globals_T[rows]
        unattended_N = None if layout.unattended_T is None else layout.unattended_T[rows]
        return cls(rows.stop - rows.start, heads, globals_N, unattended_N=unattended_N)


@dataclass(frozen=True)
class AttentionBias:
    """The terms added to the content scores of one layer, as tensors; none if all are None."""

    slopes_H: Tensor | None = None
    """ALiBi's slope of each head."""
    distances: DistanceBias | None = None
    """Disentangled positions: the layer's projections of the distance table."""
    relative: RelativeBias | None = None
    """Relative position biases: the table that layers share."""
    sinks_H: Tensor | None = None
    """Attention sinks: each head's learned score, which takes part in the softmax and belongs to no key."""

    @classmethod
    def of(cls, position: AttentionPosition, heads: int) -> "AttentionBias":
        """The terms of a layer. Rotary positions act on queries and keys beforehand, so they add nothing.

        Raises:
            KernelError: the terms depend on the layer's weights, not on its spec alone.
        """
        match position:
            case NoPosition() | Rotary():
                return cls()
            case Alibi():
                return cls(slopes_H=alibi_slopes(heads))
            case Disentangled():
                raise KernelError("Disentangled terms are the layer's projections of its table; give those")
            case RelativePositionBias():
                raise KernelError("relative position biases are a trained table; give it")
            case _:
                assert_never(position)

    def of_head(self, head: int) -> "AttentionBias":
        """The terms of one head, H = 1."""
        return AttentionBias(
            None if self.slopes_H is None else self.slopes_H[head : head + 1],
            None if self.distances is None else self.distances.of_head(head),
            None if self.relative is None else self.relative.of_heads(slice(head, head + 1)),
            None if self.sinks_H is None else self.sinks_H[head : head + 1],
        )

    @property
    def only_slopes(self) -> bool:
        """Whether ALiBi's are the only terms, or there are none."""
        return self.distances is None and self.relative is None and self.sinks_H is None

    def with_sinks(self, lse_HR: Tensor, heads: slice = slice(None)) -> Tensor:
        """The log-sum-exp of rows of some heads, (..., H, R), with the head's sink among what is summed."""
        if self.sinks_H is None:
            return lse_HR
        return torch.logaddexp(lse_HR, self.sinks_H[heads].to(lse_HR)[:, None])

    def kept_by_keys(self, lse_TH: Tensor) -> Tensor:
        """The part of rows that sinks leave to keys, from the log-sum-exp over keys, (T, H) both.

        What is mixed without sinks, times this part, is what is mixed with them.
        """
        assert self.sinks_H is not None
        return torch.sigmoid(lse_TH - self.sinks_H.to(lse_TH))

    def added(self, tile: Tile, like: Tensor) -> Tensor | None:
        """What is added to a rectangle of scaled scores, (H, R, C), of the dtype and device of ``like``.

        None for nothing. Disentangled terms are not among it: they are scaled with the content.
        """
        total_HRC = None
        if self.slopes_H is not None:
            far_RC = tile.distance_RC(like.device).abs()
            total_HRC = -(self.slopes_H.to(like.device)[:, None, None] * far_RC).to(like)
        if self.relative is not None:
            term_HRC = self.relative.terms(*tile.extent, like)
            total_HRC = term_HRC if total_HRC is None else total_HRC + term_HRC
        return total_HRC


def scores(tile: Tile, q_RHK: Tensor, k_CHK: Tensor, bias: AttentionBias) -> Tensor:
    """Scores before the softmax, shape (H, R, C), in the dtype of the queries.

    ``q k / sqrt(K)`` (Vaswani et al. 2017) plus the terms. Disentangled positions divide by
    ``sqrt(K n)``, n being the number of terms including content.

    Args:
        tile: which queries and keys these are.
        q_RHK: queries of the tile's rows.
        k_CHK: keys of the tile's columns.
        bias: the added terms, for these H heads.
    """
    s_HRC, parts = torch.einsum("rhk,chk->hrc", q_RHK, k_CHK), 1
    if bias.distances is not None:
        parts = bias.distances.position.term_count
        s_HRC = bias.distances.add_to(s_HRC, q_RHK, k_CHK, tile.distance_RC(q_RHK.device))
    s_HRC = s_HRC / math.sqrt(q_RHK.shape[-1] * parts)
    added_HRC = bias.added(tile, s_HRC)
    return s_HRC if added_HRC is None else s_HRC + added_HRC


def allowed(
    tile: Tile, pattern: AttentionPattern, device: torch.device, context: MaskContext | None = None
) -> Tensor | None:
    """Which keys each query may attend to: bool, or None if the pattern allows the whole tile.

    Shape (R, C), or (H, R, C) if heads differ, as with the random blocks of `BlockSparse`.

    Args:
        tile: which queries and keys these are.
        pattern: which keys a query may attend to.
        device: the device of the result.
        context: what the pattern needs to know of the sequence; None if it needs nothing.

    Raises:
        KernelError: the pattern needs a context, and none was given.
    """
    counts = key_counts(tile, pattern, device, context)
    return None if counts is None else counts > 0


def key_counts(
    tile: Tile, pattern: AttentionPattern, device: torch.device, context: MaskContext | None
) -> Tensor | None:
    """How often each query counts each key: bool if at most once, else int64. See `allowed`."""
    counts = _pattern_counts(tile, pattern, device, context)
    if context is None or context.unattended_N is None:
        return counts
    attended_C = ~context.unattended_N[tile.first_column : tile.end_column]
    seen_RC = torch.from_numpy(attended_C).to(device).expand(tile.end_row - tile.first_row, -1)
    return seen_RC if counts is None else counts * seen_RC


def _pattern_counts(
    tile: Tile, pattern: AttentionPattern, device: torch.device, context: MaskContext | None
) -> Tensor | None:
    """`key_counts` of the pattern alone."""
    match pattern:
        case FullAttention():
            return None
        case CausalAttention():
            return tile.distance_RC(device) <= 0
        case SlidingWindow():
            distance_RC = tile.distance_RC(device)
            seen_RC = distance_RC.abs() <= pattern.radius * pattern.dilation
            return seen_RC & (distance_RC % pattern.dilation == 0)
        case SlidingWindowGlobal():
            near_RC = _pattern_counts(tile, pattern.window, device, None)
            if context is None or context.globals_N is None or near_RC is None:
                return near_RC
            globals_N = torch.from_numpy(context.globals_N).to(device)
            rows_R = globals_N[tile.first_row : tile.end_row]
            columns_C = globals_N[tile.first_column : tile.end_column]
            return near_RC | rows_R[:, None] | columns_C[None, :]
        case BlockSparse():
            return _block_sparse_counts(tile, pattern, device, context)
        case _:
            assert_never(pattern)


def _block_sparse_counts(
    tile: Tile, pattern: BlockSparse, device: torch.device, context: MaskContext | None
) -> Tensor | None:
    if context is None:
        raise KernelError("block-sparse attention depends on the sequence; give its MaskContext")
    if context.length <= pattern.whole_up_to:
        return None
    blocks_R = np.arange(tile.first_row, tile.end_row) // pattern.block
    blocks_C = np.arange(tile.first_column, tile.end_column) // pattern.block
    counts = block_counts(pattern, -(-context.length // pattern.block), context.heads)
    if not pattern.heads_differ:
        counts = counts[0]
    elif context.head is not None:
        counts = counts[context.head : context.head + 1]
    return torch.from_numpy(counts[..., blocks_R[:, None], blocks_C[None, :]]).to(device)


def probabilities(
    tile: Tile,
    q_RHK: Tensor,
    k_CHK: Tensor,
    pattern: AttentionPattern,
    bias: AttentionBias,
    *,
    context: MaskContext | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax over the tile's columns (H, R, C), and its log-sum-exp (H, R).

    Exact if the tile contains every column that its rows may attend to. A key that counts n times has ln n
    added to its score, which weights it n-fold. With attention sinks, which are in the log-sum-exp, rows sum
    to less than 1.
    """
    s_HRC = scores(tile, q_RHK, k_CHK, bias)
    counts = key_counts(tile, pattern, q_RHK.device, context)
    if counts is not None and counts.dtype == torch.bool:
        s_HRC = s_HRC.masked_fill(~counts, -math.inf)
    elif counts is not None:
        s_HRC = s_HRC + counts.to(s_HRC.dtype).log()
    lse_HR = bias.with_sinks(torch.logsumexp(s_HRC, dim=-1))
    return torch.exp(s_HRC - lse_HR[..., None]), lse_HR


def alibi_slopes(heads: int) -> Tensor:
    """`Alibi.slopes` as a tensor, float64."""
    return torch.tensor(Alibi().slopes(heads), dtype=torch.float64, device="cpu")


PLANNED_LENGTHS = (1024, 3072, 4096)
"""Lengths, in tokens of whole blocks, whose random blocks come from one plan for long texts."""

FOCUS = 1024
"""Number of tokens from the start of a sequence that this plan draws from."""


@lru_cache(maxsize=64)
def block_counts(pattern: BlockSparse, blocks: int, heads: int) -> NDArray[np.int64]:
    """How often each query block counts each key block, shape (H, blocks, blocks).

    The window and the two global blocks together count once; every random block counts once more, even if
    the window contains it or it was drawn twice.
    """
    number = np.arange(blocks)
    ends = np.isin(number, (0, blocks - 1))
    near = np.abs(number[:, None] - number[None, :]) <= 1
    counts = np.repeat((near | ends[:, None] | ends[None, :])[None].astype(np.int64), heads, axis=0)
    random_HBR = random_blocks(pattern, blocks, heads)
    rows = np.broadcast_to(number[None, 1:-1, None], random_HBR.shape)
    head = np.broadcast_to(np.arange(heads)[:, None, None], random_HBR.shape)
    np.add.at(counts, (head, rows, random_HBR), 1)
    counts.flags.writeable = False
    return counts


def random_blocks(pattern: BlockSparse, blocks: int, heads: int) -> NDArray[np.int64]:
    """The random blocks of every query block except the first and the last, shape (H, blocks - 2, R).

    They are drawn as in the authors' code, so a seed gives the same blocks: one generator serves all heads.
    """
    chosen = np.zeros((heads, blocks - 2, pattern.random_blocks), dtype=np.int64)
    if pattern.seed is None:
        return chosen
    generator = np.random.RandomState(pattern.seed)
    if blocks * pattern.block in PLANNED_LENGTHS:
        for head in range(heads):
            chosen[head] = _long_plan(pattern, generator)[: blocks - 2]
        return chosen
    # Their code also draws for the last block and discards that, which affects no later draw of a layer.
    for row in range(1, blocks - 1):
        for head in range(heads):
            chosen[head, row - 1] = _row(pattern, row, generator)
    return chosen


def _row(pattern: BlockSparse, row: int, generator: np.random.RandomState) -> NDArray[np.int64]:
    end = 5 + 2 * pattern.random_blocks
    fixed = {row - 1, row, row + 1, 0, end - 1}
    if row == 1:
        fixed.add(end - 2)
    if row == end - 2:
        fixed.add(1)
    order = generator.permutation(np.arange(end))
    return np.array([block for block in order if block not in fixed][: pattern.random_blocks], dtype=np.int64)


def _long_plan(pattern: BlockSparse, generator: np.random.RandomState) -> NDArray[np.int64]:
    """One head's plan for a text of ``plan_tokens``; rows of the last two blocks may repeat their window."""
    blocks = pattern.plan_tokens // pattern.block
    middle = np.arange(1, blocks - 1)
    last = (FOCUS // pattern.block if 2 * pattern.block < FOCUS else blocks) - 1
    plan = np.zeros((blocks - 2, pattern.random_blocks), dtype=np.int64)
    for row in range(1, blocks - 1):
        if row > 2 and row in (blocks - 3, blocks - 2):
            choice = middle[:last]
        else:
            choice = np.concatenate((middle[: max(0, min(row - 2, last))], middle[row + 1 : last]))
        plan[row - 1] = generator.permutation(choice)[: pattern.random_blocks]
    return plan
