"""The softmax mixer: projections around whichever kernel attends."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.model.kernels import DistanceTerms, Kernel, Need, ScoreTerms, choose
from unmask.model.layers.disentangled import DistanceProjections, rows_read
from unmask.model.layers.global_attention import GlobalAttention, GlobalRows
from unmask.model.layers.rotary import Rotation, turn
from unmask.model.spec import (
    Blocks,
    Disentangled,
    NoPosition,
    Reach,
    Rotary,
    SoftmaxAttention,
    Whole,
    WindowAndGlobals,
)
from unmask.model.spec.attention import AttentionPosition
from unmask.model.tap import Place, Tap
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel of one reach and position term, and what it prepared for this batch."""

    kernel: Kernel
    prepared: Any
    rotation: Rotation | None
    """How far tokens turn, for rotary layers."""
    reach: Reach
    """The layer's, or the plainer one that is equal to it on this batch."""
    global_rows: GlobalRows | None = None
    """Rows of global tokens, where they have projections of their own."""
    table_PD: Tensor | None = None
    """The table of distances, for disentangled layers."""
    rows_read: slice | None = None
    """Those of its rows that texts of this batch can read."""


def plainest(reach: Reach, layout: SequenceLayout) -> Reach:
    """The plainest reach that sees the same in this batch, so that more kernels can run it."""
    match reach:
        case Blocks() if layout.lengths.max() <= reach.whole_up_to:
            return Whole()
        case WindowAndGlobals() if layout.globals_T is None or not layout.globals_T.any():
            return reach.window
        case _:
            return reach


def attended_dtype(x: Tensor) -> torch.dtype:
    """What a layer that is given ``x`` projects it to: its own dtype, or that of autocast where it is on."""
    kind = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def hear_distances(terms: DistanceTerms, layer: int, tap: Tap) -> None:
    """Tell a tap the layer's projections of the table of distances."""
    for place, table_PHK in (
        (Place.DISTANCE_KEY, terms.keys_PHK),
        (Place.DISTANCE_QUERY, terms.queries_PHK),
    ):
        if table_PHK is not None:
            tap(place, layer, table_PHK)


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
        self.terms, self.distances = ScoreTerms(), None
        if isinstance(spec.position, Disentangled):
            self.distances = DistanceProjections(spec, spec.position, width)
        else:
            self.terms = ScoreTerms.of(spec.position, spec.heads)
        inner = spec.heads * spec.head_width
        biased = {"query_bias": spec.query_bias, "key_bias": spec.key_bias, "value_bias": spec.value_bias}
        every = all(biased.values())
        self.qkv = nn.Linear(width, 3 * inner, bias=every)
        for name, has in biased.items():
            own = nn.Parameter(torch.zeros(inner)) if has and not every else None
            self.register_parameter(name, own)
        self.out = nn.Linear(inner, width, bias=spec.out_bias)
        self.globals: GlobalAttention | None = None
        if isinstance(spec.reach, WindowAndGlobals) and spec.reach.own_projections:
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
        reach = plainest(spec.reach, layout)
        key: tuple[Reach, AttentionPosition, int, bool, bool] = (
            reach,
            spec.position,
            spec.head_width,
            spec.dropout > 0,
            self.globals is not None,
        )
        if key not in made:
            need = Need(
                device=x_TD.device.type,
                dtype=str(attended_dtype(x_TD)).removeprefix("torch."),
                reach=reach,
                position=NoPosition() if isinstance(spec.position, Rotary) else spec.position,
                head_width=spec.head_width,
                longest=int(layout.lengths.max()),
                gradients=torch.is_grad_enabled()
                and (x_TD.requires_grad or any(p.requires_grad for p in self.parameters())),
                dropout=self.training and spec.dropout > 0,
            )
            chosen = choose(need, kernel)
            rotation = None
            if isinstance(spec.position, Rotary):
                positions_T = torch.from_numpy(layout.positions_T).to(x_TD.device)
                rotation = Rotation.of(positions_T, spec.position, spec.head_width, x_TD.dtype)
            prepared = chosen.plan(layout, reach, x_TD.device)
            global_rows = None if self.globals is None else GlobalRows.of(layout, x_TD.device)
            read = rows_read(spec.position, need.longest) if isinstance(spec.position, Disentangled) else None
            made[key] = AttentionPlan(chosen, prepared, rotation, reach, global_rows, rows_read=read)
        return made[key]  # type: ignore[no-any-return]

    def project(self, x_TD: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (T, H, K) each, turned where positions are rotary; all of it by token."""
        spec = self.spec
        parts = self.qkv(x_TD).unflatten(-1, (3, spec.heads, spec.head_width)).unbind(-3)
        q_THK, k_THK, v_THK = (
            part if bias is None else part + bias.view(spec.heads, spec.head_width)
            for part, bias in zip(parts, (self.query_bias, self.key_bias, self.value_bias), strict=True)
        )
        if isinstance(spec.position, Rotary) and rotation is not None:
            q_THK = turn(q_THK, rotation, spec.position)
            k_THK = turn(k_THK, rotation, spec.position)
        return q_THK, k_THK, v_THK

    def terms_of(self, plan: AttentionPlan) -> ScoreTerms:
        """What this layer adds to scores in a batch."""
        if self.distances is None:
            return self.terms
        assert plan.table_PD is not None
        terms: ScoreTerms = self.distances(plan.table_PD, self.qkv, plan.rows_read)
        return terms

    def mix(
        self, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, plan: AttentionPlan, terms: ScoreTerms
    ) -> Tensor:
        """Values mixed by attention, (T, H, K), before the output projection."""
        dropout = self.spec.dropout if self.training else 0.0
        kind, dtype = q_THK.device.type, attended_dtype(q_THK)
        # A kernel says itself what it computes in; autocast would change single products of it.
        apart = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        q_THK, k_THK, v_THK = q_THK.to(dtype), k_THK.to(dtype), v_THK.to(dtype)
        with apart:
            o_THK, _ = plan.kernel.attend(
                q_THK, k_THK, v_THK, plan.prepared, reach=plan.reach, terms=terms, dropout=dropout
            )
        return o_THK

    def forward(self, x_TD: Tensor, plan: AttentionPlan, layer: int, tap: Tap | None) -> Tensor:
        """Shape (T, D) in and out."""
        q_THK, k_THK, v_THK = self.project(x_TD, plan.rotation)
        terms = self.terms_of(plan)
        o_THK = self.mix(q_THK, k_THK, v_THK, plan, terms)
        if self.globals is not None and plan.global_rows is not None:
            o_THK = self.globals(x_TD, o_THK, plan.global_rows)
            if tap is not None:
                self.globals.tell(x_TD, layer, tap)
        if tap is not None:
            heard = (
                (Place.QUERY, q_THK),
                (Place.KEY, k_THK),
                (Place.VALUE, v_THK),
                (Place.MIXED, o_THK),
            )
            for place, tensor in heard:
                tap(place, layer, tensor)
            if terms.distances is not None:
                hear_distances(terms.distances, layer, tap)
        y_TD: Tensor = self.out(o_THK.flatten(-2))
        return y_TD
