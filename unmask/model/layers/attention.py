"""The softmax mixer: projections around whichever kernel attends."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import UnknownArchitecture
from unmask.model.kernels import Kernel, Need, ScoreTerms, choose
from unmask.model.layers.rotary import turn
from unmask.model.spec import NoPosition, Reach, Rotary, SoftmaxAttention
from unmask.model.spec.attention import AttentionPosition
from unmask.model.tap import Place, Tap
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel of one reach and position term, and what it prepared for this batch."""

    kernel: Kernel
    prepared: Any
    positions_T: Tensor | None
    """Positions of the tokens, for rotary layers."""


class SoftmaxMixer(nn.Module):
    """Multi-head attention over packed tokens (Vaswani et al. 2017); the kernel is chosen per batch.

    Query, key and value projections are one matrix, their rows in that order.
    """

    def __init__(self, spec: SoftmaxAttention, width: int) -> None:
        super().__init__()
        if not spec.query_bias == spec.key_bias == spec.value_bias:
            raise UnknownArchitecture("biases on only some of query, key and value are not built")
        self.spec = spec
        self.terms = ScoreTerms.of(spec.position, spec.heads)
        inner = spec.heads * spec.head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=spec.query_bias)
        self.out = nn.Linear(inner, width, bias=spec.out_bias)

    def plan(
        self,
        layout: SequenceLayout,
        x_TD: Tensor,
        kernel: str | None,
        made: dict[Any, AttentionPlan],
    ) -> AttentionPlan:
        """The plan of this layer, shared in ``made`` with every layer of equal reach and position."""
        spec = self.spec
        key: tuple[Reach, AttentionPosition, bool] = (spec.reach, spec.position, spec.dropout > 0)
        if key not in made:
            need = Need(
                device=x_TD.device.type,
                dtype=str(x_TD.dtype).removeprefix("torch."),
                reach=spec.reach,
                position=NoPosition() if isinstance(spec.position, Rotary) else spec.position,
                gradients=torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()),
                dropout=self.training and spec.dropout > 0,
            )
            chosen = choose(need, kernel)
            positions_T = None
            if isinstance(spec.position, Rotary):
                positions_T = torch.from_numpy(layout.positions_T).to(x_TD.device)
            prepared = chosen.plan(layout, spec.reach, x_TD.device)
            made[key] = AttentionPlan(chosen, prepared, positions_T)
        return made[key]

    def forward(self, x_TD: Tensor, plan: AttentionPlan, layer: int, tap: Tap | None) -> Tensor:
        """Shape (T, D) in and out."""
        spec = self.spec
        q_THK, k_THK, v_THK = self.qkv(x_TD).unflatten(-1, (3, spec.heads, spec.head_width)).unbind(-3)
        if isinstance(spec.position, Rotary) and plan.positions_T is not None:
            q_THK = turn(q_THK, plan.positions_T, spec.position)
            k_THK = turn(k_THK, plan.positions_T, spec.position)
        o_THK, _ = plan.kernel.attend(
            q_THK,
            k_THK,
            v_THK,
            plan.prepared,
            reach=spec.reach,
            terms=self.terms,
            dropout=spec.dropout if self.training else 0.0,
        )
        if tap is not None:
            heard = (
                (Place.QUERY, q_THK),
                (Place.KEY, k_THK),
                (Place.VALUE, v_THK),
                (Place.MIXED, o_THK),
            )
            for place, tensor in heard:
                tap(place, layer, tensor)
        y_TD: Tensor = self.out(o_THK.flatten(-2))
        return y_TD
