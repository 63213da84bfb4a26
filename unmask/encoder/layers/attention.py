"""The softmax mixer: projections around the chosen attention kernel.

Axes: G heads of keys and values, where they are fewer than those of queries; A places that attention reads; I
features that the output projection reads.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.hooks import Hook, HookPoint, hooked
from unmask.encoder.layers.global_attention import GlobalAttention, GlobalRows
from unmask.encoder.layers.parts import SetApart, SpanConvolutions, build_norm
from unmask.encoder.layers.positions import (
    DistanceProjections,
    RelativeBiasTerms,
    RotaryTable,
    apply_rotary,
    rows_read,
)
from unmask.errors import KernelError
from unmask.kernels import AttentionBias, AttentionRequest, DistanceBias, Kernel, choose
from unmask.spec import (
    AttentionPattern,
    Disentangled,
    NoPosition,
    Norm,
    RelativePositionBias,
    RMSNorm,
    Rotary,
    SlidingWindowGlobal,
    SoftmaxAttention,
    SpanConvolution,
)
from unmask.spec.attention import AttentionPosition, simplify
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel for one attention pattern and position, with its plan for this batch."""

    kernel: Kernel
    prepared: Any
    rotation: RotaryTable | None
    """The rotation of each token, for rotary layers."""
    pattern: AttentionPattern
    """The layer's pattern, or a simpler one that is equivalent on this batch."""
    global_rows: GlobalRows | None = None
    """Rows of global tokens, if they have separate projections."""
    table_PD: Tensor | None = None
    """The distance table, for disentangled layers and those with relative position biases."""
    rows_read: slice | None = None
    """The rows of the table that this batch can use."""
    tokens_A: Tensor | None = None
    """The packed token at each place that attention reads, if sequences share tokens; see `Expansion`."""
    places_T: Tensor | None = None
    """The place whose output each packed token takes, if sequences share tokens."""
    apart: SetApart | None = None
    """Where tokens stand for the convolutions beside attention, for layers that have them."""


def attended_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a layer's projections of ``x``: its own dtype, or that of autocast if enabled."""
    kind = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def record_distances(bias: DistanceBias, layer: int, hook: Hook) -> None:
    """Pass the layer's projections of the distance table to a hook."""
    for place, table_PHK in (
        (HookPoint.DISTANCE_KEY, bias.keys_PHK),
        (HookPoint.DISTANCE_QUERY, bias.queries_PHK),
    ):
        if table_PHK is not None:
            hook(place, layer, table_PHK)


class SharedProjection(nn.Module):
    """Queries and keys of a map and a norm that both share, values of the input (Sun et al. 2020).

    Args:
        spec: the attention, with all three biases or none.
        width: of what it reads.
        narrow: the width that queries and keys read.
        norm: after the shared map.
    """

    def __init__(self, spec: SoftmaxAttention, width: int, narrow: int, norm: Norm) -> None:
        super().__init__()
        queries, keys, values = spec.qkv_widths
        self.shared, self.shared_norm = nn.Linear(width, narrow), build_norm(norm, narrow)
        self.queries_keys = nn.Linear(narrow, queries + keys, bias=spec.query_bias)
        self.values = nn.Linear(width, values, bias=spec.value_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values side by side, from (..., D)."""
        return torch.cat((self.queries_keys(self.shared_norm(self.shared(x))), self.values(x)), dim=-1)


class SoftmaxMixer(nn.Module):
    """Multi-head attention over packed tokens (Vaswani et al. 2017); the kernel is chosen per batch.

    Query, key and value projections are one matrix, their rows in that order. Their biases are
    one vector if all three have a bias; otherwise each is a separate tensor. Where keys and values have fewer
    heads than queries, each is repeated for the heads that share it, so kernels and hooks see H of each.
    Kernels know nothing of attention sinks, which scale what they mix by a share of its log-sum-exp.

    Args:
        spec: the attention.
        width: of what it reads.
        outputs: of what it adds; None: as wide.
        shared_norm: queries and keys read another map of ``outputs`` features, see `SharedProjection`, with
            this norm; None: they read what values read.
    """

    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    sinks: Tensor | None
    training_kernel: Kernel | None = None
    """A kernel that comes before all others in training steps for which it is preferred."""

    def __init__(
        self,
        spec: SoftmaxAttention,
        width: int,
        outputs: int | None = None,
        *,
        shared_norm: Norm | None = None,
    ) -> None:
        super().__init__()
        spec.check_is_built()
        outputs = width if outputs is None else outputs
        self.spec = spec
        self.bias = AttentionBias()
        self.distances: DistanceProjections | RelativeBiasTerms | None = None
        if isinstance(spec.position, Disentangled):
            self.distances = DistanceProjections(spec, spec.position, width)
        elif isinstance(spec.position, RelativePositionBias):
            self.distances = RelativeBiasTerms(spec.position)
        else:
            self.bias = AttentionBias.of(spec.position, spec.heads)
        biased = {"query_bias": spec.query_bias, "key_bias": spec.key_bias, "value_bias": spec.value_bias}
        every = all(biased.values())
        self.qkv: nn.Linear | SharedProjection = (
            nn.Linear(width, sum(spec.qkv_widths), bias=every)
            if shared_norm is None
            else SharedProjection(spec, width, outputs, shared_norm)
        )
        for (name, has), features in zip(biased.items(), spec.qkv_widths, strict=True):
            bias = nn.Parameter(torch.zeros(features)) if has and not every else None
            self.register_parameter(name, bias)
        self.register_parameter("sinks", nn.Parameter(torch.zeros(spec.heads)) if spec.sinks else None)
        self.out = nn.Linear(spec.mixed_width, outputs, bias=spec.out_bias)
        self.spans: SpanConvolutions | None = None
        if spec.span_convolution is not None:
            self.spans = SpanConvolutions(spec, spec.span_convolution.kernel, width)
        normed, together = spec.query_key_norm, spec.qkv_heads[:2]
        if normed is None or normed.over == "head":
            together = 1, 1
        self.query_norm, self.key_norm = (
            build_norm(None if normed is None else normed.norm, heads * spec.head_width) for heads in together
        )
        self.globals: GlobalAttention | None = None
        if isinstance(spec.pattern, SlidingWindowGlobal) and spec.pattern.own_projections:
            self.globals = GlobalAttention(spec, width)

    def plan(
        self,
        layout: SequenceLayout,
        x_TD: Tensor,
        kernel: str | None,
        plans: dict[Any, Any],
    ) -> AttentionPlan:
        """The plan of this layer, shared in ``plans`` with every layer of equal pattern and position."""
        spec, expansion = self.spec, layout.expansion
        read_layout = layout if expansion is None else expansion.layout
        pattern, unattended = simplify(spec.pattern, read_layout), layout.unattended_T is not None
        if unattended and self.globals is not None:
            raise KernelError(
                "global tokens with projections of their own attend to every token, and some tokens are not "
                "to be attended to; use another checkpoint"
            )
        key: tuple[AttentionPattern, AttentionPosition, int, bool, bool, SpanConvolution | None, bool] = (
            pattern,
            spec.position,
            spec.head_width,
            spec.dropout > 0,
            self.globals is not None,
            spec.span_convolution,
            spec.sinks,
        )
        if key not in plans:
            request = AttentionRequest(
                device=x_TD.device.type,
                dtype=str(attended_dtype(x_TD)).removeprefix("torch."),
                pattern=pattern,
                position=NoPosition() if isinstance(spec.position, Rotary) else spec.position,
                head_width=spec.head_width,
                longest=int(read_layout.lengths.max()),
                gradients=torch.is_grad_enabled()
                and (x_TD.requires_grad or any(p.requires_grad for p in self.parameters())),
                dropout=self.training and spec.dropout > 0,
                log_sum_exp=spec.sinks,
                unattended=unattended,
            )
            chosen = self._training_kernel(request) if kernel is None else None
            chosen = chosen or choose(request, kernel)
            rotation = None
            if isinstance(spec.position, Rotary):
                rotation = RotaryTable.of(
                    layout.positions_T, spec.position, spec.head_width, x_TD.dtype, x_TD.device
                )
            prepared = chosen.plan(read_layout, pattern, x_TD.device)
            global_rows = None if self.globals is None else GlobalRows.of(layout, x_TD.device)
            rows = (
                rows_read(spec.position, request.longest) if isinstance(spec.position, Disentangled) else None
            )
            tokens_A, places_T = None, None
            if expansion is not None:
                tokens_A = torch.from_numpy(expansion.tokens_A).to(x_TD.device)
                places_T = torch.from_numpy(expansion.places_T).to(x_TD.device)
            plans[key] = AttentionPlan(
                chosen,
                prepared,
                rotation,
                pattern,
                global_rows,
                rows_read=rows,
                tokens_A=tokens_A,
                places_T=places_T,
                apart=None
                if spec.span_convolution is None
                else SetApart.of(layout, spec.span_convolution.kernel // 2, x_TD.device),
            )
        return plans[key]  # type: ignore[no-any-return]

    def _training_kernel(self, request: AttentionRequest) -> Kernel | None:
        """The kernel for training steps, if there is any that can compute this and is faster."""
        kernel = self.training_kernel
        if kernel is None or not request.gradients or not kernel.capability.is_preferred(request):
            return None
        return kernel if kernel.capability.refusal(request) is None else None

    def project(self, x_TD: Tensor, rotation: RotaryTable | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (T, H, K) each, as scores and mixtures read them; token-wise.

        Queries and keys are normalized, scaled and rotated where the spec says so.
        """
        spec = self.spec
        heads_THK = self.qkv(x_TD).unflatten(-1, (sum(spec.qkv_heads), spec.head_width))
        parts = torch.split(heads_THK, list(spec.qkv_heads), dim=-2)
        q_THK, k_TGK, v_TGK = (
            part if bias is None else part + bias.view(-1, spec.head_width)
            for part, bias in zip(parts, (self.query_bias, self.key_bias, self.value_bias), strict=True)
        )
        q_THK, k_TGK = self.normalized(q_THK, k_TGK)
        v_TGK = self.normalized_values(v_TGK)
        if isinstance(spec.position, Rotary) and rotation is not None:
            q_THK = apply_rotary(q_THK, rotation, spec.position)
            k_TGK = apply_rotary(k_TGK, rotation, spec.position)
        return q_THK, self.for_every_head(k_TGK), self.for_every_head(v_TGK)

    def normalized(self, q_THK: Tensor, k_TGK: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys after their norms, and queries times `SoftmaxAttention.query_factor`."""
        spec = self.spec
        if spec.query_key_norm is not None and spec.query_key_norm.over == "all":
            q_THK = self.query_norm(q_THK.flatten(-2)).unflatten(-1, q_THK.shape[-2:])
            k_TGK = self.key_norm(k_TGK.flatten(-2)).unflatten(-1, k_TGK.shape[-2:])
        else:
            q_THK, k_TGK = self.query_norm(q_THK), self.key_norm(k_TGK)
        return (q_THK if spec.score_scale is None else q_THK * spec.query_factor), k_TGK

    def normalized_values(self, v_TGK: Tensor) -> Tensor:
        """Values, or values of unit root mean square, see `QueryKeyNorm.values`."""
        normed = self.spec.query_key_norm
        if normed is None or not normed.values:
            return v_TGK
        assert isinstance(normed.norm, RMSNorm)
        return functional.rms_norm(v_TGK, (self.spec.head_width,), eps=normed.norm.eps)

    def for_every_head(self, x_TGK: Tensor) -> Tensor:
        """Keys or values (T, G, K) as (T, H, K): those of each head repeated for the heads that share it."""
        shared_by = self.spec.heads // x_TGK.shape[-2]
        return x_TGK if shared_by == 1 else x_TGK.repeat_interleave(shared_by, dim=-2)

    def bias_of(self, plan: AttentionPlan) -> AttentionBias:
        """The attention bias of this layer for a batch."""
        if self.distances is None:
            return self.with_sinks(self.bias)
        assert plan.table_PD is not None
        bias: AttentionBias = self.distances(plan.table_PD, self.qkv, plan.rows_read)
        return self.with_sinks(bias)

    def with_sinks(self, bias: AttentionBias) -> AttentionBias:
        """The attention bias with this layer's attention sinks, if it has any."""
        return bias if self.sinks is None else replace(bias, sinks_H=self.sinks)

    def mix(
        self, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, plan: AttentionPlan, bias: AttentionBias
    ) -> Tensor:
        """Values mixed by attention, (T, H, K), before the output projection."""
        dropout = self.spec.dropout if self.training else 0.0
        kind, dtype = q_THK.device.type, attended_dtype(q_THK)
        # A kernel chooses its own precision; autocast would change some of its products.
        apart = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        q_THK, k_THK, v_THK = q_THK.to(dtype), k_THK.to(dtype), v_THK.to(dtype)
        if plan.tokens_A is not None:
            q_THK, k_THK, v_THK = (x.index_select(0, plan.tokens_A) for x in (q_THK, k_THK, v_THK))
        with apart:
            o_THK, lse_TH = plan.kernel.attend(
                q_THK,
                k_THK,
                v_THK,
                plan.prepared,
                pattern=plan.pattern,
                bias=replace(bias, sinks_H=None),
                dropout=dropout,
                log_sum_exp=bias.sinks_H is not None,
            )
            if lse_TH is not None and bias.sinks_H is not None:
                o_THK = (o_THK * bias.kept_by_keys(lse_TH)[..., None]).to(o_THK.dtype)
        return o_THK if plan.places_T is None else o_THK.index_select(0, plan.places_T)

    def forward(self, x_TD: Tensor, plan: AttentionPlan, layer: int, hook: Hook | None) -> Tensor:
        """Shape (T, D) in and out."""
        places = (HookPoint.QUERY, HookPoint.KEY, HookPoint.VALUE)
        q_THK, k_THK, v_THK = (
            hooked(hook, place, layer, x_THK)
            for place, x_THK in zip(places, self.project(x_TD, plan.rotation), strict=True)
        )
        bias = self.bias_of(plan)
        o_THK = self.mix(q_THK, k_THK, v_THK, plan, bias)
        if self.globals is not None and plan.global_rows is not None:
            o_THK = self.globals(x_TD, o_THK, plan.global_rows)
            if hook is not None:
                self.globals.record(x_TD, layer, hook)
        if hook is not None:
            o_THK = hooked(hook, HookPoint.MIXED, layer, o_THK)
            if bias.distances is not None:
                record_distances(bias.distances, layer, hook)
            if bias.relative is not None:
                hook(HookPoint.RELATIVE_BIAS, layer, bias.relative.table_PH)
        return hooked(hook, HookPoint.ATTENTION, layer, self.out(self.beside(x_TD, q_THK, o_THK, plan)))

    def beside(self, x_TD: Tensor, q_THK: Tensor, o_THK: Tensor, plan: AttentionPlan) -> Tensor:
        """What the output projection reads: values mixed by attention, and by convolutions beside it."""
        o_TI = o_THK.flatten(-2)
        if self.spans is None:
            return o_TI
        assert plan.apart is not None
        return torch.cat((o_TI, self.spans(x_TD, q_THK, plan.apart).flatten(-2).to(o_TI.dtype)), dim=-1)
