"""Gradients of disentangled attention, strip by strip: the sheared products of the forward pass.

Gradients of scores are written into the same sheared views that scores are read from, so the table's
gradients are matrix products; keys beyond the band add to the table's two ends by sums over rows and columns.

Axes: G as in `strips`; W as in `strips`.
"""

import math

import torch
from torch import Tensor

from unmask.kernels.disentangled.strips import KeyBlock, Strips, by_head, shear
from unmask.spec import Disentangled


class StripGradients:
    """Gradient sums over the strips of one group of heads and sequences; strips must be added in order."""

    def __init__(self, strips: Strips, v_GNK: Tensor, position: Disentangled) -> None:
        self.strips, self.v_GNK = strips, v_GNK
        self.scale = 1 / math.sqrt(v_GNK.shape[-1] * position.term_count)
        self.dq, self.dk, self.dv = (torch.zeros_like(v_GNK) for _ in range(3))
        keys, queries = strips.keys_HWK, strips.queries_HWK
        self.dkeys_HWK = None if keys is None else torch.zeros_like(keys)
        self.dqueries_HWK = None if queries is None else torch.zeros_like(queries)
        self.blocks = [
            KeyBlock(block.first, block.end, block.low, torch.zeros_like(block.d_GCW))
            for block in strips.blocks
        ]
        self.dfar_2GN = v_GNK.new_zeros(2, *v_GNK.shape[:2])

    def add(
        self, rows: slice, p_GRN: Tensor, kept_GRN: Tensor | None, do_GRK: Tensor, dlse_GR: Tensor | None
    ) -> None:
        """One strip.

        Args:
            rows: its queries.
            p_GRN: its probabilities, before dropout.
            kept_GRN: the dropout factors of the probabilities.
            do_GRK: gradients of its mixed values.
            dlse_GR: gradients of its log-sum-exp.
        """
        used_GRN = p_GRN if kept_GRN is None else p_GRN * kept_GRN
        self.dv.baddbmm_(used_GRN.mT, do_GRK)
        dp_GRN = torch.bmm(do_GRK, self.v_GNK.mT)
        if kept_GRN is not None:
            dp_GRN *= kept_GRN
        ds_GRN: Tensor = torch.ops.aten._softmax_backward_data(dp_GRN, p_GRN, -1, p_GRN.dtype)
        if dlse_GR is not None:
            ds_GRN = ds_GRN.addcmul_(p_GRN, dlse_GR[..., None])
        q_GRK = self.strips.q_GNK[:, rows]
        self.dq[:, rows] = torch.bmm(ds_GRN, self.strips.k_GNK)
        self.dk.baddbmm_(ds_GRN.mT, q_GRK)
        left, right = self.strips.band.columns(rows.start, rows.stop)
        if self.dkeys_HWK is not None:
            self._to_keys_of_table(rows, ds_GRN, left, right)
        if self.dqueries_HWK is not None:
            self.dfar_2GN[0, :, :left] += ds_GRN[..., :left].sum(1)
            self.dfar_2GN[1, :, right:] += ds_GRN[..., right:].sum(1)
            for (block, first, end), ours in self._meeting(left, right):
                part = KeyBlock(block.first, block.end, block.low, ours.d_GCW)
                part.sheared(rows.start, rows.stop, first, end).copy_(ds_GRN[..., first:end].mT)

    def _meeting(self, left: int, right: int) -> list[tuple[tuple[KeyBlock, int, int], KeyBlock]]:
        ours = {block.first: block for block in self.blocks}
        return [(meeting, ours[meeting[0].first]) for meeting in self.strips.meeting(left, right)]

    def _to_keys_of_table(self, rows: slice, ds_GRN: Tensor, left: int, right: int) -> None:
        table_HWK, sums_HWK = self.strips.keys_HWK, self.dkeys_HWK
        assert table_HWK is not None
        assert sums_HWK is not None
        heads, q_GRK = len(table_HWK), self.strips.q_GNK[:, rows]
        if right > left:
            part = self.strips.falling(rows.start, rows.stop)
            de_GRW = ds_GRN.new_zeros(*ds_GRN.shape[:2], part.stop - part.start)
            shear(de_GRW, right - left).copy_(ds_GRN[..., left:right])
            self.dq[:, rows] += by_head(de_GRW, table_HWK[:, part])
            sums_HWK[:, part] += per_head(de_GRW, q_GRK, heads)
        far_GR2 = torch.stack((ds_GRN[..., :left].sum(-1), ds_GRN[..., right:].sum(-1)), -1)
        self.dq[:, rows] += by_head(far_GR2, table_HWK[:, [0, -1]])
        ends_H2K = per_head(far_GR2, q_GRK, heads)
        sums_HWK[:, 0] += ends_H2K[:, 0]
        sums_HWK[:, -1] += ends_H2K[:, 1]

    def finish(self, dtables: list[Tensor | None], heads: slice) -> None:
        """Finish after the last strip; the table gradients (P, H, K) are added to ``dtables``."""
        rows_W = self.strips.band.rows_W.to(self.dq.device)
        if self.dqueries_HWK is not None:
            self._to_queries_of_table(self.dqueries_HWK)
            add_by_row(dtables[1], heads, rows_W, self.dqueries_HWK * self.scale)
        if self.dkeys_HWK is not None:
            add_by_row(dtables[0], heads, rows_W.flip(0), self.dkeys_HWK)
        self.dq *= self.scale

    def _to_queries_of_table(self, sums_HWK: Tensor) -> None:
        table_HWK, keys_GNK = self.strips.queries_HWK, self.strips.k_GNK
        assert table_HWK is not None
        for block in self.blocks:
            start = block.low - self.strips.band.first
            part = slice(start, start + block.d_GCW.shape[-1])
            of_block = slice(block.first, block.end)
            self.dk[:, of_block] += by_head(block.d_GCW, table_HWK[:, part])
            sums_HWK[:, part] += per_head(block.d_GCW, keys_GNK[:, of_block], len(table_HWK))
        far_GN2 = self.dfar_2GN.movedim(0, -1)
        self.dk += by_head(far_GN2, table_HWK[:, [-1, 0]])
        ends_H2K = per_head(far_GN2, keys_GNK, len(table_HWK))
        sums_HWK[:, -1] += ends_H2K[:, 0]
        sums_HWK[:, 0] += ends_H2K[:, 1]


def per_head(e_GRW: Tensor, x_GRK: Tensor, heads: int) -> Tensor:
    """Sums over rows and sequences of products, (H, W, K)."""
    e_HMW, x_HMK = (y.reshape(heads, -1, y.shape[-1]) for y in (e_GRW, x_GRK))
    return torch.bmm(e_HMW.mT, x_HMK)


def add_by_row(dtable_PHK: Tensor | None, heads: slice, rows_W: Tensor, sums_HWK: Tensor) -> None:
    """Sum distances into the rows they use, by a product, whose order is fixed on every device."""
    assert dtable_PHK is not None
    numbers_P1 = torch.arange(len(dtable_PHK), device=rows_W.device)[:, None]
    reads_PW = (numbers_P1 == rows_W).to(sums_HWK.dtype)
    dtable_PHK[:, heads] += torch.matmul(reads_PW, sums_HWK).transpose(0, 1)
