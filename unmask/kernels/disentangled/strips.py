"""Disentangled scores of a strip (some queries by all keys of a text) as matrix products and sheared views.

All sufficiently distant keys on each side use one row of the table, so position scores vary only within a
band. There they are products of queries (and of keys) with the table's rows in order of distance. In such a
product the scores of neighboring queries are shifted by one column, and a view whose row stride is shorter by
one aligns them. No score is gathered, and only the strip stores values per pair of tokens.

Axes: G heads times the sequences that run together (heads outermost); W distances.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from unmask.kernels.distances import rows_and_ends
from unmask.kernels.products import Staying, onednn_takes
from unmask.spec import Disentangled

ROWS = 128
"""Number of queries of a strip, and of keys of a block of the band."""

PACKED_FROM = 1024
"""Minimum rows of a matrix for which packing it once for all strips pays off."""


@dataclass(frozen=True)
class Band:
    """Distances ``i - j`` of query i and key j, and the rows they use, in texts of one length."""

    length: int
    least: int
    """At and below this distance all keys use one row."""
    greatest: int
    """At and above this distance all keys use one row."""
    first: int
    """The first distance of ``rows_W``; strips extend slightly beyond the band."""
    rows_W: Tensor
    """The row of each distance from ``first`` on, increasing by one; int64, on the host."""

    @classmethod
    def of(cls, position: Disentangled, length: int) -> "Band":
        """The band of texts of ``length`` tokens."""
        return cls(*_band(position, length))

    def columns(self, first_row: int, end_row: int) -> tuple[int, int]:
        """Start and end of the keys that are within the band of some query of the strip."""
        start = min(max(0, first_row - self.greatest), self.length)
        return start, max(start, min(self.length, end_row - self.least))

    def distances(self, first_row: int, end_row: int, first_column: int, end_column: int) -> slice:
        """The part of ``rows_W`` with the distances of a rectangle, as far as it contains them."""
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
        """Products (G, R, C) plus ``bias_GC``; sequences may share a head's matrix."""
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
    """A view (G, R, columns) of products by decreasing distance: entry (r, c) is ``e[r, c + R - 1 - r]``."""
    group, rows, width = e_GRW.shape
    strides = (e_GRW.stride(0), width - 1, 1)
    return e_GRW.as_strided((group, rows, columns), strides, e_GRW.storage_offset() + rows - 1)


@dataclass
class KeyBlock:
    """Products of some keys with the table as queries, for all distances of the band."""

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
    """Data shared by the strips of one group; tables are expanded to the distances of the band."""

    band: Band
    q_GNK: Tensor
    """Queries, divided by the root of the score's scale."""
    k_GNK: Tensor
    keys_HWK: Tensor | None
    """The table as keys, by decreasing distance, which is the order of keys."""
    queries_HWK: Tensor | None
    """The table as queries, by increasing distance, scaled like queries."""
    blocks: list[KeyBlock] = field(default_factory=list)
    far_GN: tuple[Tensor, Tensor] | None = None
    """Position-to-content terms of keys far before their query, and of keys far after it."""
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
        """The part of ``keys_HWK`` with the distances of a strip's band."""
        part = self.band.distances(first_row, end_row, *self.band.columns(first_row, end_row))
        total = len(self.band.rows_W)
        return slice(total - part.stop, total - part.start)

    def against(self, base: int | None) -> tuple[Matrix, Tensor | None]:
        """Keys plus one end of the table as keys, and the table minus that end.

        A term common to all keys then need not be added to most of them separately.
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
        # The end that more keys use; 0 is the end of keys far before, with the greatest distances.
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
        """The key blocks that overlap the band, with the start and end of the overlap."""
        parts = ((block, max(block.first, left), min(block.end, right)) for block in self.blocks)
        return [part for part in parts if part[1] < part[2]]
