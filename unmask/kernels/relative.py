"""Relative position biases: the bucket of each distance, and the term that a table adds to scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.spec import RelativePositionBias


@dataclass(frozen=True, eq=False)
class RelativeBias:
    """The table of biases, P buckets."""

    position: RelativePositionBias
    table_PH: Tensor

    def of_heads(self, heads: slice) -> "RelativeBias":
        """The biases of some heads."""
        return RelativeBias(self.position, self.table_PH[:, heads])

    def terms(self, first: int, rows: int, columns: int, like: Tensor) -> Tensor:
        """The biases of a rectangle of scores, (H, R, C), in the dtype and on the device of ``like``.

        ``first`` is the position of the first key minus that of the last query, the least of the rectangle.
        A bias depends on the distance alone, so each is read from the table once per distance, and so is its
        gradient.
        """
        distance_D = torch.arange(first, first + rows + columns - 1, device=like.device)
        bias_HD = self.table_PH.to(like).index_select(0, bucket_rows(-distance_D, self.position)).T
        # The last query's keys begin at the first distance, those of the query before it one later.
        return bias_HD.unfold(1, columns, 1).flip(1)


def bucket_rows(behind: Tensor, position: RelativePositionBias) -> Tensor:
    """Rows of the table for distances ``i - j`` of query i and key j, int64, of the same shape.

    With b buckets in each direction, distances below b / 2 have one each, and a larger distance d has bucket
    ``b/2 + floor(b/2 log(d / (b/2)) / log(max_distance / (b/2)))``, at most b - 1 (Raffel et al. 2020).
    """
    each = position.buckets // 2
    exact = each // 2
    far = behind.abs()
    share = (far.clamp_min(exact).double() / exact).log() / math.log(position.max_distance / exact)
    merged = (exact + (share * (each - exact)).long()).clamp_max(each - 1)
    return torch.where(far < exact, far, merged) + each * (behind < 0)
