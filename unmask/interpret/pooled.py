"""Maps of many heads as one: the mean or the maximum over the heads of a layer, or of all layers.

A mean hides what single heads do, and a maximum is no distribution: its rows sum to more than 1. Neither
is what the encoder computes with; they are summaries for a first look.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.arguments import check_choice
from unmask.files import whole_file
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.rows import LayerRows
from unmask.interpret.watch import Watch, unwatched
from unmask.model.kernels import Tile
from unmask.text import Encoding

Pool = Literal["mean", "max"]
"""Over heads, each counted once; layers with more heads count more."""
POOLS = ("mean", "max")

CSV_CELLS = 1 << 22
"""Cells of a map that are held at once while it is written: 16 MB of float32."""


def pooled_rectangle(
    cache: ActivationCache,
    layers: tuple[int, ...],
    tile: Tile,
    pool: Pool = "mean",
    *,
    weighted: bool = False,
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
        watch: called after each block with the layers done.

    Raises:
        InvalidRequest: there is no such pool.
        Cancelled: ``watch`` stopped the work.
    """
    check_choice("pool", pool, POOLS)
    watch = watch or unwatched
    found_RC = np.zeros((tile.end_row - tile.first_row, tile.end_column - tile.first_column))
    for done, layer in enumerate(layers):
        rows = LayerRows(cache, layer, exact=True, norms=weighted)
        for block in rows.blocks(None, slice(tile.first_row, tile.end_row)):
            w_HRC = block.weighted_HRC if weighted else block.p_HRC
            w_RC = (w_HRC.sum(0) if pool == "mean" else w_HRC.amax(0)).cpu().numpy()
            start = max(tile.first_column, block.first_column)
            stop = max(start, min(tile.end_column, block.end_column))
            into = (
                slice(block.first_row - tile.first_row, block.end_row - tile.first_row),
                slice(start - tile.first_column, stop - tile.first_column),
            )
            part_RC = w_RC[:, start - block.first_column : stop - block.first_column]
            found_RC[into] = (
                found_RC[into] + part_RC if pool == "mean" else np.maximum(found_RC[into], part_RC)
            )
            watch("pooling heads", done, len(layers))
    watch("pooling heads", len(layers), len(layers))
    heads = sum(cache.heads(layer) for layer in layers)
    return (found_RC / heads if pool == "mean" else found_RC).astype(np.float32)


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
