"""Attention as bytes that a page can color: log-coded cells, pooled at any zoom.

The scale of the codes is the same everywhere: 0 is less than `FLOOR`, or not allowed; c in 1..255 stands for
``exp(ln FLOOR * (255 - c) / 254)``, so that a step is a factor of 1.056. A cell of zoom level z stands for
2^z x 2^z tokens and holds the largest or the mean of what is in it.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from unmask.errors import NonFiniteResult
from unmask.kernels import Tile

FLOOR = 1e-6
TILE = 256
"""Cells along the side of a tile."""
NOT_FINITE = "the model produced a number that is not finite; nothing is shown"

Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def codes(p: NDArray[np.floating]) -> Codes:
    """Shares as codes, of the same shape.

    Raises:
        NonFiniteResult: one is not a number.
    """
    if not np.isfinite(p).all():
        raise NonFiniteResult(NOT_FINITE)
    with np.errstate(divide="ignore"):
        exact = np.round(255 + 254 * np.log(p.astype(np.float32)) / -math.log(FLOOR))
    return np.asarray(np.where(p >= FLOOR, np.clip(exact, 1, 255), 0).astype(np.uint8))


def levels(tokens: int) -> int:
    """How many zoom levels a text has: at the last one it fits into one tile."""
    return max(0, math.ceil(math.log2(tokens / TILE))) + 1


def tile_of(z: int, y: int, x: int, tokens: int) -> Tile:
    """The queries and keys of the tile in row y and column x of zoom level z."""
    side = TILE << z
    return Tile(y * side, min((y + 1) * side, tokens), x * side, min((x + 1) * side, tokens))


def pooled(blocks: Iterable[tuple[int, Floats]], tile: Tile, cell: int) -> tuple[Floats, Floats]:
    """Largest and mean of cells of ``cell`` x ``cell``; those at the end may be smaller.

    ``blocks``: rows of the tile in order, each with the number of its first.
    """
    columns = np.arange(0, tile.end_column - tile.first_column, cell)
    shape = -(-(tile.end_row - tile.first_row) // cell), len(columns)
    most, total = np.zeros(shape, dtype=np.float32), np.zeros(shape)
    for first, p_RC in blocks:
        if not np.isfinite(p_RC).all():  # a maximum would let it go by
            raise NonFiniteResult(NOT_FINITE)
        y_R = (np.arange(first, first + len(p_RC)) - tile.first_row) // cell
        np.maximum.at(most, y_R, np.maximum.reduceat(p_RC, columns, axis=1))
        # In float64: what is small beside a large one would be lost.
        np.add.at(total, y_R, np.add.reduceat(p_RC, columns, axis=1, dtype=np.float64))
    heights = np.diff(np.append(np.arange(tile.first_row, tile.end_row, cell), tile.end_row))
    widths = np.diff(np.append(tile.first_column + columns, tile.end_column))
    return most, (total / np.outer(heights, widths)).astype(np.float32)


def coarsest_maps(tokens: int) -> int:
    """Cells along the side of the map that is kept of every head: it is then the last zoom level's tile."""
    return -(-tokens // (1 << (levels(tokens) - 1)))


def reduced(map_HSS: Floats, size: int, *, largest: bool) -> Floats:
    """Maps of every head made smaller, to at most ``size`` cells along a side.

    Cells at the end that stand for fewer tokens count here like the others in a mean.
    """
    group = math.ceil(map_HSS.shape[-1] / size)
    starts = np.arange(0, map_HSS.shape[-1], group)
    if largest:
        return np.asarray(np.maximum.reduceat(np.maximum.reduceat(map_HSS, starts, axis=1), starts, axis=2))
    counts = np.diff(np.append(starts, map_HSS.shape[-1]))
    summed = np.add.reduceat(np.add.reduceat(map_HSS, starts, axis=1), starts, axis=2)
    return np.asarray(summed / np.outer(counts, counts), dtype=np.float32)
