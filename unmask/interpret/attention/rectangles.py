"""Any rectangle of any head, exactly or fast, and of many heads pooled: their mean or maximum.

A mean hides what single heads do, and a maximum is no distribution: its rows sum to more than 1. Neither
is what the encoder computes with; they are summaries for a first look.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_choice
from unmask.base.files import whole_file
from unmask.base.progress import Watch, unwatched
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.interpret.activation_cache import ActivationCache, Projected
from unmask.interpret.attention.layer_statistics import LayerStatistics
from unmask.interpret.attention.rows import (
    LayerRows,
    RowBlock,
    cells_at_once,
    out_factors,
    value_norms,
    with_tables,
)
from unmask.kernels import AttentionBias, MaskContext, Tile
from unmask.kernels.tile import key_counts, scores
from unmask.spec import AttentionPattern, FullAttention
from unmask.spec.attention import simplify
from unmask.text import Encoding


@dataclass(frozen=True, eq=False)
class _Rectangle:
    """Queries and keys of one head on the sides of a rectangle, in float64."""

    tile: Tile
    q_RK: Tensor
    k_CK: Tensor
    v_CK: Tensor
    pattern: AttentionPattern
    bias: AttentionBias
    """Of the one head."""


def probabilities(
    cache: ActivationCache,
    measured: LayerStatistics,
    layer: int,
    head: int,
    tile: Tile,
    *,
    weighted: bool = False,
) -> NDArray[np.float32]:
    """Attention of one rectangle of a softmax layer, (R, C), from what is known of its rows.

    Args:
        cache: the activation cache of the text.
        measured: of that layer: the logarithms of rows' sums are taken from it.
        layer: which.
        head: which.
        tile: the rectangle.
        weighted: each key's part in ``sum_j p_ij n_j`` instead of ``p_ij``.
    """
    lse_R = torch.from_numpy(measured.lse_HN[head, tile.first_row : tile.end_row])
    p_RC = _weights(
        cache, (layer, head), _rectangle_of(cache, layer, head, tile, of_globals=False), lse_R, weighted
    )
    marks = cache.globals_N
    if marks is not None and marks[tile.first_row : tile.end_row].any():
        of_globals = _rectangle_of(cache, layer, head, tile, of_globals=True)
        if of_globals is not None:
            global_RC = _weights(cache, (layer, head), of_globals, lse_R, weighted)
            p_RC = torch.where(torch.from_numpy(marks[tile.first_row : tile.end_row, None]), global_RC, p_RC)
    if weighted:
        sums_R = torch.from_numpy(measured.norm_sum_HN[head, tile.first_row : tile.end_row]).double()
        p_RC = torch.where(sums_R[:, None] > 0, p_RC / sums_R[:, None], 0.0)
    return p_RC.float().numpy()


def score_parts(cache: ActivationCache, layer: int, head: int, tile: Tile) -> dict[str, NDArray[np.float64]]:
    """The terms that a rectangle's scores are sums of, (R, C) each, in float64.

    ``content`` always; ``content_position`` (the query with the distance) and ``position_content`` (the key
    with the distance) where positions are disentangled; ``bias`` for ALiBi and relative position biases. Each
    is divided as the score is, and nothing is said of which keys may be seen. Rows of global tokens with
    projections of their own have content alone.
    """
    ordinary = _rectangle_of(cache, layer, head, tile, of_globals=False)
    assert ordinary is not None
    parts = _parts(ordinary)
    marks = cache.globals_N
    if marks is not None and marks[tile.first_row : tile.end_row].any():
        of_globals = _rectangle_of(cache, layer, head, tile, of_globals=True)
        if of_globals is not None:
            rows = marks[tile.first_row : tile.end_row]
            parts["content"][rows] = _parts(of_globals)["content"][rows]
    return parts


def _parts(rectangle: _Rectangle) -> dict[str, NDArray[np.float64]]:
    q_R1K, k_C1K = rectangle.q_RK[:, None], rectangle.k_CK[:, None]

    def part(bias: AttentionBias) -> Tensor:
        return scores(rectangle.tile, q_R1K, k_C1K, bias)[0]

    distances = rectangle.bias.distances
    if distances is None:
        terms = {"content": part(AttentionBias())}
        if rectangle.bias.slopes_H is not None or rectangle.bias.relative is not None:
            terms["bias"] = part(rectangle.bias) - terms["content"]
        return {name: term.numpy() for name, term in terms.items()}
    kinds = (
        ("content_position", distances.keys_PHK, None),
        ("position_content", None, distances.queries_PHK),
    )
    content = part(AttentionBias(distances=type(distances)(distances.position, None, None)))
    terms = {"content": content}
    for name, keys_PHK, queries_PHK in kinds:
        if keys_PHK is not None or queries_PHK is not None:
            alone = AttentionBias(distances=type(distances)(distances.position, keys_PHK, queries_PHK))
            terms[name] = part(alone) - content
    return {name: term.numpy() for name, term in terms.items()}


def _rectangle_of(
    cache: ActivationCache, layer: int, head: int, tile: Tile, *, of_globals: bool
) -> "_Rectangle | None":
    project = cache.projected_for_globals if of_globals else cache.projected
    rows, columns = slice(tile.first_row, tile.end_row), slice(tile.first_column, tile.end_column)
    of_rows, of_columns = project(layer, rows), project(layer, columns)
    if of_rows is None or of_columns is None:
        return None
    mixer = cache.mixer(layer)
    assert isinstance(mixer, SoftmaxMixer)
    assert isinstance(of_rows, Projected)
    q_RK, k_CK, v_CK = (
        x[:, head].double().cpu() for x in (of_rows.q_NHK, of_columns.k_NHK, of_columns.v_NHK)
    )
    if of_globals:
        return _Rectangle(tile, q_RK, k_CK, v_CK, FullAttention(), AttentionBias())
    bias = with_tables(cache.bias(layer).of_head(head), Tensor.cpu)
    return _Rectangle(tile, q_RK, k_CK, v_CK, simplify(mixer.spec.pattern, cache.batch.layout), bias)


def _weights(
    cache: ActivationCache,
    where: tuple[int, int],
    rectangle: "_Rectangle | None",
    lse_R: Tensor,
    weighted: bool,
) -> Tensor:
    assert rectangle is not None
    layer, head = where
    s_RC = scores(rectangle.tile, rectangle.q_RK[:, None], rectangle.k_CK[:, None], rectangle.bias)[0]
    context = MaskContext(len(cache), cache.heads(layer), cache.globals_N, head)
    counts = key_counts(rectangle.tile, rectangle.pattern, s_RC.device, context)
    p_RC = (s_RC - lse_R[:, None]).exp()
    if counts is not None:
        counts = counts[0] if counts.ndim == 3 else counts
        p_RC = p_RC * counts
    if weighted:
        factor_1KE = out_factors(cache.mixer(layer))[head : head + 1].cpu()
        p_RC = p_RC * value_norms(rectangle.v_CK[:, None], factor_1KE)
    return p_RC


Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class RowSums:
    """The sums that divide rows, in place of those that were measured; see `LayerStatistics`."""

    lse_HN: NDArray[np.float64]
    norm_sum_HN: Floats


Sums = LayerStatistics | RowSums
"""The sums of rows, from either source."""


class LayerCache:
    """Queries, keys and norms of the last requested layer, 8 H N K bytes, at least float32.

    Not for concurrent use by threads that request different layers.
    """

    def __init__(self, cache: ActivationCache) -> None:
        self._recording = cache
        self._rows: LayerRows | None = None

    def blocks(
        self,
        head: tuple[int, int],
        tile: Tile,
        measured: Sums | None,
        *,
        weighted: bool = False,
    ) -> Iterator[tuple[int, Floats]]:
        """A rectangle some rows at a time: the number of the first row, and (R, C) shares.

        Args:
            head: layer and number.
            tile: the rectangle.
            measured: of the layer, if it is: then nothing outside of the rectangle is computed.
            weighted: each key's part in ``sum_j p_ij n_j`` instead of ``p_ij``.
        """
        rows = self.rows(head[0])
        width = tile.end_column - tile.first_column if measured is not None else rows.length
        step = max(1, cells_at_once(rows.length) // width)
        for first, end in rows.stretches(tile.first_row, tile.end_row, step):
            if measured is None:
                block = rows.block(first, end, slice(head[1], head[1] + 1))
                columns = tile.first_column, tile.end_column
                yield first, block.columns(*columns, weighted=weighted)
            else:
                part = Tile(first, end, tile.first_column, tile.end_column)
                yield first, _of_known_sums(rows, head[1], part, measured, weighted)

    def rectangle(
        self,
        head: tuple[int, int],
        tile: Tile,
        measured: Sums | None,
        *,
        weighted: bool = False,
    ) -> Floats:
        """The whole rectangle, (R, C)."""
        return np.concatenate([p_RC for _, p_RC in self.blocks(head, tile, measured, weighted=weighted)])

    def rows(self, layer: int) -> LayerRows:
        """Queries, keys and norms of a layer; only those of the last one are kept."""
        if self._rows is None or self._rows.layer != layer:
            self._rows = None  # one at a time
            self._rows = LayerRows(self._recording, layer)
        return self._rows


def _of_known_sums(rows: LayerRows, head: int, tile: Tile, measured: Sums, weighted: bool) -> Floats:
    """From the logarithms of rows' sums, which were measured."""
    side, some = rows.side(tile.first_row), slice(head, head + 1)
    s_RC = rows.scores(side, tile, some)[0]
    between = slice(tile.first_row, tile.end_row)
    lse_R = torch.from_numpy(measured.lse_HN[head, between]).to(s_RC)
    p_RC = s_RC.sub_(lse_R[:, None]).exp_()
    if weighted:
        p_RC *= side.norms_HN[head, tile.first_column : tile.end_column]
        sums_R = torch.from_numpy(measured.norm_sum_HN[head, between]).to(p_RC)
        p_RC /= sums_R.clamp_min(torch.finfo(p_RC.dtype).tiny)[:, None]
    return p_RC.float().cpu().numpy()


Pool = Literal["mean", "max"]
"""Over heads, each counted once; layers with more heads count more."""
POOLS = ("mean", "max")

Over = Literal["layer_mean", "layer_max", "all_mean", "all_max"]
"""All heads of a layer, or of all layers, as one map."""

CSV_CELLS = 1 << 22
"""Cells of a map that are held at once while it is written: 16 MB of float32."""


def pooled_rectangle(
    cache: ActivationCache,
    layers: tuple[int, ...],
    tile: Tile,
    pool: Pool = "mean",
    *,
    weighted: bool = False,
    without_N: NDArray[np.bool_] | None = None,
    cell: int = 1,
    watch: Watch | None = None,
) -> NDArray[np.float32]:
    """The mean or maximum over all heads of some layers of one rectangle, (R, C).

    It is computed in float64 from complete rows, a block at a time; beside the result, nothing is larger
    than a block.

    Args:
        cache: the activation cache of the text.
        layers: which.
        tile: the rectangle.
        pool: over all heads of these layers.
        weighted: each key's part in ``sum_j p_ij n_j`` instead of ``p_ij``; see `LayerStatistics`.
        without_N: tokens whose rows and columns are 0; the rest of each head's rows is divided by its sum.
        cell: pool squares of ``cell`` x ``cell`` tokens in the same way; R and C then count squares.
        watch: called after each block with the layers done.

    Raises:
        InvalidRequest: there is no such pool.
        Cancelled: ``watch`` stopped the work.
    """
    check_choice("pool", pool, POOLS)
    watch = watch or unwatched
    pooling = np.add if pool == "mean" else np.maximum
    height, width = tile.end_row - tile.first_row, tile.end_column - tile.first_column
    map_RC = np.zeros((-(-height // cell), -(-width // cell)))
    for done, layer in enumerate(layers):
        rows = LayerRows(cache, layer, exact=True, norms=weighted)
        for block in rows.blocks(None, slice(tile.first_row, tile.end_row)):
            w_HRC = block.weighted_HRC if weighted else block.p_HRC
            if without_N is not None:
                w_HRC = _without(w_HRC, block, without_N)
            w_RC = (w_HRC.sum(0) if pool == "mean" else w_HRC.amax(0)).cpu().numpy()
            start = max(tile.first_column, block.first_column)
            stop = max(start, min(tile.end_column, block.end_column))
            y_R = (np.arange(block.first_row, block.end_row) - tile.first_row) // cell
            x_C = (np.arange(start, stop) - tile.first_column) // cell
            part_RC = w_RC[:, start - block.first_column : stop - block.first_column]
            for axis, place in ((0, y_R), (1, x_C)):
                part_RC = pooling.reduceat(part_RC, np.unique(place, return_index=True)[1], axis=axis)
            into = np.ix_(np.unique(y_R), np.unique(x_C))
            map_RC[into] = pooling(map_RC[into], part_RC)
            watch("pooling heads", done, len(layers))
    watch("pooling heads", len(layers), len(layers))
    if pool == "mean":
        map_RC /= sum(cache.heads(layer) for layer in layers)
        map_RC /= np.outer(*(np.bincount(np.arange(side) // cell) for side in (height, width)))
    return map_RC.astype(np.float32)


def _without(w_HRC: Tensor, block: RowBlock, without_N: NDArray[np.bool_]) -> Tensor:
    hidden_N = torch.tensor(without_N, device=w_HRC.device)
    w_HRC = w_HRC.masked_fill(hidden_N[block.first_column : block.end_column], 0)
    w_HRC /= w_HRC.sum(-1, keepdim=True).clamp_min(torch.finfo(w_HRC.dtype).tiny)
    return w_HRC.masked_fill_(hidden_N[block.first_row : block.end_row, None], 0)


def write_map(path: Path, encoding: Encoding, rows: Iterator[NDArray[np.float32]]) -> None:
    """A map as CSV (RFC 4180): a line of keys, then one for each query: position, token and weights.

    Args:
        path: the file, which appears whole.
        encoding: the text.
        rows: all rows of the map, in order, some at a time.

    Raises:
        OutputError: the file cannot be written.
    """
    names = [encoding.surface(token) for token in range(len(encoding))]
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["position", "query", *names])
        query = 0
        for some in rows:
            for row in some:
                out.writerow([query, names[query], *(f"{weight:.8g}" for weight in row.tolist())])
                query += 1


def top_of_rows(
    length: int, read: Callable[[slice], NDArray[np.float32]], k: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """The k largest keys of each query and their weights, largest first, ties in text order.

    ``read`` returns some rows of the map.
    """
    for some in row_slices(length):
        p_RN = read(some)
        keys_Rk = np.argsort(-p_RN, axis=-1, kind="stable")[:, :k]
        yield from zip(keys_Rk, np.take_along_axis(p_RN, keys_Rk, -1), strict=True)


def row_slices(length: int) -> Iterator[slice]:
    """Parts of a map of ``length`` tokens of at most `CSV_CELLS` cells, or one row."""
    step = max(1, CSV_CELLS // length)
    for first in range(0, length, step):
        yield slice(first, min(first + step, length))
