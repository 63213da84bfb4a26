"""Launch the Triton code of disentangled attention, and connect it to autograd.

Importable without triton, which is needed only to launch. Position terms are bands: for each token, its
product with the table's row of each distance. Columns of a band are distances ``query - key``, decreasing by
one from the distance at and above which all use one row to the distance at and below which all do. A band is
one matrix product with the table's rows in that order, and its gradients are products too. Work and memory
are linear in tokens.

Axes: W columns of a band.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.kernels.distances import rows_and_ends
from unmask.spec import Disentangled
from unmask.text.batch import SequenceLayout

LENGTHS = 64
"""Bands are made for lengths in multiples of this, so that batches share them."""

ALIGNED = 16
"""Columns come in multiples of this, so that products run at full speed; extra columns are not read."""

BYTES_AT_ONCE = 1 << 30
"""Maximum bytes of the bands of heads that run together; a head with larger bands runs alone."""


@dataclass(frozen=True, eq=False)
class Band:
    """The columns of a band."""

    rows_W: Tensor
    """The table's row that each column reads, int64; W columns."""
    fold_PW: Tensor
    """1 where a column reads a row, float32: sums of columns by row."""
    high: int
    """Distance of the first column and, at and beyond it, of every greater one."""
    last: int
    """The column that stands for its distance, ``high - last``, and every lesser one."""

    @property
    def columns(self) -> int:
        """W."""
        return len(self.rows_W)


def band_of(position: Disentangled, longest: int, device: torch.device) -> Band:
    """The band for texts of at most ``longest`` tokens."""
    return _made(position, -(-longest // LENGTHS) * LENGTHS, device)


@lru_cache(maxsize=64)
def _made(position: Disentangled, longest: int, device: torch.device) -> Band:
    rows, low, high = rows_and_ends(position, longest)
    last, middle = high - low, longest - 1
    falling = rows[middle + low : middle + high + 1].flip(0)
    columns = -(-(last + 1) // ALIGNED) * ALIGNED
    fold_PW = torch.zeros(2 * position.span, columns)
    fold_PW[falling, torch.arange(last + 1)] = 1
    rows_W = torch.nn.functional.pad(falling, (0, columns - last - 1))
    return Band(rows_W.to(device), fold_PW.to(device), high, last)


def band_products(x_HTK: Tensor, table_PHK: Tensor, band: Band, scale: float) -> Tensor:
    """``scale`` times the product of each token with the row of each column, shape (H, T, W)."""
    table_HKW = table_PHK[band.rows_W].permute(1, 2, 0)
    return torch.baddbmm(x_HTK.new_zeros(()), x_HTK, table_HKW, beta=0, alpha=scale)


def add_token_gradients(
    sum_HTK: Tensor, gradient_HTW: Tensor, table_PHK: Tensor, band: Band, scale: float
) -> None:
    """Add to ``sum_HTK`` the band gradient's contribution to the gradient of the tokens."""
    sum_HTK.baddbmm_(gradient_HTW, table_PHK[band.rows_W].transpose(0, 1), alpha=scale)


def table_gradients(x_HTK: Tensor, gradient_HTW: Tensor, band: Band, scale: float) -> Tensor:
    """The band gradient's contribution to the gradient of the table, shape (P, H, K), float32.

    Columns that read one row are summed by a product with zeros and ones, in a fixed order.
    """
    by_column_HWK = torch.baddbmm(x_HTK.new_zeros(()), gradient_HTW.mT, x_HTK, beta=0, alpha=scale)
    by_row_HPK = torch.matmul(band.fold_PW, by_column_HWK.float())
    return by_row_HPK.transpose(0, 1)


def band_ends(band_HTW: Tensor, band: Band) -> Tensor:
    """The columns of the two ends as rows of tokens, shape (H, 2, T)."""
    return torch.stack((band_HTW[..., 0], band_HTW[..., band.last]), dim=1)


def heads_together(heads: int, head_bytes: int) -> Iterator[slice]:
    """Groups of heads of about equal size whose bands fit in `BYTES_AT_ONCE`."""
    most = max(1, min(heads, BYTES_AT_ONCE // max(1, head_bytes)))
    runs = -(-heads // most)
    for run in range(runs):
        yield slice(run * heads // runs, (run + 1) * heads // runs)


PER_LN = 1 / math.log(2)


@dataclass(frozen=True)
class Launch:
    """The launch parameters of a Triton function."""

    tile: int
    """Tokens that a program owns."""
    step: int
    """Tokens of the other side that it visits at a time."""
    warps: int
    stages: int


FORWARD, QUERIES, KEYS = "forward", "backward_queries", "backward_keys"

LAUNCHES: dict[tuple[str, int], Launch] = {
    (FORWARD, 32): Launch(128, 64, 8, 3),
    (FORWARD, 64): Launch(128, 64, 8, 3),
    (FORWARD, 128): Launch(128, 32, 8, 3),
    (QUERIES, 32): Launch(128, 32, 8, 2),
    (QUERIES, 64): Launch(128, 64, 8, 2),
    (QUERIES, 128): Launch(128, 32, 8, 2),
    (KEYS, 32): Launch(128, 32, 8, 2),
    (KEYS, 64): Launch(128, 32, 8, 2),
    (KEYS, 128): Launch(64, 16, 8, 2),
}
"""For 16-bit inputs, by function and width of a head. Chosen by what the compiler reports for a Hopper GPU:
the largest tiles that fit in registers, since none has been timed on one."""

DROPPING = {
    (QUERIES, 64): Launch(64, 32, 8, 2),
    (QUERIES, 128): Launch(64, 16, 8, 2),
    (KEYS, 64): Launch(64, 16, 8, 2),
}
"""Smaller tiles for dropout, whose random numbers take registers."""

EXACT = Launch(16, 16, 8, 1)
"""For float32, whose products run without tensor cores, of every function and width."""


def launch_of(name: str, width: int, exact: bool, dropping: bool) -> Launch:
    """The launch parameters of a Triton function for heads of ``width``."""
    if exact:
        return EXACT
    return DROPPING.get((name, width), LAUNCHES[name, width]) if dropping else LAUNCHES[name, width]


@dataclass(frozen=True, eq=False)
class Tiles:
    """A packed batch as tiles of its sequences; longest sequences first, because they take longest."""

    layout: SequenceLayout
    device: torch.device
    items: dict[int, Tensor] = field(default_factory=dict)

    def of(self, tile: int) -> Tensor:
        """First token and length of its sequence and first row of each tile, int32, shape (tiles, 3)."""
        if tile not in self.items:
            lengths = self.layout.lengths
            order = np.argsort(-lengths, kind="stable")
            tiles = -(-lengths[order] // tile)
            begin = np.repeat(np.cumsum(tiles) - tiles, tiles)
            sequence = np.repeat(order, tiles)
            items = np.stack(
                (
                    self.layout.offsets[sequence],
                    lengths[sequence],
                    (np.arange(len(sequence)) - begin) * tile,
                ),
                axis=1,
            )
            self.items[tile] = torch.from_numpy(items.astype(np.int32)).to(self.device)
        return self.items[tile]


@dataclass(frozen=True)
class Task:
    """Settings shared by forward and backward."""

    tiles: Tiles
    band: Band
    scale: float
    dropout: float

    def launch(
        self, name: str, head_slice: slice, q_THK: Tensor, tensors: tuple[Any, ...], *has: bool
    ) -> None:
        """Run one of the Triton functions for some heads; ``tensors`` are its first arguments."""
        from unmask.kernels.triton import disentangled_backward, disentangled_forward

        tokens, heads, width = q_THK.shape
        exact = q_THK.dtype == torch.float32
        how = launch_of(name, width, exact, self.dropout > 0)
        items = self.tiles.of(how.tile)
        module = disentangled_forward if name == FORWARD else disentangled_backward
        head_count = head_slice.stop - head_slice.start
        band = self.band
        getattr(module, name)[(len(items) * head_count,)](
            *tensors, items, heads, head_slice.start, head_count, tokens, band.columns, band.high, band.last,
            self.scale * PER_LN, self.dropout,
            WIDTH=width, TILE=how.tile, STEP=how.step, EXACT=exact, HAS_C=has[0], HAS_D=has[1],
            DROPOUT=self.dropout > 0, num_warps=how.warps, num_stages=how.stages,
        )  # fmt: skip

    def bands(
        self, q_THK: Tensor, k_THK: Tensor, tables_PHK: tuple[Tensor | None, Tensor | None], head_slice: slice
    ) -> tuple[Tensor, ...]:
        """Bands of queries and of keys for some heads, in units of log 2, then the ends of each.

        For a missing term, an arbitrary tensor is passed, which no program reads.
        """
        bands, ends = [], []
        for x_THK, table_PHK in zip((q_THK, k_THK), tables_PHK, strict=True):
            if table_PHK is None:
                bands.append(q_THK)
                ends.append(q_THK)
            else:
                x_HTK = x_THK[:, head_slice].transpose(0, 1)
                bands.append(band_products(x_HTK, table_PHK[:, head_slice], self.band, self.scale * PER_LN))
                ends.append(band_ends(bands[-1], self.band))
        return *bands, *ends

    def zero_band(self, q_THK: Tensor, head_slice: slice, needed: bool) -> Tensor:
        """Zeros, since no program writes distances that lead out of a text."""
        shape = (head_slice.stop - head_slice.start, len(q_THK), self.band.columns) if needed else (1,)
        return q_THK.new_zeros(shape)

    def spread(
        self,
        g_band_HTW: Tensor,
        tokens: tuple[Tensor, Tensor],
        table: tuple[Tensor | None, Tensor | None],
        head_slice: slice,
    ) -> None:
        """From the gradient of a band, add the gradient of its tokens and write that of its table.

        ``tokens`` and ``table`` are each a tensor and its gradient; that of tokens holds these heads only.
        """
        (x_THK, grad_HTK), (table_PHK, grad_PHK) = tokens, table
        if table_PHK is None or grad_PHK is None:
            return
        add_token_gradients(grad_HTK, g_band_HTW, table_PHK[:, head_slice], self.band, self.scale)
        x_HTK = x_THK[:, head_slice].transpose(0, 1)
        grad_PHK[:, head_slice] = table_gradients(x_HTK, g_band_HTW, self.band, self.scale).to(x_THK.dtype)


def _with_strides(*tensors_THK: Tensor) -> tuple[Any, ...]:
    """Each tensor with its strides of tokens and heads."""
    return tuple(part for x in tensors_THK for part in (x, x.stride(0), x.stride(1)))


class Attention(torch.autograd.Function):
    """Attention and its log-sum-exp, (H, T) in float32; keeps q, k, v, tables, result and log-sum-exp."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]  # noqa: PLR0917
        ctx, q_THK, k_THK, v_THK, keys_PHK, queries_PHK, position, tiles, dropout
    ):
        """Some heads at a time: their bands, then all their tiles."""
        tokens, heads, width = q_THK.shape
        band = band_of(position, int(tiles.layout.lengths.max()), q_THK.device)
        task = Task(tiles, band, 1 / math.sqrt(width * position.term_count), dropout)
        o_THK = q_THK.new_empty(q_THK.shape)
        lse_HT = q_THK.new_empty((heads, tokens), dtype=torch.float32)
        seed = torch.randint(1 << 62, (1,), device=q_THK.device) if dropout else lse_HT
        has = keys_PHK is not None, queries_PHK is not None
        for head_slice in heads_together(heads, sum(has) * tokens * band.columns * q_THK.element_size()):
            bands = task.bands(q_THK, k_THK, (keys_PHK, queries_PHK), head_slice)
            tensors = (*_with_strides(q_THK, k_THK, v_THK), *bands, o_THK, lse_HT, seed)
            task.launch(FORWARD, head_slice, q_THK, tensors, *has)
        ctx.save_for_backward(q_THK, k_THK, v_THK, keys_PHK, queries_PHK, o_THK, lse_HT, seed)
        ctx.task = task
        return o_THK, lse_HT

    @staticmethod
    def backward(ctx, grad_o_THK, grad_lse_HT):  # type: ignore[no-untyped-def]
        """Some heads at a time: queries and their band's gradient, then keys, values and theirs."""
        q_THK, k_THK, v_THK, keys_PHK, queries_PHK, o_THK, lse_HT, seed = ctx.saved_tensors
        task = ctx.task
        tokens, heads, width = q_THK.shape
        grad_o_THK = grad_o_THK.contiguous()
        delta_HT = (grad_o_THK.float() * o_THK).sum(-1).T - grad_lse_HT
        delta_HT = delta_HT.contiguous()
        grads_HTK = [q_THK.new_empty((heads, tokens, width)) for _ in range(3)]
        has = keys_PHK is not None, queries_PHK is not None
        grad_tables = [
            None if table is None else torch.empty_like(table) for table in (keys_PHK, queries_PHK)
        ]
        bytes_together = (sum(has) + 1) * tokens * task.band.columns * q_THK.element_size()
        for head_slice in heads_together(heads, bytes_together):
            bands = task.bands(q_THK, k_THK, (keys_PHK, queries_PHK), head_slice)
            shared = (*_with_strides(q_THK, k_THK, v_THK), *bands, grad_o_THK, lse_HT, delta_HT)
            g_q, g_k, g_v = (grad[head_slice] for grad in grads_HTK)
            g_band = task.zero_band(q_THK, head_slice, has[0])
            task.launch(QUERIES, head_slice, q_THK, (*shared, g_q, g_band, seed), *has)
            task.spread(g_band, (q_THK, g_q), (keys_PHK, grad_tables[0]), head_slice)
            del g_band  # before the next is made
            g_band = task.zero_band(q_THK, head_slice, has[1])
            task.launch(KEYS, head_slice, q_THK, (*shared, g_k, g_v, g_band, seed), *has)
            task.spread(g_band, (k_THK, g_k), (queries_PHK, grad_tables[1]), head_slice)
            del g_band
        return *(grad.transpose(0, 1) for grad in grads_HTK), *grad_tables, None, None, None
