"""Disentangled position terms as bands: for each token, its product with the table's row of each distance.

Columns of a band are distances ``query - key``, decreasing by one from the distance at and above which all
use one row to the distance at and below which all do. A band is one matrix product with the table's rows in
that order, and its gradients are products too. Work and memory are linear in tokens.

Axes: W columns of a band.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from unmask.kernels.distances import rows_and_ends
from unmask.spec import Disentangled

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
