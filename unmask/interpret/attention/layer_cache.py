"""A cache of the queries and keys of the last requested layer, so that another row costs one small product.

`AttentionView.probabilities` projects the tokens of each rectangle again and computes in float64, which is
suitable for a single rectangle but slow for the many that a pointer requests while moving over a map.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.layer_statistics import LayerStatistics
from unmask.interpret.attention.rows import LayerRows, cells_at_once
from unmask.kernels import Tile

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class RowSums:
    """What rows are divided by, in place of the sums that were measured; see `LayerStatistics`."""

    lse_HN: NDArray[np.float64]
    norm_sum_HN: Floats


Sums = LayerStatistics | RowSums
"""What is known of rows."""


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
