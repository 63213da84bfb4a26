"""The mixer whose cost is linear in tokens: sums of features instead of a score matrix."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoder.hooks import Hook, HookPoint, hooked
from unmask.errors import InvalidRequest
from unmask.kernels.sdpa import Rectangles
from unmask.spec import LinearAttention
from unmask.text.batch import SequenceLayout

ROWS_AT_ONCE = 4096
"""Tokens times heads that run together, so that features stay in a core's cache; measured."""


@dataclass(frozen=True)
class LinearPlan:
    """What linear layers need to know of a batch; they use no attention kernel."""

    rectangles: Rectangles
    """The sequences grouped by length."""


class LinearMixer(nn.Module):
    """Multi-head attention by feature maps (Katharopoulos et al. 2020; Choromanski et al. 2021).

    Query, key and value projections are one matrix, their rows in that order. The random matrix of
    ``favor+`` is a buffer, shared by the heads of a layer and saved with the checkpoint: outputs are
    deterministic. Training code may draw a new one with `redraw`; it is never redrawn automatically.

    Sequences of equal length run together, each with separate sums, so they do not affect one another.
    """

    projection: Tensor | None
    """Rows of the random features, (M, K), for ``favor+``."""

    def __init__(self, spec: LinearAttention, width: int) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.head_width
        self.qkv = nn.Linear(width, 3 * inner, bias=spec.bias)
        self.out = nn.Linear(inner, width, bias=spec.bias)
        features = torch.empty(spec.random_features, spec.head_width) if spec.random_features else None
        self.register_buffer("projection", features)
        if features is not None and not features.is_meta:
            self.redraw()

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new random features, as training may do periodically (Choromanski et al. 2021, 4.2).

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
        self, layout: SequenceLayout, x_TD: Tensor, kernel: str | None, plans: dict[Any, Any]
    ) -> LinearPlan:
        """The sequences grouped by length, shared in ``plans`` by all such layers."""
        if LinearPlan not in plans:
            plans[LinearPlan] = LinearPlan(Rectangles.of(layout, x_TD.device))
        return plans[LinearPlan]  # type: ignore[no-any-return]

    def forward(self, x_TD: Tensor, plan: LinearPlan, layer: int, hook: Hook | None) -> Tensor:
        """Shape (T, D) in and out. Features and sums are computed in float32 at least."""
        spec, rectangles = self.spec, plan.rectangles
        # Sorted before projection, when there is the least data to move.
        qkv_T3HK = self.qkv(rectangles.sort(x_TD)).unflatten(-1, (3, spec.heads, spec.head_width))
        if hook is not None:
            parts = zip((HookPoint.QUERY, HookPoint.KEY, HookPoint.VALUE), qkv_T3HK.unbind(1), strict=True)
            passed = [hooked(hook, place, layer, rectangles.restore(part)) for place, part in parts]
            qkv_T3HK = rectangles.sort(torch.stack(passed, dim=1))
        mixed = [o_THK for part in rectangles.split(qkv_T3HK) for o_THK in self._by_slabs(part)]
        o_THK = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        if hook is not None:
            o_THK = rectangles.sort(hooked(hook, HookPoint.MIXED, layer, rectangles.restore(o_THK)))
        return hooked(hook, HookPoint.ATTENTION, layer, rectangles.restore(self.out(o_THK.flatten(-2))))

    def _by_slabs(self, qkv_BN3HK: Tensor) -> Iterator[Tensor]:
        """Mix sequences of equal length, (B, N, 3, H, K), a few sequences or heads at a time: (T, H, K)."""
        length, every = qkv_BN3HK.shape[1], self.spec.heads
        heads = min(every, max(1, ROWS_AT_ONCE // length))
        for sequences in torch.split(qkv_BN3HK, max(1, ROWS_AT_ONCE // (length * heads))):
            mixed = [self._mix(slab) for slab in torch.split(sequences, heads, dim=3)]
            yield (mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)).flatten(0, 1)

    def _mix(self, qkv_BN3HK: Tensor) -> Tensor:
        """A slab of sequences of equal length, (B, N, 3, H, K) to (B, N, H, K)."""
        dtype = qkv_BN3HK.dtype
        qkv_3BHNK = qkv_BN3HK.to(torch.promote_types(dtype, torch.float32)).permute(2, 0, 3, 1, 4)
        if len(qkv_BN3HK) > 1:  # else the products accept this layout
            qkv_3BHNK = qkv_3BHNK.contiguous()
        q_BHNK, k_BHNK, v_BHNK = qkv_3BHNK.unbind()
        q_BHNM, k_BHNM = self._features(q_BHNK, (-1,)), self._features(k_BHNK, (-1, -2))
        added = self.spec.eps if self.projection is None else 0.0
        (length, features), width = q_BHNM.shape[-2:], v_BHNK.shape[-1]
        if length * (features + width) < 2 * features * width:
            # For a short text the full weight matrix costs less than the sums.
            p_BHNN = q_BHNM @ k_BHNM.mT
            o_BHNK = p_BHNN @ v_BHNK / (p_BHNN.sum(-1, keepdim=True) + added)
        else:
            o_BHNK = q_BHNM @ (k_BHNM.mT @ v_BHNK) / (q_BHNM @ k_BHNM.sum(-2)[..., None] + added)
        return o_BHNK.transpose(1, 2).to(dtype)

    def features(self, q_HNK: Tensor, k_HNK: Tensor) -> tuple[Tensor, Tensor]:
        """Positive features of the queries and keys of one sequence, (H, N, M) each.

        The weight of key j for query i is ``phi(q_i) phi(k_j)`` divided by the sum over all keys. Features
        are in float32 at least.
        """
        exact = torch.promote_types(q_HNK.dtype, torch.float32)
        q_BHNK, k_BHNK = q_HNK.to(exact)[None], k_HNK.to(exact)[None]
        return self._features(q_BHNK, (-1,))[0], self._features(k_BHNK, (-1, -2))[0]

    def _features(self, x_BHNK: Tensor, peers: tuple[int, ...]) -> Tensor:
        """Positive features, (B, H, N, M). Those of ``favor+`` are divided by their largest over the axes
        ``peers``, which cancels except for eps. For keys this is over their own sequence and head: over
        a whole batch, other sequences would change the effect of eps.
        """
        if self.projection is None:
            return torch.nn.functional.elu(x_BHNK) + 1
        x_BHNM = log_features(x_BHNK, self.projection.to(x_BHNK.dtype))
        return (x_BHNM - x_BHNM.detach().amax(dim=peers, keepdim=True)).exp() + self.spec.eps


def log_features(x: Tensor, rows_MK: Tensor) -> Tensor:
    """Logarithms of positive random features, (..., K) to (..., M).

    The formula is ``x w - |x|^2 / 2``, with x scaled by K^-1/4.

    The mean over m of ``exp(log_features(q) + log_features(k))`` estimates ``exp(q k / sqrt(K))``
    without bias (Choromanski et al. 2021, lemma 1).
    """
    x = x * x.shape[-1] ** -0.25
    return x @ rows_MK.T - x.square().sum(-1, keepdim=True) / 2


def orthogonal_rows(rows: int, width: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian rows that are orthogonal within each block of ``width`` rows, (rows, width), float64.

    Directions are uniform and lengths are those of independent Gaussian vectors, so each row alone is a
    standard Gaussian and estimates stay unbiased.
    """
    blocks = []
    for _ in range(-(-rows // width)):
        q, r = torch.linalg.qr(_gaussian(width, width, generator))
        # QR chooses the signs of r's diagonal; undoing them makes q uniform (Mezzadri 2007).
        blocks.append((q * r.diagonal().sign()).T)
    directions: Tensor = torch.cat(blocks)[:rows]
    lengths: Tensor = _gaussian(rows, width, generator).norm(dim=-1, keepdim=True)
    return directions * lengths


def _gaussian(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, device="cpu", generator=generator)
