"""Optimize an encoder for inference by replacing its modules with faster ones of the same interface.

The result runs whole layers, and its modules whenever somebody looks inside.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import Hook
from unmask.encoder.layers.attention import AttentionPlan, SharedProjection, SoftmaxMixer
from unmask.encoder.layers.block import Block, Plan
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.encoder.layers.parts import ExpertNetwork, GatedNetwork, PlainNetwork, StackedNetwork
from unmask.encoder.layers.positions import DistanceProjections
from unmask.engines.inference.lean import (
    Attend,
    LeanBlock,
    Rectangle,
    attend_by,
    embed,
    layer_reason,
    norm_of,
)
from unmask.engines.inference.linear import (
    FusedGatedNetwork,
    FusedNetwork,
    PackedLinear,
    QuantizedLinear,
    unsupported_reason,
)
from unmask.errors import InvalidRequest
from unmask.kernels import AttentionBias, DistanceBias
from unmask.spec import PlainFeedForward
from unmask.text.batch import SequenceLayout

REMEMBERED = 64
"""Single texts of up to so many tokens share one preparation for each length."""

Prepared = dict[int, tuple[Plan, Attend | None]]
"""The plan of each group of layers, by its first layer, and attention by it."""


class InferenceEncoder(Encoder):
    """An `Encoder` whose modules were replaced for inference; its layers run as `LeanBlock`.

    It shares the modules of the encoder that it is made of. With a hook, with gradients, or if only some
    layers run, the modules themselves run.
    """

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(encoder.__dict__)
        blocks = [
            LeanBlock(block) if isinstance(block, Block) and not layer_reason(block) else None
            for block in encoder.layers
        ]
        self._lean = [blocks[weights] for weights in encoder.spec.weights_of_layer]
        first_of: dict[Any, int] = {}
        self._first = [first_of.setdefault(_needs(encoder, layer), layer) for layer in range(len(self._lean))]
        self._firsts = tuple(first_of.values())
        self._final_norm = None if encoder.spec.norm_in_heads else norm_of(encoder.final_norm)
        self._remembered: dict[tuple[int, str | None], Prepared] = {}

    def forward(
        self,
        ids_T: Tensor,
        layout: SequenceLayout,
        segments_T: Tensor | None = None,
        *,
        layers: int | None = None,
        hook: Hook | None = None,
    ) -> Tensor:
        """See `Encoder.forward`."""
        inside = hook is not None or layers is not None
        if inside or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return super().forward(ids_T, layout, segments_T, layers=layers, hook=hook)
        self._check(ids_T, layout)
        segments_T = torch.zeros_like(ids_T) if segments_T is None else segments_T
        return self._run(ids_T, layout, segments_T)

    def _run(self, ids_T: Tensor, layout: SequenceLayout, segments_T: Tensor) -> Tensor:
        embedded_TD = x_TD = embed(self.embedding, ids_T, segments_T, layout)
        prepared, convolution = self._prepared(layout, x_TD), self.convolution
        for layer, (lean, first) in enumerate(zip(self._lean, self._first, strict=True)):
            plan, attend = prepared[first]
            if lean is None or attend is None:
                x_TD = self.block(layer)(x_TD, plan, layer, None, self.read(embedded_TD, layer))
            else:
                x_TD = lean(x_TD, attend)
            if layer == 0 and convolution is not None:
                x_TD = convolution(embedded_TD, x_TD, layout)
        normed_TD = x_TD if self._final_norm is None else self._final_norm(x_TD)
        return normed_TD if self.spec.output_width is None else self.final_map(normed_TD)

    def _prepared(self, layout: SequenceLayout, x_TD: Tensor) -> Prepared:
        """Everything about attention that the batch decides, for each group of layers with equal needs."""
        tokens = layout.token_count
        alone = layout.sequence_count == 1 and tokens <= REMEMBERED and layout.expansion is None
        plain = alone and layout.globals_T is None and layout.unattended_T is None
        known = self._remembered.get((tokens, self.kernel)) if plain else None
        if known is not None:
            return known
        table_PD = None if self.distances is None else self.distances()
        plans: dict[Any, Plan] = {}
        prepared: Prepared = {}
        for first in self._firsts:
            plan = self.plan(self.block(first), layout, x_TD, table_PD, plans)
            prepared[first] = plan, attend_by(plan) if isinstance(plan, AttentionPlan) else None
        if plain and all(isinstance(attend, Rectangle) for _, attend in prepared.values()):
            self._remembered[tokens, self.kernel] = prepared
        return prepared


def _needs(encoder: Encoder, layer: int) -> Any:
    """Layers for which this is equal can share a plan."""
    separate = getattr(encoder.block(layer).attention, "globals", None) is not None
    return encoder.spec.layers[layer].mixer, separate


Pack = Callable[[Tensor, Tensor | None], nn.Module]
"""Makes a linear layer from a weight and its bias."""


def optimize_for_inference(encoder: Encoder, dtype: str) -> Encoder:
    """Pack the linear layers of an encoder's blocks in place; afterwards it can only run inference.

    Weights of all linear layers are packed for oneDNN one layer at a time, so that at most one layer is in
    memory twice; activations are fused into the preceding product; projections of a distance table are
    computed once. With ``int8`` the linear layers compute in 8-bit integers and everything else in bfloat16,
    or in float32 if the processor has no bfloat16.

    Args:
        encoder: in evaluation mode, on a CPU; in float32 for ``int8``.
        dtype: one for which `unsupported_reason` returns None.
    """
    encoder.requires_grad_(False)
    between = torch.bfloat16 if unsupported_reason("bfloat16") is None else torch.float32
    pack: Pack = PackedLinear
    if dtype == "int8":

        def pack(weight_NK: Tensor, bias_N: Tensor | None) -> nn.Module:
            return QuantizedLinear(weight_NK, bias_N, between)

    with torch.no_grad():
        table_PD = None if encoder.distances is None else encoder.distances()
        for block in encoder.layers:
            assert isinstance(block, Block)
            _rewrite_mixer(block.attention, table_PD, pack)
            block.feedforward = _rewrite_network(block.feedforward, pack)
            if block.bottleneck is not None:
                _pack_each(block.bottleneck, ("inner", "outer"), pack)
            if block.gate is not None:
                _pack_each(block.gate, ("inner", "outer"), pack)
    return InferenceEncoder(encoder.to(between) if dtype == "int8" else encoder)


def _rewrite_mixer(mixer: SoftmaxMixer | LinearMixer, table_PD: Tensor | None, pack: Pack) -> None:
    qkv, out = mixer.qkv, mixer.out
    mixer.register_module("out", pack(out.weight, out.bias))
    if isinstance(qkv, SharedProjection):
        _pack_each(qkv, ("shared", "queries_keys", "values"), pack)
        return
    bias: Tensor | None = qkv.bias
    if isinstance(mixer, SoftmaxMixer):
        if isinstance(mixer.distances, DistanceProjections) and table_PD is not None:
            mixer.register_module("distances", PrecomputedDistances(mixer.distances(table_PD, qkv)))
        apart = (mixer.query_bias, mixer.key_bias, mixer.value_bias)
        if any(part is not None for part in apart):
            zeros = torch.split(qkv.weight.new_zeros(qkv.out_features), list(mixer.spec.qkv_widths))
            bias = torch.cat(
                [zero if part is None else part for zero, part in zip(zeros, apart, strict=True)]
            )
            mixer.query_bias = mixer.key_bias = mixer.value_bias = None
    mixer.register_module("qkv", pack(qkv.weight, bias))


def _pack_each(module: nn.Module, names: Iterable[str], pack: Pack) -> None:
    """Pack linear layers of a module, which calls them as before."""
    for name in names:
        linear = module.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        module.register_module(name, pack(linear.weight, linear.bias))


def _rewrite_network(network: nn.Module, pack: Pack) -> nn.Module:
    if isinstance(network, StackedNetwork) and network.spec.network.groups == 1:
        for part in (*network.earlier, network):
            _pack_each(part, ("inner", "outer"), pack)
        return network
    plain = network.spec.network if isinstance(network, StackedNetwork) else network.spec
    in_groups = isinstance(plain, PlainFeedForward) and plain.groups > 1
    if in_groups or isinstance(network, ExpertNetwork):
        if pack is not PackedLinear:
            kind = "a network in groups" if in_groups else "a mixture of experts"
            raise InvalidRequest(
                f"dtype is int8, and {kind} has no products of 8-bit integers; take float32 or bfloat16"
            )
        return network
    assert isinstance(network, PlainNetwork | GatedNetwork)
    inner, activation = network.inner, network.spec.activation
    outer = pack(network.outer.weight, network.outer.bias)
    if pack is not PackedLinear:
        network.register_module("inner", pack(inner.weight, inner.bias))
        network.register_module("outer", outer)
        return network
    if isinstance(network, PlainNetwork):
        return FusedNetwork(PackedLinear(inner.weight, inner.bias, activation), outer)
    return FusedGatedNetwork(network.inner, activation, outer)


class PrecomputedDistances(nn.Module):
    """`DistanceProjections` with fixed weights and table."""

    keys_PHK: Tensor | None
    queries_PHK: Tensor | None

    def __init__(self, bias: AttentionBias) -> None:
        super().__init__()
        assert bias.distances is not None
        self.position = bias.distances.position
        self.register_buffer("keys_PHK", bias.distances.keys_PHK, persistent=False)
        self.register_buffer("queries_PHK", bias.distances.queries_PHK, persistent=False)

    def forward(self, table_PD: Tensor, content: nn.Module, read: slice | None = None) -> AttentionBias:
        """The attention bias of the layer; the arguments are ignored."""
        return AttentionBias(distances=DistanceBias(self.position, self.keys_PHK, self.queries_PHK))
