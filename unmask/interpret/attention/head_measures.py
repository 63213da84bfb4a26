"""One pass over the attention of a layer that computes all of its statistics.

A block of rows is small enough to stay in a core's cache. Its scores are made once; runs of `cell` columns
are then summed (sum, first moment, sum weighted by norms), from which maps, distances and norms follow
without another pass. What is added up over rows is added up in float64. In float32 on the CPU the native
library does this, row by row; elsewhere torch does, by small products.

Axes: P columns, padded to whole cells; W columns, with room for a shift; c columns of a cell.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.engines.native.interface import Rows
from unmask.engines.native.library import connected, library_reason
from unmask.errors import KernelError
from unmask.interpret.attention.edges import filled, topk
from unmask.interpret.attention.layer_statistics import column_classes, profile_edges, set_aside
from unmask.interpret.attention.rows import NEVER, LayerRows, Side, cells_at_once
from unmask.kernels import Tile
from unmask.spec import SlidingWindow
from unmask.text import Encoding

ROWS_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class KeyMarks:
    """The tokens of a text that attention is added up for by itself."""

    aside_N: NDArray[np.bool_]
    """See `unmask.interpret.attention.layer_statistics.set_aside`."""
    punctuation_N: NDArray[np.bool_]
    named_N: NDArray[np.bool_]
    """Tokens of a class of `CLASSES` that does not depend on the query."""
    by_id_M: NDArray[np.int64]
    """Tokens that are neither set aside nor special, sorted by their ids and then by their places."""
    first_N: NDArray[np.int64]
    count_N: NDArray[np.int64]
    """Where in ``by_id_M`` the tokens of each token's id begin, and how many there are; 0 of others."""

    @classmethod
    def of(cls, encoding: Encoding) -> "KeyMarks":
        """Those of a text."""
        ids_N, ordinary_N = np.asarray(encoding.ids), ~encoding.special
        by_id_M = np.flatnonzero(ordinary_N)
        by_id_M = by_id_M[np.argsort(ids_N[by_id_M], kind="stable")]
        first_N, count_N = np.zeros_like(ids_N, dtype=np.int64), np.zeros_like(ids_N, dtype=np.int64)
        _, first, inverse, count = np.unique(
            ids_N[by_id_M], return_index=True, return_inverse=True, return_counts=True
        )
        first_N[by_id_M], count_N[by_id_M] = first[inverse], count[inverse]
        begin_N, special_N, punctuation_N = column_classes(encoding)
        named_N = begin_N | special_N | punctuation_N
        return cls(set_aside(encoding.special), punctuation_N, named_N, by_id_M, first_N, count_N)

    def repeats(self, tile: Tile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of a query and another occurrence of the same token, as rows and columns of a tile."""
        rows = slice(tile.first_row, tile.end_row)
        count_R = self.count_N[rows]
        at_P = np.repeat(np.arange(len(count_R)), count_R)
        nth_P = np.arange(len(at_P)) - np.repeat(np.cumsum(count_R) - count_R, count_R)
        key_P = self.by_id_M[np.repeat(self.first_N[rows], count_R) + nth_P]
        inside_P = (key_P >= tile.first_column) & (key_P < tile.end_column) & (key_P != at_P + tile.first_row)
        return at_P[inside_P], key_P[inside_P] - tile.first_column


class HeadMeasures:
    """Running statistics of some heads of a layer, in the arrays of `LayerStatistics`."""

    def __init__(self, layer: LayerRows, marks: KeyMarks, heads: slice, *, top_k: int, cell: int) -> None:
        self.layer, self.marks, self.heads, self.cell = layer, marks, heads, cell
        count, length = heads.stop - heads.start, layer.length
        self.top_k = min(top_k, length)
        self.cells = -(-length // cell)
        self.padded = self.cells * cell
        like = layer.ordinary.q_HNK

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(count, *shape, dtype=dtype, device=like.device)

        self.lse_HN, self.entropy_HN, self.distance_HN, self.norm_sum_HN = (zeros(length) for _ in range(4))
        self.attention_received_HN, self.causal_received_HN, self.received_norm_HN = (
            zeros(length) for _ in range(3)
        )
        self.max_received_HN = zeros(length, dtype=like.dtype)
        self.to_sink_HN = zeros(length)
        """The part of each query's attention that the head's attention sink takes."""
        self.near_HN3 = zeros(length, 3, dtype=like.dtype)
        """Attention from each query to the previous token, itself and the next token."""
        self.special_HN, self.beyond_entropy_HN = zeros(length), zeros(length)
        """Attention to tokens that are set aside, and the entropy of the rest divided by its sum, in nats."""
        self.special_keys_HN = zeros(length, dtype=torch.int32)
        """How many tokens that are set aside each query sees."""
        self.repeat_H, self.punctuation_H, self.first_H = zeros(), zeros(), zeros()
        """Attention to each class of keys, added up over the queries that are not set aside."""
        self.only_repeat_H = zeros()
        """The part of ``repeat_H`` that goes to keys of no other class of `CLASSES`."""
        self.edges_keys_HNk = zeros(length, self.top_k, dtype=torch.int32)
        self.edges_HNk = zeros(length, self.top_k, dtype=like.dtype)
        self.edges_of_bins = profile_edges(length)
        self.profile_HB = zeros(len(self.edges_of_bins) - 1)
        """Attention at each bin of distance, added up over queries."""
        self.map_sum_HSS, self.map_norm_HSS = (zeros(self.cells, self.cells) for _ in range(2))
        self.map_max_HSS = zeros(self.cells, self.cells, dtype=like.dtype)
        self._native = NativeRows.of(self)
        sides = (layer.ordinary, layer.of_globals)
        weigh = self._weigh if self._native is None else self._padded_norms
        self._weights = [None if side is None else weigh(side) for side in sides]
        self._scores = like.new_empty(0)
        self._room = like.new_empty(0)

    def _weigh(self, side: Side) -> Tensor:
        """The weights that sum runs of columns, (H, S, 3, cell): 1, places about the middle, norms."""
        norms_HN = side.norms_HN[self.heads]
        w = norms_HN.new_zeros(len(norms_HN), self.cells, 3, self.cell)
        w[:, :, 0] = 1
        w[:, :, 1] = torch.arange(self.cell, device=w.device) - (self.cell - 1) / 2
        w[:, :, 2] = self._padded_norms(side).view(w.shape[0], -1, self.cell)
        return w

    def _padded_norms(self, side: Side) -> Tensor:
        """The norms of all keys, and 0 up to whole cells, (H, P)."""
        padding = (0, self.padded - self.layer.length)
        return torch.nn.functional.pad(side.norms_HN[self.heads], padding).contiguous()

    def run(self, rows: int, tick: Callable[[int], None]) -> None:
        """Measure all rows, ``rows`` at a time; ``tick`` receives the cells of attention of each block."""
        for first, end in self.layer.stretches(0, self.layer.length, rows):
            side = self.layer.side(first)
            left, right = self.layer.band(side, first, end)
            left, right = left // self.cell * self.cell, -(-right // self.cell) * self.cell
            tile = Tile(first, end, left, right)
            if self._native is None:
                self._block(side, tile)
            else:
                self._native.measure(tile, self._make_scores(side, tile), self._weights[side.of_globals])
            tick((self.heads.stop - self.heads.start) * (end - first) * (right - left))

    def _block(self, side: Side, tile: Tile) -> None:
        cells = slice(tile.first_column // self.cell, tile.end_column // self.cell)
        rows = slice(tile.first_row, tile.end_row)
        below_HRC = self._make_scores(side, tile)
        top_HRS = self._by_runs(below_HRC).amax(-1)
        largest_HR1 = top_HRS.amax(-1, keepdim=True)
        below_HRC.sub_(largest_HR1)
        room_HRW, p_HRC = self._make_room(tile)
        torch.exp(below_HRC, out=p_HRC)
        sums_HRS3 = self._sum_runs(side, p_HRC, cells)
        z_HR = sums_HRS3[..., 0].sum(-1, dtype=torch.float64)
        lse_HR = largest_HR1[..., 0].double() + z_HR.log()
        self.lse_HN[:, rows] = side.bias.with_sinks(lse_HR, self.heads)
        kept_HR = (lse_HR - self.lse_HN[:, rows]).exp()
        self.to_sink_HN[:, rows] = 1 - kept_HR
        mixed_HR = torch.linalg.vecdot(p_HRC, below_HRC).double()
        self.entropy_HN[:, rows] = (z_HR.log() - mixed_HR / z_HR).clamp_min(0)
        share_HR1 = (kept_HR / z_HR)[..., None]
        p_HRC.mul_(share_HR1.to(p_HRC.dtype))
        sums_HRS3 = sums_HRS3.double() * share_HR1[..., None]
        self._keys(side, tile, p_HRC, sums_HRS3[..., 2])
        self._near(tile, p_HRC)
        self._beyond_special(tile, p_HRC)
        self._distances(tile, p_HRC, sums_HRS3, cells)
        self._offsets(tile, room_HRW)
        self._maps(tile, sums_HRS3, (top_HRS - largest_HR1).exp() * share_HR1, cells)
        keys_HRk = topk(below_HRC, top_HRS - largest_HR1, self.cell, self.top_k)
        values_HRk = p_HRC.gather(-1, keys_HRk.clamp_min(0)).masked_fill_(keys_HRk < 0, 0)
        keys_HRk = torch.where(keys_HRk < 0, keys_HRk, keys_HRk + tile.first_column)
        self.edges_keys_HNk[:, rows] = filled(keys_HRk, self.layer.length).int()
        self.edges_HNk[:, rows] = values_HRk

    def _make_scores(self, side: Side, tile: Tile) -> Tensor:
        """Scores of the tile, `NEVER` beyond the last token, in memory that is used again."""
        shape = self._shape(tile)
        self._scores = _enough(self._scores, shape.numel())
        s_HRC = self._scores[: shape.numel()].view(shape)
        inside = min(tile.end_column, self.layer.length)
        within = Tile(tile.first_row, tile.end_row, tile.first_column, inside)
        self.layer.scores(side, within, self.heads, s_HRC[..., : inside - tile.first_column])
        s_HRC[..., inside - tile.first_column :] = NEVER
        return s_HRC

    def _make_room(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Room for probabilities with zeros on both sides, so that rows can be added up along diagonals."""
        heads, rows, columns = self._shape(tile)
        wide = columns + 2 * (rows - 1)
        self._room = _enough(self._room, heads * rows * wide)
        room_HRW = self._room[: heads * rows * wide].view(heads, rows, wide)
        room_HRW[..., : rows - 1] = 0
        room_HRW[..., rows - 1 + columns :] = 0
        return room_HRW, room_HRW[..., rows - 1 : rows - 1 + columns]

    def _shape(self, tile: Tile) -> torch.Size:
        heads = self.heads.stop - self.heads.start
        return torch.Size((heads, tile.end_row - tile.first_row, tile.end_column - tile.first_column))

    def _by_runs(self, x_HRC: Tensor) -> Tensor:
        return x_HRC.view(*x_HRC.shape[:2], -1, self.cell)

    def _sum_runs(self, side: Side, p_HRC: Tensor, cells: slice) -> Tensor:
        weights = self._weights[side.of_globals]
        assert weights is not None
        parts = self._by_runs(p_HRC)
        sums = [
            # This way round the products are several times faster than the other.
            torch.bmm(weights[head, cells], part_RSc.permute(1, 2, 0)).permute(2, 0, 1)
            for head, part_RSc in enumerate(parts)
        ]
        return torch.stack(sums)

    def _keys(self, side: Side, tile: Tile, p_HRC: Tensor, weighted_HRS: Tensor) -> None:
        """The attention that keys receive."""
        inside = min(tile.end_column, self.layer.length) - tile.first_column
        columns = slice(tile.first_column, tile.first_column + inside)
        norm_sum_HR = weighted_HRS.sum(-1)
        self.norm_sum_HN[:, tile.first_row : tile.end_row] = norm_sum_HR
        by_norm_HR = _inverse(norm_sum_HR).to(p_HRC.dtype)
        received_H2C = torch.stack((torch.ones_like(by_norm_HR), by_norm_HR), 1) @ p_HRC
        received_H2C = received_H2C[..., :inside].double()
        self.attention_received_HN[:, columns] += received_H2C[:, 0]
        self.received_norm_HN[:, columns] += received_H2C[:, 1] * side.norms_HN[self.heads, columns]
        max_received_HN = self.max_received_HN[:, columns]
        torch.maximum(max_received_HN, p_HRC[..., :inside].amax(1), out=max_received_HN)
        before = tile.first_row - tile.first_column
        self.causal_received_HN[:, tile.first_column : tile.first_row] += received_H2C[:, 0, : max(before, 0)]
        square_HRR = p_HRC[..., before : before + tile.end_row - tile.first_row].tril()
        self.causal_received_HN[:, tile.first_row : tile.end_row] += square_HRR.sum(1, dtype=torch.float64)

    def _near(self, tile: Tile, p_HRC: Tensor) -> None:
        for number, step in enumerate((-1, 0, 1)):
            offset = tile.first_row - tile.first_column + step
            along = torch.diagonal(p_HRC, offset, 1, 2)
            first = tile.first_row + max(0, -offset)
            self.near_HN3[:, first : first + along.shape[-1], number] = along

    def _beyond_special(self, tile: Tile, p_HRC: Tensor) -> None:
        """What stays among tokens that are not set aside."""
        rows, columns = slice(tile.first_row, tile.end_row), slice(tile.first_column, tile.end_column)
        device, marks = p_HRC.device, self.marks
        aside_HRc = p_HRC[..., torch.from_numpy(np.flatnonzero(marks.aside_N[columns])).to(device)].double()
        special_HR, kept_HR = aside_HRc.sum(-1), 1 - self.to_sink_HN[:, rows]
        given_HR = (kept_HR - special_HR).clamp_min(0)
        # -sum p log p of all keys, of the rest, then of the rest divided by its sum.
        all_HR = kept_HR * self.entropy_HN[:, rows] + torch.special.entr(kept_HR)
        left_HR = all_HR - torch.special.entr(aside_HRc).sum(-1)
        entropy_HR = torch.where(given_HR > 0, left_HR / given_HR + given_HR.log(), 0.0)
        self.special_HN[:, rows], self.beyond_entropy_HN[:, rows] = special_HR, entropy_HR.clamp_min(0)
        self.special_keys_HN[:, rows] = (aside_HRc > 0).sum(-1).int()
        rows_R = torch.from_numpy(~marks.aside_N[rows]).to(device, torch.float64)

        def received(marked_C: NDArray[np.bool_]) -> Tensor:
            columns_c = torch.from_numpy(np.flatnonzero(marked_C)).to(device)
            return p_HRC[..., columns_c].sum(-1, dtype=torch.float64) @ rows_R

        self.punctuation_H += received(marks.punctuation_N[columns])
        if tile.first_column == 0 and not marks.aside_N[0]:
            self.first_H += p_HRC[..., 0].double() @ rows_R
        at_P, key_P = marks.repeats(tile)
        only_P = ~marks.named_N[columns][key_P]
        only_P &= np.abs(key_P + tile.first_column - at_P - tile.first_row) > 1
        repeat_HP = p_HRC[:, torch.from_numpy(at_P).to(device), torch.from_numpy(key_P).to(device)].double()
        self.repeat_H += repeat_HP.sum(-1)
        self.only_repeat_H += repeat_HP @ torch.from_numpy(only_P).to(repeat_HP)

    def _distances(self, tile: Tile, p_HRC: Tensor, sums_HRS3: Tensor, cells: slice) -> None:
        """From each run's sum and first moment where it is wholly on one side, else from its columns."""
        device = p_HRC.device
        rows_R = torch.arange(tile.first_row, tile.end_row, device=device)
        runs_S = torch.arange(cells.start, cells.stop, device=device)
        cell_R = rows_R // self.cell
        side_RS = (runs_S - cell_R[:, None]).sign()
        far_RS = runs_S * self.cell + (self.cell - 1) / 2 - rows_R[:, None]
        apart_HR = (sums_HRS3[..., 1] * side_RS + sums_HRS3[..., 0] * (far_RS * side_RS)).sum(-1)
        parts = self._by_runs(p_HRC)
        numbers_R = torch.arange(len(rows_R), device=device)
        cell_HRc = parts[:, numbers_R, cell_R - cells.start]
        within_Rc = cell_R[:, None] * self.cell + torch.arange(self.cell, device=device) - rows_R[:, None]
        apart_HR += (cell_HRc * within_Rc.abs()).sum(-1, dtype=torch.float64)
        kept_HR = 1 - self.to_sink_HN[:, tile.first_row : tile.end_row]
        self.distance_HN[:, tile.first_row : tile.end_row] = apart_HR * _inverse(kept_HR)

    def _offsets(self, tile: Tile, room_HRW: Tensor) -> None:
        """Sums along diagonals, each row one column farther left than the one before, and these by bins."""
        heads, rows, wide = room_HRW.shape
        steps = wide - rows + 1
        slanted_HRO = room_HRW.as_strided((heads, rows, steps), (rows * wide, wide + 1, 1))
        distance_O = np.abs(np.arange(steps) + tile.first_column - tile.end_row + 1)
        bins_O = np.searchsorted(self.edges_of_bins, distance_O, side="right") - 1
        # Beyond the last bin lie only the columns behind the last token, which get nothing.
        bins_O = np.minimum(bins_O, self.profile_HB.shape[1] - 1)
        numbers_O = torch.from_numpy(bins_O).to(room_HRW.device)
        self.profile_HB.index_add_(1, numbers_O, slanted_HRO.sum(1).double())

    def _maps(self, tile: Tile, sums_HRS3: Tensor, top_HRS: Tensor, cells: slice) -> None:
        weighted_HRS = sums_HRS3[..., 2]
        weighted_HRS = weighted_HRS * _inverse(weighted_HRS.sum(-1, keepdim=True))
        first = tile.first_row
        while first < tile.end_row:
            cell = first // self.cell
            end = min(tile.end_row, (cell + 1) * self.cell)
            some = slice(first - tile.first_row, end - tile.first_row)
            self.map_sum_HSS[:, cell, cells] += sums_HRS3[:, some, :, 0].sum(1)
            self.map_norm_HSS[:, cell, cells] += weighted_HRS[:, some].sum(1)
            most = self.map_max_HSS[:, cell, cells]
            torch.maximum(most, top_HRS[:, some].amax(1).to(most.dtype), out=most)
            first = end


class NativeRows:
    """The same measures of blocks of rows by the native library, in float32 on the CPU."""

    SUMS = (
        *("lse", "entropy", "distance", "norm_sum", "special", "beyond_entropy", "received", "causal"),
        *("received_norm", "profile", "map_sum", "map_norm", "repeat_sum", "only_repeat_sum", "mark_sum"),
        *("first_sum", "most", "near_keys", "map_most", "weights", "special_keys", "keys"),
    )
    """Arrays of `Rows` in the order of those of `HeadMeasures` below."""

    def __init__(self, measures: HeadMeasures, functions: Any) -> None:
        marks, length = measures.marks, measures.layer.length
        self._functions, self._measures = functions, measures
        self._heads = measures.heads.stop - measures.heads.start
        sums = (
            *(measures.lse_HN, measures.entropy_HN, measures.distance_HN, measures.norm_sum_HN),
            *(measures.special_HN, measures.beyond_entropy_HN, measures.attention_received_HN),
            *(measures.causal_received_HN, measures.received_norm_HN, measures.profile_HB),
            *(measures.map_sum_HSS, measures.map_norm_HSS, measures.repeat_H, measures.only_repeat_H),
            *(measures.punctuation_H, measures.first_H, measures.max_received_HN, measures.near_HN3),
            *(measures.map_max_HSS, measures.edges_HNk, measures.special_keys_HN, measures.edges_keys_HNk),
        )
        arrays = {
            "bin_edges": measures.edges_of_bins,
            "by_id": marks.by_id_M,
            "id_first": marks.first_N,
            "id_count": marks.count_N,
            "aside": np.flatnonzero(marks.aside_N).astype(np.int32),
            "mark": np.flatnonzero(marks.punctuation_N).astype(np.int32),
            "kept": (~marks.aside_N).astype(np.uint8),
            "named": marks.named_N.astype(np.uint8),
        }
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # kept alive
        self._rows = Rows(
            **{name: sum_.data_ptr() for name, sum_ in zip(self.SUMS, sums, strict=True)},
            **{name: array.ctypes.data for name, array in self._arrays.items()},
            tokens=length,
            padded=measures.padded,
            cell=measures.cell,
            cells=measures.cells,
            top_k=measures.top_k,
            bins=measures.profile_HB.shape[1],
            asides=len(self._arrays["aside"]),
            marks=len(self._arrays["mark"]),
        )

    @classmethod
    def of(cls, measures: HeadMeasures) -> "NativeRows | None":
        """Those that write into some measures; None where torch computes them."""
        if not measured_natively(measures.layer):
            return None
        library = connected()
        assert not isinstance(library, str)
        return cls(measures, library.functions)

    def measure(self, tile: Tile, s_HRC: Tensor, norms_HP: Tensor | None) -> None:
        """Measure one block of rows, whose scores are replaced."""
        assert norms_HP is not None
        rows, measures = self._rows, self._measures
        rows.scores, rows.norms = s_HRC.data_ptr(), norms_HP.data_ptr()
        rows.heads, rows.rows, rows.columns = s_HRC.shape
        rows.first_row, rows.first_column = tile.first_row, tile.first_column
        if self._functions.native_rows(ctypes.byref(rows)):
            raise KernelError(self._functions.native_error().decode())
        some = slice(tile.first_row, tile.end_row)
        keys_HRk = measures.edges_keys_HNk[:, some]
        if bool((keys_HRk[..., -1] < 0).any()):
            measures.edges_keys_HNk[:, some] = filled(keys_HRk, measures.layer.length).int()


def measured_natively(layer: LayerRows) -> bool:
    """Whether the native library measures a layer: on the CPU in float32, without sinks, if it is built."""
    like = layer.ordinary.q_HNK
    if layer.ordinary.bias.sinks_H is not None:
        return False
    return like.dtype == torch.float32 and like.device.type == "cpu" and library_reason("float32") is None


def block_shape(layer: LayerRows, heads: int, cell: int, cells: int | None) -> tuple[int, int]:
    """How many rows and heads a block has, so that its numbers are about ``cells`` at most.

    None decides by the text's length. The native library reads a few rows of a block at a time, so a
    block need not be small, and products of many rows are faster.
    """
    if cells is None:
        cells = cells_at_once(layer.length)
        if measured_natively(layer):
            cells = max(cells, ROWS_AT_ONCE * (layer.length + 2 * ROWS_AT_ONCE))
    pattern = layer.ordinary.pattern
    columns = layer.length
    if isinstance(pattern, SlidingWindow):
        columns = min(columns, ROWS_AT_ONCE + 2 * pattern.radius * pattern.dilation + 2 * cell)
    rows = min(ROWS_AT_ONCE, layer.length)
    while rows > 1 and rows * (columns + 2 * rows) > cells:
        rows //= 2
    if layer.ordinary.bias.distances is not None:
        return rows, 1  # products of every key with every distance are as many for each head
    return rows, max(1, min(heads, cells // (rows * (columns + 2 * rows))))


def _enough(room: Tensor, numbers: int) -> Tensor:
    return room if len(room) >= numbers else room.new_empty(numbers)


def _inverse(x: Tensor) -> Tensor:
    """1 / x, 0 where x is 0."""
    return torch.where(x > 0, 1 / x, 0.0)
