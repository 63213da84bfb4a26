"""One layer of the encoder: attention and feed-forward, each with its residual and norm; initialization."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.hooks import Hook, HookPoint, hooked
from unmask.encoder.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.encoder.layers.linear_attention import LinearMixer, LinearPlan
from unmask.encoder.layers.lora import weight_of
from unmask.encoder.layers.parts import (
    ACTIVATIONS,
    Experts,
    GroupedLinear,
    StackedNetwork,
    build_feedforward,
    build_norm,
)
from unmask.errors import InvalidRequest
from unmask.kernels.dropout import Dropout
from unmask.spec import EmbeddingGate, EncoderSpec, Layer, LinearAttention, SoftmaxAttention
from unmask.spec.encoder import Initialization

Plan = AttentionPlan | LinearPlan
"""A mixer's preparation for a batch, made once and shared by layers with equal needs."""


def build_mixer(spec: Layer, width: int) -> SoftmaxMixer | LinearMixer:
    """The mixer of the layer that ``spec`` describes, in an encoder of this width."""
    match spec.mixer:
        case SoftmaxAttention():
            shared = spec.bottleneck is not None and spec.bottleneck.attention == "shared"
            return SoftmaxMixer(
                spec.mixer,
                spec.attention_width(width),
                spec.inner_width(width),
                shared_norm=spec.norm if shared else None,
            )
        case LinearAttention():
            return LinearMixer(spec.mixer, width)
        case _:
            assert_never(spec.mixer)


class BottleneckMaps(nn.Module):
    """The maps into the narrow states of a layer and back, see `Bottleneck`."""

    def __init__(self, spec: Layer, width: int) -> None:
        super().__init__()
        narrow = spec.inner_width(width)
        self.inner, self.inner_norm = nn.Linear(width, narrow), build_norm(spec.norm, narrow)
        self.outer, self.outer_norm = nn.Linear(narrow, width), build_norm(spec.norm, width)
        self.dropout = Dropout(spec.dropout)

    def into(self, x: Tensor) -> Tensor:
        """The narrow states of a layer's input, (..., D) to (..., width)."""
        y: Tensor = self.inner_norm(self.inner(x))
        return y

    def back(self, y: Tensor, x: Tensor) -> Tensor:
        """The layer's output from its last narrow states and its input, (..., D)."""
        out: Tensor = self.outer_norm(x + self.dropout(self.outer(y)))
        return out


class LayerInputs(nn.Module):
    """What each layer reads of the embedding, see `EmbeddingGate`."""

    def __init__(self, gate: EmbeddingGate, spec: EncoderSpec) -> None:
        super().__init__()
        self.width, self.factor = gate.width, spec.width**-0.5
        self.map = nn.Linear(spec.width, len(spec.layers) * gate.width, bias=False)
        self.norm = build_norm(spec.layers[0].norm, gate.width)

    def forward(self, embedded: Tensor, layer: int) -> Tensor:
        """That of one layer, from the input of the first: (..., D) to (..., P)."""
        rows = weight_of(self.map)[layer * self.width : (layer + 1) * self.width]
        read: Tensor = self.norm(functional.linear(embedded, rows) * self.factor)
        return read


class GateByEmbedding(nn.Module):
    """The part of a layer after its feed-forward network, see `EmbeddingGate`."""

    def __init__(self, spec: Layer, gate: EmbeddingGate, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[gate.activation]
        self.inner = nn.Linear(width, gate.width, bias=False)
        self.outer = nn.Linear(gate.width, width, bias=False)
        self.norm = build_norm(spec.norm, width)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        """What is added to states (..., D), from these and what `LayerInputs` gives, (..., P)."""
        added: Tensor = self.norm(self.outer(self.activation(self.inner(x)) * read))
        return added


class Block(nn.Module):
    """One layer, in either residual order.

    ::

        post-norm  x ─┬─ attention ─ + ─ norm ─┬─ feed-forward ─ + ─ norm ─ y
                      └──────────────┘         └─────────────────┘
        pre-norm   x ─┬─ norm ─ attention ─ + ─┬─ norm ─ feed-forward ─ + ─ y
                      └─────────────────────┘  └────────────────────────┘

    With output norms, pre-norm layers also normalize what attention and feed-forward add; with an output
    scale they multiply it. With a bottleneck, a post-norm layer maps its input to narrow states, which its
    parts add to, and adds what it maps back to its input; N features are those of the narrow states, or D.
    A gate by the embedding is a third part of a pre-norm layer, which reads P features of the embedding; a
    factor multiplies the output.
    """

    fused_add_norm: Callable[[Tensor, Tensor, nn.Module, float], Tensor | None] | None = None
    """What computes `normalized_sum` in training steps, for a rate of dropout, or returns None."""

    bottleneck: BottleneckMaps | None
    gate: GateByEmbedding | None
    factor: Tensor | None

    def __init__(self, spec: Layer, width: int) -> None:
        super().__init__()
        self.norm_first = spec.norm_first
        self.attends_narrow = spec.bottleneck is not None and spec.bottleneck.attention == "narrow"
        self.register_module("bottleneck", BottleneckMaps(spec, width) if spec.bottleneck else None)
        self.output_norms = spec.output_norms
        self.output_scale = spec.output_scale
        self.attention_sum_norm = spec.attention_sum_norm
        self.attention = build_mixer(spec, width)
        width = spec.inner_width(width)
        self.attention_norm = build_norm(spec.norm if spec.attention_norm else None, width)
        self.feedforward = build_feedforward(spec.feedforward, width)
        self.feedforward_norm = build_norm(spec.norm, width)
        after = spec.norm if spec.output_norms else None
        self.attention_output_norm = build_norm(spec.norm if spec.attention_sum_norm else after, width)
        self.feedforward_output_norm = build_norm(after, width)
        self.dropout = Dropout(0.0 if spec.bottleneck else spec.dropout)
        self.register_module("gate", GateByEmbedding(spec, spec.gate, width) if spec.gate else None)
        self.register_buffer("factor", torch.ones(1) if spec.factor else None)

    def forward(
        self, x_TD: Tensor, plan: Plan, layer: int, hook: Hook | None, read_TP: Tensor | None = None
    ) -> Tensor:
        """Shape (T, D) in and out; ``read_TP``: what a gate reads of the embedding."""
        mixed_TD = self.attention(self.read_by_attention(x_TD), plan, layer, hook)
        if hook is None or "after_attention" in self.__dict__:  # compiled, as one graph without hooks
            return self.after_attention(x_TD, mixed_TD, read=read_TP)
        replaced = partial(hooked, hook, HookPoint.FEEDFORWARD, layer)
        return self.after_attention(x_TD, mixed_TD, replaced, read_TP)

    def read_by_attention(self, x: Tensor) -> Tensor:
        """What attention reads of the layer's input, (..., D), or (..., N) of narrow states."""
        if self.attends_narrow:
            return self.narrowed(x)
        read: Tensor = self.attention_norm(x) if self.norm_first else x
        return read

    def narrowed(self, x: Tensor) -> Tensor:
        """What the parts of the layer add to, from its input: (..., D) to (..., N)."""
        return x if self.bottleneck is None else self.bottleneck.into(x)

    def widened(self, y: Tensor, x: Tensor) -> Tensor:
        """The layer's output from what its parts have added to, (..., N), and its input, (..., D)."""
        return y if self.bottleneck is None else self.bottleneck.back(y, x)

    def after_attention(
        self,
        x_TD: Tensor,
        mixed_TD: Tensor,
        replaced: Callable[[Tensor], Tensor] | None = None,
        read: Tensor | None = None,
    ) -> Tensor:
        """The layer's output from its input, the attention output and what a gate reads; token-wise.

        ``replaced`` is given the feed-forward output and returns what goes on in its place.
        """
        if self.norm_first:
            x_TD = x_TD + self.scaled(self.dropout(self.attention_output_norm(mixed_TD)))
            y_TD = self.feedforward(self.feedforward_norm(x_TD))
            y_TD = y_TD if replaced is None else replaced(y_TD)
            x_TD = x_TD + self.scaled(self.dropout(self.feedforward_output_norm(y_TD)))
            return self.times_factor(x_TD if self.gate is None else x_TD + self.gated(x_TD, read))
        s_TN = self.narrowed(x_TD)
        if self.attention_sum_norm:
            mixed_TD = self.normalized_sum(s_TN, mixed_TD, self.attention_output_norm)
        s_TN = self.normalized_sum(s_TN, mixed_TD, self.attention_norm)
        y_TN = self.feedforward(s_TN)
        y_TN = y_TN if replaced is None else replaced(y_TN)
        return self.widened(self.normalized_sum(s_TN, y_TN, self.feedforward_norm), x_TD)

    def gated(self, x: Tensor, read: Tensor | None) -> Tensor:
        """What the gate adds to states after the feed-forward network, (..., D)."""
        if self.gate is None or read is None:
            raise InvalidRequest("a layer with a gate by the embedding was run without what its gate reads")
        added: Tensor = self.dropout(self.gate(x, read))
        return added

    def times_factor(self, x: Tensor) -> Tensor:
        """The output of the layer, from the sum of its parts."""
        return x if self.factor is None else x * self.factor

    def scaled(self, added_TD: Tensor) -> Tensor:
        """What a part adds, from its output."""
        return added_TD if self.output_scale == 1 else added_TD * self.output_scale

    def normalized_sum(self, x_TD: Tensor, added_TD: Tensor, norm: nn.Module) -> Tensor:
        """``norm(x + dropout(added))``."""
        if self.fused_add_norm is not None:
            trained_TD = self.fused_add_norm(x_TD, added_TD, norm, self.dropout.p if self.training else 0.0)
            if trained_TD is not None:
                return trained_TD
        y_TD: Tensor = norm(x_TD + self.dropout(added_TD))
        return y_TD


CUT = 2.0
"""Number of standard deviations at which ``megatron`` truncates."""


def initialize(encoder: nn.Module, std: float, layers: int, how: Initialization = "normal") -> None:
    """Initialize every weight of an encoder in place, from torch's global generator.

    Args:
        encoder: the module that contains the layers, embedding and heads.
        std: the standard deviation of weights.
        layers: the number of layers that run, counting each layer that shares weights.
        how: see `Initialization`.

    Raises:
        InvalidRequest: there is no such initialization.
    """
    if how not in get_args(Initialization):
        raise InvalidRequest(f"initialization is {how!r}; it can be {', '.join(get_args(Initialization))}")
    outputs = {id(linear) for linear in output_projections(encoder)}
    for module in encoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | GroupedLinear):
            _initialize(module.weight, std, layers, how, id(module) in outputs)
        if isinstance(module, Experts):
            for matrix, out in ((module.inner, False), (module.outer, True)):
                _initialize(matrix, std, layers, how, out)
            for bias in (module.inner_bias, module.outer_bias):
                if bias is not None:
                    nn.init.zeros_(bias)
        if isinstance(module, nn.Linear | nn.Conv1d | Experts | GroupedLinear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _initialize(weight: Tensor, std: float, layers: int, how: Initialization, is_output: bool) -> None:
    if how == "megatron":
        own_std = std / math.sqrt(2 * layers) if is_output else std
        nn.init.trunc_normal_(weight, std=own_std, a=-CUT * own_std, b=CUT * own_std)
    elif how == "zero_out" and is_output:
        nn.init.zeros_(weight)
    else:
        nn.init.normal_(weight, std=std)


def output_projections(encoder: nn.Module) -> Iterator[nn.Linear | GroupedLinear]:
    """The linear layers whose products are added to the residual stream or to narrow states; matrices of
    experts are not among them."""
    for module in encoder.modules():
        if isinstance(module, Block):
            network = module.feedforward
            added = [module.attention.out, getattr(network, "outer", None)]
            if isinstance(network, StackedNetwork):
                added += [earlier.outer for earlier in network.earlier]
            if module.bottleneck is not None:
                added.append(module.bottleneck.outer)
            if module.gate is not None:
                added.append(module.gate.outer)
            for matrix in added:
                if isinstance(matrix, nn.Linear | GroupedLinear):
                    yield matrix
