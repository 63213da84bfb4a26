"""Positions by distance: the row of each distance in a table, and what it adds to a score.

Disentangled positions have a row for each distance, relative position biases one for each bucket of
distances.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.spec import Disentangled, RelativePositionBias
from unmask.spec.attention import log_buckets


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """One layer's projections of the distance table, P rows; None for a term it does not have."""

    position: Disentangled
    keys_PHK: Tensor | None
    """The table as keys, multiplied by queries: content to position."""
    queries_PHK: Tensor | None
    """The table as queries, multiplied by keys: position to content."""

    def of_head(self, head: int) -> "DistanceBias":
        """The terms of one head, H = 1."""
        keys_PHK, queries_PHK = (
            None if table is None else table[:, head : head + 1]
            for table in (self.keys_PHK, self.queries_PHK)
        )
        return DistanceBias(self.position, keys_PHK, queries_PHK)

    def add_to(self, s_HRC: Tensor, q_RHK: Tensor, k_CHK: Tensor, distance_RC: Tensor) -> Tensor:
        """Content-to-content products plus the distance terms, before scaling (He et al. 2021).

        Both terms read the distance ``i - j`` of query i and key j, as the authors' code does; the paper
        writes the second with ``j - i``. ``distance_RC`` is each key's position minus its query's.
        """
        rows_RC = table_rows(-distance_RC, self.position)
        heads = s_HRC.shape[0]
        if self.keys_PHK is not None:
            every_HRP = torch.einsum("rhk,phk->hrp", q_RHK, self.keys_PHK.to(q_RHK))
            s_HRC = s_HRC + every_HRP.gather(-1, rows_RC.expand(heads, -1, -1))
        if self.queries_PHK is not None:
            every_HCP = torch.einsum("chk,phk->hcp", k_CHK, self.queries_PHK.to(k_CHK))
            s_HRC = s_HRC + every_HCP.gather(-1, rows_RC.T.expand(heads, -1, -1)).mT
        return s_HRC


def table_rows(behind: Tensor, position: Disentangled) -> Tensor:
    """Rows of the table for distances ``i - j`` of query i and key j, int64, of the same shape."""
    if position.clamped:
        behind = behind.clamp(1 - position.max_distance, position.max_distance - 1)
    if position.buckets and behind.numel():
        far = behind.abs()
        # Lengths are rounded up to limit the number of tables.
        count = 1 << int(far.max()).bit_length()
        merged = torch.from_numpy(log_buckets(count, position.buckets, position.max_distance))
        behind = merged.to(behind.device)[far] * behind.sign()
    return behind.clamp(-position.span, position.span - 1) + position.span


def rows_and_ends(position: Disentangled, length: int) -> tuple[Tensor, int, int]:
    """Rows of the table for the distances of a text of ``length`` tokens, and where they become constant.

    The rows are those of distances ``1 - length`` to ``length - 1``, on the host. At and below the first
    returned distance, all use the first row; at and above the second, all use the last. Rows never decrease
    with distance, so those equal to an end are contiguous.
    """
    rows = table_rows(torch.arange(1 - length, length, device="cpu"), position)
    least, greatest = int((rows == rows[0]).sum()) - length, length - int((rows == rows[-1]).sum())
    # A table clamped to distance 0 uses one row everywhere; its two runs are separated before that distance.
    return rows, min(least, -1), max(greatest, 0)


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
