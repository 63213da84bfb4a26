"""Disentangled scores of a strip, some queries by all keys of a text, as matrix products and sheared views.

All keys that are far enough read one row of the table on each side, so that position scores differ from key
to key in a band only. There they are products of queries with the table's rows in the order of distances, and
likewise of keys: the scores of neighboring queries stand in such a product shifted by one column, and a view
whose row stride is shorter by one lays them one below the other. No score is gathered, and nothing is held
by pairs of tokens but the strip.

Axes: G heads times the sequences that run together (heads outermost); W distances.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from unmask.model.kernels.distances import rows_and_ends
from unmask.model.kernels.products import Staying, onednn_takes
from unmask.model.spec import Disentangled

ROWS = 128
"""Queries of a strip, and keys of a block of the band."""

PACKED_FROM = 1024
"""Rows of a matrix from which it pays to lay them out for oneDNN once, for all strips."""


@dataclass(frozen=True)
class Band:
    """Distances ``i - j`` of query i and key j, and the rows they read, in texts of one length."""

    length: int
    least: int
    """At and below this distance all keys read one row."""
    greatest: int
    """At and above this distance all do."""
    first: int
    """The first distance of ``rows_W``; strips look somewhat beyond the band."""
    rows_W: Tensor
    """The row of each distance from ``first`` on, rising by one; int64, on the host."""

    @classmethod
    def of(cls, position: Disentangled, length: int) -> "Band":
        """The band of texts of ``length`` tokens."""
        return cls(*_band(position, length))

    def columns(self, first_row: int, end_row: int) -> tuple[int, int]:
        """First and end of the keys that some query of the strip does not see as far."""
        left = min(max(0, first_row - self.greatest), self.length)
        return left, max(left, min(self.length, end_row - self.least))

    def distances(self, first_row: int, end_row: int, first_column: int, end_column: int) -> slice:
        """Where ``rows_W`` has the distances of a rectangle, as far as they are there."""
        low = max(first_row - end_column + 1, self.first)
        high = min(end_row - 1 - first_column, self.first + len(self.rows_W) - 1)
        return slice(low - self.first, high - self.first + 1)


@lru_cache(maxsize=64)
def _band(position: Disentangled, length: int) -> tuple[int, int, int, int, Tensor]:
    with torch.inference_mode(False):
        rows, least, greatest = rows_and_ends(position, length)
        first = max(1 - length, least - ROWS + 1)
        end = min(length, greatest + ROWS)
        return length, least, greatest, first, rows[first + length - 1 : end + length - 1].clone()


class Matrix:
    """Rows (G, C, K) that many vectors are multiplied by."""

    def __init__(self, rows_GCK: Tensor, *, packed: bool = False) -> None:
        self.rows_GCK = rows_GCK
        alone = len(rows_GCK) == 1 and rows_GCK.device.type == "cpu" and onednn_takes(rows_GCK.dtype)
        self.alone = Staying(rows_GCK[0], ROWS, lay_out=packed) if alone else None

    def times(self, x_GRK: Tensor, bias_GC: Tensor | None = None) -> Tensor:
        """Products (G, R, C) plus ``bias_GC``; G of the rows may be that of x without its sequences."""
        if self.alone is not None and len(x_GRK) == 1:
            return self.alone.times(x_GRK[0], None if bias_GC is None else bias_GC[0])[None]
        if bias_GC is not None:
            return torch.baddbmm(bias_GC[:, None], x_GRK, self.rows_GCK.mT)
        return by_head(x_GRK, self.rows_GCK.mT)


def by_head(x_GRK: Tensor, y_HKC: Tensor) -> Tensor:
    """Products (G, R, C) of every sequence of a head with that head's matrix."""
    together = x_GRK.reshape(len(y_HKC), -1, x_GRK.shape[-1])
    return (together @ y_HKC).view(*x_GRK.shape[:2], -1)


def shear(e_GRW: Tensor, columns: int) -> Tensor:
    """A view (G, R, columns) of products with falling distances: entry (r, c) is ``e[r, c + R - 1 - r]``."""
    group, rows, width = e_GRW.shape
    strides = (e_GRW.stride(0), width - 1, 1)
    return e_GRW.as_strided((group, rows, columns), strides, e_GRW.storage_offset() + rows - 1)


@dataclass
class KeyBlock:
    """Some keys' products with the table as queries, for all distances of the band to any query."""

    first: int
    end: int
    low: int
    """The first distance."""
    d_GCW: Tensor

    def sheared(self, first_row: int, end_row: int, first_column: int, end_column: int) -> Tensor:
        """A view (G, columns, rows) of a rectangle of this block's scores."""
        width, skipped = self.d_GCW.shape[-1], first_column - self.first
        size = (len(self.d_GCW), end_column - first_column, end_row - first_row)
        start = skipped * width + first_row - first_column - self.low
        strides = (self.d_GCW.stride(0), width - 1, 1)
        return self.d_GCW.as_strided(size, strides, self.d_GCW.storage_offset() + start)


@dataclass
class Strips:
    """What the strips of one group share; tables are expanded to the distances of the band."""

    band: Band
    q_GNK: Tensor
    """Queries, divided by the root of the score's scale."""
    k_GNK: Tensor
    keys_HWK: Tensor | None
    """The table as keys, distances falling, so that keys stand in their order."""
    queries_HWK: Tensor | None
    """The table as queries, distances rising, divided as queries are."""
    blocks: list[KeyBlock] = field(default_factory=list)
    far_GN: tuple[Tensor, Tensor] | None = None
    """Position to content of keys far behind their query, and of keys far ahead."""
    shifted: dict[int | None, tuple[Matrix, Tensor | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.queries_HWK is None:
            return
        ends_HK2 = self.queries_HWK[:, [-1, 0]].mT
        far_GN2 = by_head(self.k_GNK, ends_HK2)
        self.far_GN = far_GN2[..., 0], far_GN2[..., 1]
        self.blocks = [self.key_block(first) for first in range(0, self.band.length, ROWS)]

    def key_block(self, first: int) -> KeyBlock:
        """Products of the keys from ``first`` on."""
        assert self.queries_HWK is not None
        end = min(first + ROWS, self.band.length)
        part = self.band.distances(0, self.band.length, first, end)
        d_GCW = Matrix(self.queries_HWK[:, part]).times(self.k_GNK[:, first:end])
        return KeyBlock(first, end, self.band.first + part.start, d_GCW)

    def falling(self, first_row: int, end_row: int) -> slice:
        """Where ``keys_HWK`` has the distances of a strip's band."""
        part = self.band.distances(first_row, end_row, *self.band.columns(first_row, end_row))
        total = len(self.band.rows_W)
        return slice(total - part.stop, total - part.start)

    def against(self, base: int | None) -> tuple[Matrix, Tensor | None]:
        """Keys plus one end of the table as keys, and the table less that end.

        What is added to all keys alike need not be added to most of them one by one.
        """
        if base not in self.shifted:
            keys_GNK, table_HWK = self.k_GNK, self.keys_HWK
            if base is not None and table_HWK is not None:
                end_H1K = table_HWK[:, base, None]
                repeats = len(keys_GNK) // len(end_H1K)
                keys_GNK = keys_GNK + end_H1K.repeat_interleave(repeats, dim=0)
                table_HWK = table_HWK - end_H1K
            packed = self.band.length >= PACKED_FROM
            self.shifted[base] = Matrix(keys_GNK, packed=packed), table_HWK
        return self.shifted[base]

    def scores(self, first_row: int, end_row: int) -> Tensor:
        """Scores (G, R, N) of queries from ``first_row`` up to ``end_row``."""
        left, right = self.band.columns(first_row, end_row)
        length, q_GRK = self.band.length, self.q_GNK[:, first_row:end_row]
        # The end that more keys read; 0 is that of keys far behind, whose distances are greatest.
        base = None if right - left == length else (0 if left > length - right else -1)
        keys, table_HWK = self.against(base)
        bias_GN = None
        if self.far_GN is not None:
            bias_GN = self.far_GN[0].new_zeros(self.far_GN[0].shape)
            bias_GN[:, :left] = self.far_GN[0][:, :left]
            bias_GN[:, right:] = self.far_GN[1][:, right:]
        s_GRN = keys.times(q_GRK, bias_GN)
        if table_HWK is not None:
            if right > left:
                part = self.falling(first_row, end_row)
                e_GRW = Matrix(table_HWK[:, part]).times(q_GRK)
                s_GRN[..., left:right] += shear(e_GRW, right - left)
            others = slice(right, length) if base == 0 else slice(0, left)
            if base is not None and others.stop > others.start:
                s_GRN[..., others] += by_head(q_GRK, table_HWK[:, [-1 if base == 0 else 0]].mT)
        for block, first, end in self.meeting(left, right):
            s_GRN[..., first:end] += block.sheared(first_row, end_row, first, end).mT
        return s_GRN

    def meeting(self, left: int, right: int) -> list[tuple[KeyBlock, int, int]]:
        """The blocks of keys that have any in the band, with the first and end of those."""
        parts = ((block, max(block.first, left), min(block.end, right)) for block in self.blocks)
        return [part for part in parts if part[1] < part[2]]
