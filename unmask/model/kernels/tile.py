"""Attention, defined once: the score of a query and a key, and whether the query may see it.

Everything else about attention is these two functions evaluated somewhere: the reference kernel on
whole sequences, a fast kernel's test on its output, a picture of a head on the rectangle it shows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import KernelError
from unmask.model.spec import Alibi, Disentangled, NoPosition, Reach, Rotary, Whole, Window
from unmask.model.spec.attention import AttentionPosition


@dataclass(frozen=True)
class Tile:
    """A rectangle of the attention of one sequence: queries ``rows`` by keys ``columns``.

    Both count tokens from the beginning of the sequence; ends are not included.
    """

    first_row: int
    end_row: int
    first_column: int
    end_column: int

    @classmethod
    def whole(cls, length: int) -> "Tile":
        """Every query by every key of a sequence of ``length`` tokens."""
        return cls(0, length, 0, length)

    def distance_RC(self, device: torch.device) -> Tensor:
        """How many tokens the key stands after the query (negative: before), int64, shape (R, C)."""
        rows = torch.arange(self.first_row, self.end_row, device=device)
        columns = torch.arange(self.first_column, self.end_column, device=device)
        return columns[None, :] - rows[:, None]


@dataclass(frozen=True)
class ScoreTerms:
    """What is added to the content's score of one layer, as tensors; nothing where all are None."""

    slopes_H: Tensor | None = None
    """ALiBi's slope of each head."""

    @classmethod
    def of(cls, position: AttentionPosition, heads: int) -> "ScoreTerms":
        """The terms of a layer. Rotary positions turn queries and keys before, so they add nothing.

        Raises:
            KernelError: no term is defined for this kind of position.
        """
        match position:
            case NoPosition() | Rotary():
                return cls()
            case Alibi():
                return cls(slopes_H=alibi_slopes(heads))
            case Disentangled():
                raise KernelError("no tile function for scores with Disentangled positions")

    def of_head(self, head: int) -> "ScoreTerms":
        """The terms of one head, H = 1."""
        return ScoreTerms(None if self.slopes_H is None else self.slopes_H[head : head + 1])


def scores(tile: Tile, q_RHK: Tensor, k_CHK: Tensor, terms: ScoreTerms) -> Tensor:
    """Scores before the softmax, shape (H, R, C), in the dtype of the queries.

    ``q k / sqrt(K)`` (Vaswani et al. 2017) plus the terms.

    Args:
        tile: which queries and keys these are.
        q_RHK: queries of the tile's rows.
        k_CHK: keys of the tile's columns.
        terms: what is added, for these H heads.
    """
    s_HRC = torch.einsum("rhk,chk->hrc", q_RHK, k_CHK) / math.sqrt(q_RHK.shape[-1])
    if terms.slopes_H is not None:
        slopes_H11 = terms.slopes_H.to(s_HRC)[:, None, None]
        s_HRC = s_HRC - slopes_H11 * tile.distance_RC(q_RHK.device).abs()
    return s_HRC


def allowed(tile: Tile, reach: Reach, device: torch.device) -> Tensor | None:
    """Which keys each query may see: bool (R, C), or None where the tile is wholly in reach."""
    if isinstance(reach, Whole):
        return None
    if isinstance(reach, Window):
        distance_RC = tile.distance_RC(device)
        seen_RC = distance_RC.abs() <= reach.radius * reach.dilation
        return seen_RC & (distance_RC % reach.dilation == 0)
    raise KernelError(f"no tile function for the reach {type(reach).__name__}")


def probabilities(
    tile: Tile, q_RHK: Tensor, k_CHK: Tensor, reach: Reach, terms: ScoreTerms
) -> tuple[Tensor, Tensor]:
    """Softmax over the tile's columns (H, R, C), and its log-sum-exp (H, R).

    Exact when the tile holds every column of the sequence that its rows may see.
    """
    s_HRC = scores(tile, q_RHK, k_CHK, terms)
    seen_RC = allowed(tile, reach, q_RHK.device)
    if seen_RC is not None:
        s_HRC = s_HRC.masked_fill(~seen_RC, -math.inf)
    lse_HR = torch.logsumexp(s_HRC, dim=-1)
    return torch.exp(s_HRC - lse_HR[..., None]), lse_HR


def alibi_slopes(heads: int) -> Tensor:
    """Slope of each head, float64: 2^(-8/n), 2^(-16/n) ... for n heads, n a power of two.

    For another number of heads, as published (Press, Smith & Lewis 2022): the series of the next
    lower power of two, then every second slope of the series twice as long.
    """
    lower = 2 ** int(math.log2(heads))
    series = [2 ** (-8 * (i + 1) / lower) for i in range(lower)]
    finer = [2 ** (-4 * (i + 1) / lower) for i in range(0, 2 * lower, 2)]
    return torch.tensor((series + finer)[:heads], dtype=torch.float64, device="cpu")
