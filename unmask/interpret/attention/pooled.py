"""Maps of many heads as one: the mean or the maximum over the heads of a layer, or of all layers.

A mean hides what single heads do, and a maximum is no distribution: its rows sum to more than 1. Neither
is what the encoder computes with; they are summaries for a first look.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_choice
from unmask.base.files import whole_file
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.rows import LayerRows, RowBlock
from unmask.interpret.watch import Watch, unwatched
from unmask.kernels import Tile
from unmask.text import Encoding

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
