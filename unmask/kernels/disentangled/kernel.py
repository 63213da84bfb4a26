"""Disentangled attention (He et al. 2021) in plain torch, forward and backward in memory linear in tokens.

Short texts of equal length run together; a long one runs head by head, in strips of queries by all keys
(`strips`), whose softmax is complete. The backward pass recomputes every strip, so only inputs are kept. Sums
have a fixed order, so results are reproducible to the bit.

Gradients of scores are written into the same sheared views that scores are read from, so the table's
gradients are matrix products; keys beyond the band add to the table's two ends by sums over rows and columns.

Axes: G as in `strips`; W as in `strips`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmask.errors import KernelError
from unmask.kernels.disentangled.strips import (
    PACKED_FROM,
    ROWS,
    Band,
    KeyBlock,
    Matrix,
    Strips,
    by_head,
    shear,
)
from unmask.kernels.dropout import apply_keep_mask, keep_mask
from unmask.kernels.interface import AttentionCall, AttentionOutput, Capability, Kernel
from unmask.kernels.sdpa import Rectangles
from unmask.spec import AttentionPattern, Disentangled, FullAttention
from unmask.text.batch import SequenceLayout


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


AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Maximum number of entries of the bands that run together."""


class DisentangledKernel(Kernel):
    """Strips of complete rows, position scores as sheared products.

    float64 and float32 inputs compute in their own dtype, float16 in float32. bfloat16 inputs compute
    products and softmax in bfloat16, with an error of at most 0.03 for standard normal values, and gradients
    in float32.
    """

    capability = Capability(
        name="disentangled",
        computes="strips of queries; position scores as sheared products",
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        patterns=frozenset({FullAttention}),
        positions=frozenset({Disentangled}),
        gradients=True,
        dropout=True,
        log_sum_exp=True,
    )

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Rectangles:
        """Runs of equal length; tokens are reordered only if equal lengths are not adjacent."""
        return Rectangles.of(layout, device)

    def compute(self, call: AttentionCall, plan: Rectangles) -> AttentionOutput:
        """Strip by strip."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        apart = bias.distances
        others = any(term is not None for term in (bias.slopes_H, bias.relative, bias.sinks_H))
        if not isinstance(pattern, FullAttention) or apart is None or others:
            raise KernelError("the disentangled kernel was called for something its record does not list")
        seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
        setting = Setting(plan, apart.position, dropout, seed, log_sum_exp)
        tensors = (q_THK, k_THK, v_THK, apart.keys_PHK, apart.queries_PHK)
        o_THK, lse_TH = Attention.apply(setting, *tensors)  # type: ignore[no-untyped-call]
        return AttentionOutput(o_THK, lse_TH)


@dataclass(frozen=True, eq=False)
class Setting:
    """Settings shared by forward and backward pass."""

    plan: Rectangles
    position: Disentangled
    dropout: float
    seed: int
    """Seed of the dropout generator, used again in the backward pass."""
    log_sum_exp: bool

    def parts(self, run: int, heads: int, device: torch.device) -> Iterator[tuple[Band, slice, slice]]:
        """The band, sequences and heads of each group of a run that is computed together."""
        count, length = self.plan.shapes[run]
        band = Band.of(self.position, length)
        pairs = AT_ONCE[device.type] // (length * max(ROWS, len(band.rows_W)))
        if pairs >= heads:
            together, sequences = heads, pairs // heads
        else:
            together, sequences = (max(1, pairs) if device.type == "cuda" else 1), 1
        for first in range(0, count, sequences):
            for head in range(0, heads, together):
                yield (
                    band,
                    slice(first, min(first + sequences, count)),
                    slice(head, min(head + together, heads)),
                )

    def strips(
        self, band: Band, heads: slice, q_GNK: Tensor, k_GNK: Tensor, tables: tuple[Tensor | None, ...]
    ) -> Strips:
        """The strips of a group, its queries scaled and its heads' tables expanded."""
        scale = 1 / math.sqrt(q_GNK.shape[-1] * self.position.term_count)
        rows_W = band.rows_W.to(q_GNK.device)
        keys_HWK, queries_HWK = (
            None
            if table is None
            else table[:, heads].to(q_GNK.dtype).index_select(0, order).transpose(0, 1).contiguous()
            for table, order in zip(tables, (rows_W.flip(0), rows_W), strict=True)
        )
        queries_HWK = None if queries_HWK is None else queries_HWK * scale
        return Strips(band, q_GNK * scale, k_GNK, keys_HWK, queries_HWK)

    def generator(self, device: torch.device) -> torch.Generator:
        """The dropout generator in its initial state."""
        return torch.Generator(device).manual_seed(self.seed)

    def keep_mask(self, p_GRN: Tensor, generator: torch.Generator) -> Tensor | None:
        """The dropout factors of probabilities, 0 if dropped; None without dropout."""
        if not self.dropout:
            return None
        kept_GRN = keep_mask(p_GRN.shape, self.dropout, p_GRN.device, generator)
        return apply_keep_mask(p_GRN.new_ones(()), kept_GRN, self.dropout)


def gathered(x_BNHK: Tensor, sequences: slice, heads: slice, dtype: torch.dtype) -> Tensor:
    """The heads and sequences of a group on one axis, (G, N, ...), contiguous."""
    part = x_BNHK[sequences, :, heads]
    return part.movedim(2, 0).flatten(0, 1).to(dtype).contiguous()


def put(out_BNHK: Tensor, sequences: slice, heads: slice, x_GNK: Tensor) -> None:
    """The inverse of `gathered`."""
    part = out_BNHK[sequences, :, heads]
    part.copy_(x_GNK.view(part.shape[2], part.shape[0], *x_GNK.shape[1:]).movedim(0, 2))


class Attention(torch.autograd.Function):
    """Forward and backward over all groups of a batch."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Any) -> tuple[Tensor, Tensor | None]:
        """Mixed values in the dtype of the queries and, if requested, log-sum-exp in at least float32."""
        ctx.setting = setting
        ctx.save_for_backward(*tensors)
        *inputs, keys_PHK, queries_PHK = tensors
        q_THK = inputs[0]
        dtype = torch.float32 if q_THK.dtype == torch.float16 else q_THK.dtype
        generator = setting.generator(q_THK.device)
        mixed, sums = [], []
        for run, each in enumerate(zip(*map(setting.plan.cut, inputs), strict=True)):
            o_BNHK = torch.empty(each[0].shape, dtype=q_THK.dtype, device=q_THK.device)
            exact = torch.promote_types(q_THK.dtype, torch.float32)
            lse_BNH = o_BNHK.new_empty(o_BNHK.shape[:3], dtype=exact)
            for band, sequences, heads in setting.parts(run, q_THK.shape[1], q_THK.device):
                q_GNK, k_GNK, v_GNK = (gathered(x, sequences, heads, dtype) for x in each)
                strips = setting.strips(band, heads, q_GNK, k_GNK, (keys_PHK, queries_PHK))
                o_GNK, lse_GN = attend_group(strips, v_GNK, setting, generator)
                put(o_BNHK, sequences, heads, o_GNK)
                if lse_GN is not None:
                    put(lse_BNH, sequences, heads, lse_GN)
            mixed.append(o_BNHK)
            sums.append(lse_BNH)
        return setting.plan.join(mixed), setting.plan.join(sums) if setting.log_sum_exp else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_THK: Tensor, dlse_TH: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of queries, keys, values and both tables, in the dtype of each."""
        setting: Setting = ctx.setting
        *inputs, keys_PHK, queries_PHK = ctx.saved_tensors
        dtype = torch.promote_types(inputs[0].dtype, torch.float32)
        generator, tables = setting.generator(do_THK.device), (keys_PHK, queries_PHK)
        dtables = [None if table is None else torch.zeros_like(table, dtype=dtype) for table in tables]
        outs_by_input: tuple[list[Tensor], ...] = ([], [], [])
        dlse = [None] * len(setting.plan.shapes) if dlse_TH is None else list(setting.plan.cut(dlse_TH))
        for run, each in enumerate(zip(*map(setting.plan.cut, (*inputs, do_THK)), strict=True)):
            outs = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in each[:3]]
            for band, sequences, heads in setting.parts(run, do_THK.shape[1], do_THK.device):
                q_GNK, k_GNK, v_GNK, do_GNK = (gathered(x, sequences, heads, dtype) for x in each)
                sums = dlse[run]
                dlse_GN = None if sums is None else gathered(sums, sequences, heads, dtype)
                strips = setting.strips(band, heads, q_GNK, k_GNK, tables)
                gradients = StripGradients(strips, v_GNK, setting.position)
                for first in range(0, band.length, ROWS):
                    rows = slice(first, min(first + ROWS, band.length))
                    p_GRN = torch.softmax(strips.scores(rows.start, rows.stop), -1)
                    kept_GRN = setting.keep_mask(p_GRN, generator)
                    sums_GR = None if dlse_GN is None else dlse_GN[:, rows]
                    gradients.add(rows, p_GRN, kept_GRN, do_GNK[:, rows], sums_GR)
                gradients.finish(dtables, heads)
                for out, x_GNK in zip(outs, (gradients.dq, gradients.dk, gradients.dv), strict=True):
                    put(out, sequences, heads, x_GNK)
            for parts, out in zip(outs_by_input, outs, strict=True):
                parts.append(out)
        joined = [setting.plan.join(parts) for parts in outs_by_input]
        changed = (
            None if grad is None else grad.to(table.dtype)
            for grad, table in zip(dtables, tables, strict=True)
        )
        return (None, *joined, *changed)


def attend_group(
    strips: Strips, v_GNK: Tensor, setting: Setting, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Mixed values (G, N, K) and log-sum-exp (G, N) of one group."""
    length = strips.band.length
    values = Matrix(v_GNK.mT.contiguous(), packed=length >= PACKED_FROM)
    o_GNK = torch.empty_like(v_GNK)
    exact = torch.promote_types(v_GNK.dtype, torch.float32)
    lse_GN = v_GNK.new_empty(v_GNK.shape[:2], dtype=exact) if setting.log_sum_exp else None
    for first in range(0, length, ROWS):
        end = min(first + ROWS, length)
        s_GRN = strips.scores(first, end)
        if lse_GN is not None:
            lse_GN[:, first:end] = torch.logsumexp(s_GRN.to(exact), -1)
        p_GRN = torch.softmax(s_GRN, -1)
        kept_GRN = setting.keep_mask(p_GRN, generator)
        if kept_GRN is not None:
            p_GRN *= kept_GRN
        o_GNK[:, first:end] = values.times(p_GRN)
    return o_GNK, lse_GN
