"""The softmax mixer: projections around whichever kernel attends."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.model.hooks import Hook, HookPoint
from unmask.model.kernels import AttentionBias, AttentionRequest, DistanceBias, Kernel, choose
from unmask.model.layers.disentangled import DistanceProjections, rows_read
from unmask.model.layers.global_attention import GlobalAttention, GlobalRows
from unmask.model.layers.rotary import RotaryTable, apply_rotary
from unmask.model.spec import (
    AttentionPattern,
    BlockSparse,
    Disentangled,
    FullAttention,
    NoPosition,
    Rotary,
    SlidingWindowGlobal,
    SoftmaxAttention,
)
from unmask.model.spec.attention import AttentionPosition
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel of one reach and position term, and what it prepared for this batch."""

    kernel: Kernel
    prepared: Any
    rotation: RotaryTable | None
    """How far tokens turn, for rotary layers."""
    pattern: AttentionPattern
    """The layer's, or the plainer one that is equal to it on this batch."""
    global_rows: GlobalRows | None = None
    """Rows of global tokens, where they have projections of their own."""
    table_PD: Tensor | None = None
    """The table of distances, for disentangled layers."""
    rows_read: slice | None = None
    """Those of its rows that texts of this batch can read."""


def simplify(pattern: AttentionPattern, layout: SequenceLayout) -> AttentionPattern:
    """The plainest reach that sees the same in this batch, so that more kernels can run it."""
    match pattern:
        case BlockSparse() if layout.lengths.max() <= pattern.whole_up_to:
            return FullAttention()
        case SlidingWindowGlobal() if layout.globals_T is None or not layout.globals_T.any():
            return pattern.window
        case _:
            return pattern


def attended_dtype(x: Tensor) -> torch.dtype:
    """What a layer that is given ``x`` projects it to: its own dtype, or that of autocast where it is on."""
    kind = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def record_distances(bias: DistanceBias, layer: int, hook: Hook) -> None:
    """Tell a tap the layer's projections of the table of distances."""
    for place, table_PHK in (
        (HookPoint.DISTANCE_KEY, bias.keys_PHK),
        (HookPoint.DISTANCE_QUERY, bias.queries_PHK),
    ):
        if table_PHK is not None:
            hook(place, layer, table_PHK)


class SoftmaxMixer(nn.Module):
    """Multi-head attention over packed tokens (Vaswani et al. 2017); the kernel is chosen per batch.

    Query, key and value projections are one matrix, their rows in that order. So is their bias where all
    have one; where only some have, each is a tensor of its own.
    """

    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None

    def __init__(self, spec: SoftmaxAttention, width: int) -> None:
        super().__init__()
        spec.check_is_built()
        self.spec = spec
        self.bias, self.distances = AttentionBias(), None
        if isinstance(spec.position, Disentangled):
            self.distances = DistanceProjections(spec, spec.position, width)
        else:
            self.bias = AttentionBias.of(spec.position, spec.heads)
        inner = spec.heads * spec.head_width
        biased = {"query_bias": spec.query_bias, "key_bias": spec.key_bias, "value_bias": spec.value_bias}
        every = all(biased.values())
        self.qkv = nn.Linear(width, 3 * inner, bias=every)
        for name, has in biased.items():
            own = nn.Parameter(torch.zeros(inner)) if has and not every else None
            self.register_parameter(name, own)
        self.out = nn.Linear(inner, width, bias=spec.out_bias)
        self.globals: GlobalAttention | None = None
        if isinstance(spec.pattern, SlidingWindowGlobal) and spec.pattern.own_projections:
            self.globals = GlobalAttention(spec, width)

    def plan(
        self,
        layout: SequenceLayout,
        x_TD: Tensor,
        kernel: str | None,
        made: dict[Any, Any],
    ) -> AttentionPlan:
        """The plan of this layer, shared in ``made`` with every layer of equal reach and position."""
        spec = self.spec
        pattern = simplify(spec.pattern, layout)
        key: tuple[AttentionPattern, AttentionPosition, int, bool, bool] = (
            pattern,
            spec.position,
            spec.head_width,
            spec.dropout > 0,
            self.globals is not None,
        )
        if key not in made:
            request = AttentionRequest(
                device=x_TD.device.type,
                dtype=str(attended_dtype(x_TD)).removeprefix("torch."),
                pattern=pattern,
                position=NoPosition() if isinstance(spec.position, Rotary) else spec.position,
                head_width=spec.head_width,
                longest=int(layout.lengths.max()),
                gradients=torch.is_grad_enabled()
                and (x_TD.requires_grad or any(p.requires_grad for p in self.parameters())),
                dropout=self.training and spec.dropout > 0,
            )
            chosen = choose(request, kernel)
            rotation = None
            if isinstance(spec.position, Rotary):
                positions_T = torch.from_numpy(layout.positions_T).to(x_TD.device)
                rotation = RotaryTable.of(positions_T, spec.position, spec.head_width, x_TD.dtype)
            prepared = chosen.plan(layout, pattern, x_TD.device)
            global_rows = None if self.globals is None else GlobalRows.of(layout, x_TD.device)
            read = (
                rows_read(spec.position, request.longest) if isinstance(spec.position, Disentangled) else None
            )
            made[key] = AttentionPlan(chosen, prepared, rotation, pattern, global_rows, rows_read=read)
        return made[key]  # type: ignore[no-any-return]

    def project(self, x_TD: Tensor, rotation: RotaryTable | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (T, H, K) each, turned where positions are rotary; all of it by token."""
        spec = self.spec
        parts = self.qkv(x_TD).unflatten(-1, (3, spec.heads, spec.head_width)).unbind(-3)
        q_THK, k_THK, v_THK = (
            part if bias is None else part + bias.view(spec.heads, spec.head_width)
            for part, bias in zip(parts, (self.query_bias, self.key_bias, self.value_bias), strict=True)
        )
        if isinstance(spec.position, Rotary) and rotation is not None:
            q_THK = apply_rotary(q_THK, rotation, spec.position)
            k_THK = apply_rotary(k_THK, rotation, spec.position)
        return q_THK, k_THK, v_THK

    def bias_of(self, plan: AttentionPlan) -> AttentionBias:
        """What this layer adds to scores in a batch."""
        if self.distances is None:
            return self.bias
        assert plan.table_PD is not None
        bias: AttentionBias = self.distances(plan.table_PD, self.qkv, plan.rows_read)
        return bias

    def mix(
        self, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, plan: AttentionPlan, bias: AttentionBias
    ) -> Tensor:
        """Values mixed by attention, (T, H, K), before the output projection."""
        dropout = self.spec.dropout if self.training else 0.0
        kind, dtype = q_THK.device.type, attended_dtype(q_THK)
        # A kernel says itself what it computes in; autocast would change single products of it.
        apart = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        q_THK, k_THK, v_THK = q_THK.to(dtype), k_THK.to(dtype), v_THK.to(dtype)
        with apart:
            o_THK, _ = plan.kernel.attend(
                q_THK, k_THK, v_THK, plan.prepared, pattern=plan.pattern, bias=bias, dropout=dropout
            )
        return o_THK

    def forward(self, x_TD: Tensor, plan: AttentionPlan, layer: int, hook: Hook | None) -> Tensor:
        """Shape (T, D) in and out."""
        q_THK, k_THK, v_THK = self.project(x_TD, plan.rotation)
        bias = self.bias_of(plan)
        o_THK = self.mix(q_THK, k_THK, v_THK, plan, bias)
        if self.globals is not None and plan.global_rows is not None:
            o_THK = self.globals(x_TD, o_THK, plan.global_rows)
            if hook is not None:
                self.globals.record(x_TD, layer, hook)
        if hook is not None:
            heard = (
                (HookPoint.QUERY, q_THK),
                (HookPoint.KEY, k_THK),
                (HookPoint.VALUE, v_THK),
                (HookPoint.MIXED, o_THK),
            )
            for place, tensor in heard:
                hook(place, layer, tensor)
            if bias.distances is not None:
                record_distances(bias.distances, layer, hook)
        y_TD: Tensor = self.out(o_THK.flatten(-2))
        return y_TD
