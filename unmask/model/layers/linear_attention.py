"""The mixer whose cost is linear in tokens: sums of features instead of a map of scores."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import InvalidRequest
from unmask.model.spec import LinearAttention
from unmask.model.tap import Place, Tap
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class LinearPlan:
    """What these layers need to know of a batch: no kernel of scores is involved."""

    lengths: list[int]
    """Tokens of each sequence."""


class LinearMixer(nn.Module):
    """Multi-head attention by feature maps (Katharopoulos et al. 2020; Choromanski et al. 2021).

    Query, key and value projections are one matrix, their rows in that order. The random matrix of
    ``favor+`` is a buffer, shared by the heads of a layer and saved with the checkpoint: outputs are
    the same each time. Whoever trains may draw a new one with `redraw`; nothing here does it by itself.

    Sums run over one sequence at a time, so a sequence's result does not know its neighbours, to the bit.
    """

    projection: Tensor | None
    """Rows of the random features, (M, K), for ``favor+``."""

    def __init__(self, spec: LinearAttention, width: int) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=spec.bias)
        self.out = nn.Linear(inner, width, bias=spec.bias)
        drawn = torch.empty(spec.random_features, spec.head_width) if spec.random_features else None
        self.register_buffer("projection", drawn)
        if drawn is not None and not drawn.is_meta:
            self.redraw()

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new random features, as training may do now and then (Choromanski et al. 2021, 4.2).

        Raises:
            InvalidRequest: in evaluation, where it would change results, or without random features.
        """
        if self.projection is None:
            raise InvalidRequest(f"{self.spec.feature_map} has no random features to draw")
        if not self.training:
            raise InvalidRequest("random features are drawn in training only; call train() first")
        with torch.no_grad():
            self.projection.copy_(orthogonal_rows(*self.projection.shape, generator=generator))

    def plan(
        self, layout: SequenceLayout, x_TD: Tensor, kernel: str | None, made: dict[Any, Any]
    ) -> LinearPlan:
        """The lengths of the sequences, shared in ``made`` by all such layers."""
        if LinearPlan not in made:
            made[LinearPlan] = LinearPlan(layout.lengths.tolist())
        return made[LinearPlan]  # type: ignore[no-any-return]

    def forward(self, x_TD: Tensor, plan: LinearPlan, layer: int, tap: Tap | None) -> Tensor:
        """Shape (T, D) in and out. Features and sums are computed in float32 at least."""
        spec = self.spec
        q_THK, k_THK, v_THK = self.qkv(x_TD).unflatten(-1, (3, spec.heads, spec.head_width)).unbind(-3)
        exact = torch.promote_types(x_TD.dtype, torch.float32)
        parts = (tensor.to(exact).split(plan.lengths) for tensor in (q_THK, k_THK, v_THK))
        mixed = [self._mix(q_NHK, k_NHK, v_NHK) for q_NHK, k_NHK, v_NHK in zip(*parts, strict=True)]
        o_THK = torch.cat(mixed).to(x_TD.dtype)
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

    def _mix(self, q_NHK: Tensor, k_NHK: Tensor, v_NHK: Tensor) -> Tensor:
        """One sequence, (N, H, K) in and out."""
        eps = self.spec.eps
        if self.projection is None:
            q_NHM, k_NHM = (torch.nn.functional.elu(x) + 1 for x in (q_NHK, k_NHK))
            added = eps
        else:
            rows_MK = self.projection.to(q_NHK.dtype)
            q_NHM, k_NHM = log_features(q_NHK, rows_MK), log_features(k_NHK, rows_MK)
            # Each maximum cancels but for eps. That of the keys is over their own sequence and head:
            # over a whole batch it would let neighbours change what eps weighs.
            q_NHM = (q_NHM - q_NHM.detach().amax(dim=-1, keepdim=True)).exp() + eps
            k_NHM = (k_NHM - k_NHM.detach().amax(dim=(0, 2), keepdim=True)).exp() + eps
            added = 0.0
        sums_HMK = torch.einsum("nhm,nhk->hmk", k_NHM, v_NHK)
        weights_NH1 = torch.einsum("nhm,hm->nh", q_NHM, k_NHM.sum(0))[..., None] + added
        return torch.einsum("nhm,hmk->nhk", q_NHM, sums_HMK) / weights_NH1


def log_features(x_NHK: Tensor, rows_MK: Tensor) -> Tensor:
    """Logarithms of positive random features, (N, H, M): ``x w - |x|^2 / 2`` with x scaled by K^-1/4.

    The mean over m of ``exp(log_features(q) + log_features(k))`` estimates ``exp(q k / sqrt(K))``
    without bias (Choromanski et al. 2021, lemma 1).
    """
    x_NHK = x_NHK * x_NHK.shape[-1] ** -0.25
    return x_NHK @ rows_MK.T - x_NHK.square().sum(-1, keepdim=True) / 2


def orthogonal_rows(rows: int, width: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian rows that are orthogonal within each block of ``width`` of them, (rows, width), float64.

    Directions are uniform and lengths those of independent Gaussian vectors, so that each row alone is
    a standard Gaussian and estimates stay without bias.
    """
    blocks = []
    for _ in range(-(-rows // width)):
        q, r = torch.linalg.qr(_gaussian(width, width, generator))
        # QR chooses the signs of r's diagonal; taking them back makes q uniform (Mezzadri 2007).
        blocks.append((q * r.diagonal().sign()).T)
    directions: Tensor = torch.cat(blocks)[:rows]
    lengths: Tensor = _gaussian(rows, width, generator).norm(dim=-1, keepdim=True)
    return directions * lengths


def _gaussian(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, device="cpu", generator=generator)
