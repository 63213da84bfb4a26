"""Whole layers for inference, with the fewest calls of torch: about 9 for each of BERT's layers.

What depends on the batch alone is prepared before the first layer. In a layer, residuals are added and gates
multiplied inside the linear products, and queries, keys and values are views of one product.

Axes: E features of the product, or of mixed values; G heads of keys and values, or of the whole product.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from unmask.encoder.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.embedding import EmbeddingLayer
from unmask.encoder.layers.parts import ExpertNetwork, GatedNetwork, PlainNetwork, StackedNetwork
from unmask.encoder.layers.positions import RotaryTable, apply_rotary
from unmask.engines.inference.linear import FusedGatedNetwork, FusedNetwork, PackedLinear, QuantizedLinear
from unmask.kernels.sdpa import SdpaKernel
from unmask.spec import CausalAttention, Rotary
from unmask.text.batch import SequenceLayout

Step = Callable[[Tensor], Tensor]
"""(T, ...) to (T, ...), token by token."""

ResidualStep = Callable[[Tensor, Tensor], Tensor]
"""A token-wise function of the first argument, added to the second."""


def layer_reason(block: nn.Module) -> str | None:
    """Why a layer keeps to its modules, as the end of "... because"; None if it is a `LeanBlock`."""
    if not isinstance(block, Block) or not isinstance(block.attention, SoftmaxMixer):
        return "linear attention is computed by its own module"
    if block.attention.spans is not None:
        return "convolution beside attention is computed by its own module"
    if block.bottleneck is not None or isinstance(block.feedforward, StackedNetwork):
        return "a bottleneck or a stack of networks is computed by its own module"
    if block.gate is not None or block.factor is not None:
        return "a gate by the embedding or a factor is computed by its own module"
    if isinstance(block.feedforward, PlainNetwork) and block.feedforward.spec.groups > 1:
        return "a network in groups is computed by its own module"
    return None


class LeanBlock:
    """A `Block` whose modules were replaced for inference, as a function; it holds their tensors.

    It computes what the block does, in another order of summation and with fewer roundings: in bfloat16 a
    residual or a gate is applied before the product is rounded.
    """

    def __init__(self, block: Block) -> None:
        mixer = block.attention
        assert isinstance(mixer, SoftmaxMixer)
        self.mixer = mixer
        self.heads = mixer.spec.qkv_heads[:2]
        self.norm_first = block.norm_first
        self.attention_norm, self.feedforward_norm = (
            norm_of(block.attention_norm),
            norm_of(block.feedforward_norm),
        )
        self.qkv = _linear(mixer.qkv)
        if block.output_norms:
            self.out = _plus_normed(_linear(mixer.out), block.attention_output_norm)
            self.feedforward = _plus_normed(block.feedforward, block.feedforward_output_norm)
        elif block.output_scale != 1:
            self.out = _plus_scaled(_linear(mixer.out), block.output_scale)
            self.feedforward = _plus_scaled(block.feedforward, block.output_scale)
        else:
            self.out = _plus(mixer.out)
            self.feedforward = _network(block.feedforward)
        if block.attention_sum_norm:
            self.out = _plus_norm_of_sum(self.out, block.attention_output_norm)

    def __call__(self, x_TD: Tensor, attend: "Attend") -> Tensor:
        """Shape (T, D) in and out; ``attend`` is what the plan of its batch gives."""
        norm, between = self.attention_norm, self.feedforward_norm
        read_TD = norm(x_TD) if self.norm_first and norm is not None else x_TD
        x_TD = self.out(attend(self, read_TD, self.qkv(read_TD)), x_TD)
        if self.norm_first:
            return self.feedforward(x_TD if between is None else between(x_TD), x_TD)
        x_TD = x_TD if norm is None else norm(x_TD)
        x_TD = self.feedforward(x_TD, x_TD)
        return x_TD if between is None else between(x_TD)


Attend = Callable[[LeanBlock, Tensor, Tensor], Tensor]
"""A layer, its input (T, D) and its product of queries, keys and values to mixed values (T, H K)."""


def attend_by(plan: AttentionPlan) -> Attend:
    """Attention with everything that the batch decides already decided."""
    single = isinstance(plan.kernel, SdpaKernel) and plan.places_T is None and plan.global_rows is None
    if single and len(plan.prepared.shapes) == 1 and plan.prepared.tokens_T is None:
        return Rectangle(plan)
    return _Planned(plan)


class Rectangle:
    """Sequences of one length, without a term in the scores: one call of torch's attention."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.shape = plan.prepared.shapes[0]
        self.rotation = plan.rotation
        self.causal = isinstance(plan.pattern, CausalAttention)

    def __call__(self, layer: LeanBlock, x_TD: Tensor, y_TE: Tensor) -> Tensor:
        """See `Attend`."""
        mixer = layer.mixer
        sequences, length = self.shape
        heads, shared = layer.heads
        dtype = y_TE.dtype
        if dtype == torch.bfloat16:  # for texts as short as these, torch's bfloat16 takes longer than casts
            y_TE = y_TE.float()
        place(y_TE.view(sequences * length, -1, mixer.spec.head_width), mixer, self.rotation)
        y_BGNK = y_TE.view(sequences, length, heads + 2 * shared, -1).transpose(1, 2)
        q_BHNK, k_BHNK, v_BHNK = torch.split(y_BGNK, [heads, shared, shared], 1)
        if heads != shared:
            k_BHNK, v_BHNK = (x.repeat_interleave(heads // shared, 1) for x in (k_BHNK, v_BHNK))
        o_BHNK = scaled_dot_product_attention(q_BHNK, k_BHNK, v_BHNK, is_causal=self.causal)
        o_TE = o_BHNK.transpose(1, 2).reshape(sequences * length, -1)
        return o_TE if o_TE.dtype == dtype else o_TE.to(dtype)


class _Planned:
    """Any other attention, by the kernel that the plan holds."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan = plan

    def __call__(self, layer: LeanBlock, x_TD: Tensor, y_TE: Tensor) -> Tensor:
        mixer, plan = layer.mixer, self.plan
        y_TGK = y_TE.view(y_TE.shape[0], -1, mixer.spec.head_width)
        place(y_TGK, mixer, plan.rotation)
        q_THK, k_TGK, v_TGK = torch.split(y_TGK, list(mixer.spec.qkv_heads), 1)
        k_THK, v_THK = mixer.for_every_head(k_TGK), mixer.for_every_head(v_TGK)
        o_THK = mixer.mix(q_THK, k_THK, v_THK, plan, mixer.bias_of(plan))
        if mixer.globals is not None and plan.global_rows is not None:
            o_THK = mixer.globals(x_TD, o_THK, plan.global_rows)
        return o_THK.flatten(-2)


def place(y_TGK: Tensor, mixer: SoftmaxMixer, rotation: RotaryTable | None) -> None:
    """Normalize, scale and rotate queries and keys in a product of all heads, (T, H + 2 G, K), and normalize
    values, in place.
    """
    spec = mixer.spec
    if spec.query_key_norm is not None or spec.score_scale is not None:
        q_THK, k_TGK = y_TGK[:, : spec.heads], y_TGK[:, spec.heads : spec.heads + spec.qkv_heads[1]]
        dtype = next(mixer.query_norm.parameters(), y_TGK).dtype
        changed = mixer.normalized(q_THK.to(dtype), k_TGK.to(dtype))
        q_THK.copy_(changed[0])
        k_TGK.copy_(changed[1])
        if spec.query_key_norm is not None and spec.query_key_norm.values:
            v_TGK = y_TGK[:, spec.heads + spec.qkv_heads[1] :]
            v_TGK.copy_(mixer.normalized_values(v_TGK))
    if rotation is None:
        return
    assert isinstance(spec.position, Rotary)
    turning_TGK = y_TGK[:, : spec.heads + spec.qkv_heads[1]]
    cosine, sine = rotation
    half = cosine.shape[-1]
    if spec.position.interleaved or 2 * half != spec.head_width:
        turning_TGK.copy_(apply_rotary(turning_TGK, rotation, spec.position))
        return
    a, b = turning_TGK.chunk(2, -1)
    # In float32, whatever the product is in: the rotation is.
    turned_a = (a * cosine).addcmul_(b, sine, value=-1)
    turned_b = (b * cosine).addcmul_(a, sine)
    a.copy_(turned_a)
    b.copy_(turned_b)


def norm_of(norm: nn.Module) -> Step | None:
    """A norm; None for `nn.Identity`."""
    match norm:
        case nn.LayerNorm(normalized_shape=shape, weight=weight, bias=bias, eps=eps):
            layer_norm, widths = torch.layer_norm, list(shape)
            return lambda x: layer_norm(x, widths, weight, bias, eps)
        case nn.RMSNorm(normalized_shape=shape, weight=weight, eps=least):
            sizes = list(shape)
            return lambda x: rms_norm(x, sizes, weight, least)
        case nn.Identity():
            return None
        case _:
            return norm


def embed(layer: EmbeddingLayer, ids_T: Tensor, segments_T: Tensor, layout: SequenceLayout) -> Tensor:
    """The embedding; a single text's positions are read in one piece."""
    learned = layer.spec.positions
    positions = layer.positions
    if positions is None or learned is None or not learned.added or layout.sequence_count > 1:
        return layer(ids_T, segments_T, layout)  # type: ignore[no-any-return]
    if layer.projection is not None or layer.spec.token_dropout is not None or layout.expansion is not None:
        return layer(ids_T, segments_T, layout)  # type: ignore[no-any-return]
    if learned.left_out is not None and bool((ids_T == learned.left_out).any()):
        return layer(ids_T, segments_T, layout)  # type: ignore[no-any-return]
    x_TD = torch.embedding(layer.words.weight, ids_T)
    if layer.spec.scale != 1:
        x_TD = x_TD.mul_(layer.spec.scale)
    if layer.segments is not None:
        x_TD = x_TD.add_(torch.embedding(layer.segments.weight, segments_T))
    if layer.tasks is not None:
        x_TD = x_TD.add_(layer.tasks.weight[0])
    x_TD = x_TD.add_(positions.weight[learned.offset : learned.offset + x_TD.shape[0]])
    normed_TD: Tensor = layer.norm(x_TD)
    return normed_TD


_NONE: list[Any] = []
_PRODUCT = torch.ops.mkldnn._linear_pointwise.default
_PRODUCT_WITH = torch.ops.mkldnn._linear_pointwise.binary


def _linear(linear: nn.Module) -> Step:
    """A linear layer with its activation."""
    if not isinstance(linear, PackedLinear):
        return linear.forward
    product, weight, bias = _PRODUCT, linear.weight_packed, linear.bias
    operation, algorithm, none = linear.operation, linear.algorithm, _NONE
    return lambda x: product(x, weight, bias, operation, none, algorithm)


def _plus(linear: nn.Module) -> ResidualStep:
    """A linear layer with its residual."""
    if isinstance(linear, QuantizedLinear):
        forward = linear.forward
        return lambda x, residual: forward(x).add_(residual)
    assert isinstance(linear, PackedLinear)
    product, weight, bias = _PRODUCT_WITH, linear.weight_packed, linear.bias
    return lambda x, residual: product(x, residual, weight, bias, "add")


def _plus_normed(step: Step, norm: nn.Module) -> ResidualStep:
    """The norm of a step, with its residual."""
    return lambda x, residual: residual + norm(step(x))


def _plus_scaled(step: Step, factor: float) -> ResidualStep:
    """A step times a factor, with its residual."""
    return lambda x, residual: torch.add(residual, step(x), alpha=factor)


def _plus_norm_of_sum(summed: ResidualStep, norm: nn.Module) -> ResidualStep:
    """The norm of a step with its residual, and the residual once more."""
    return lambda x, residual: residual + norm(summed(x, residual))


def _times(linear: PackedLinear) -> Callable[[Tensor, Tensor], Tensor]:
    """A linear layer whose result is multiplied by a gate."""
    product, weight, bias = _PRODUCT_WITH, linear.weight_packed, linear.bias
    return lambda x, gate: product(x, gate, weight, bias, "mul")


def _network(network: nn.Module) -> ResidualStep:
    """A feed-forward network with its residual."""
    match network:
        case FusedNetwork(inner=inner, outer=outer):
            into, back = _linear(inner), _plus(outer)
            return lambda x, residual: back(into(x), residual)
        case FusedGatedNetwork(activated=activated, linear=linear, outer=outer):
            gate, times, back = _linear(activated), _times(linear), _plus(outer)
            return lambda x, residual: back(times(x, gate(x)), residual)
        case PlainNetwork(inner=inner, outer=outer, activation=activation):
            into, back = _linear(inner), _plus(outer)
            return lambda x, residual: back(activation(into(x)), residual)
        case GatedNetwork(inner=inner, outer=outer, activation=activation):
            into, back = _linear(inner), _plus(outer)

            def gated(x: Tensor, residual: Tensor) -> Tensor:
                a_TF, b_TF = into(x).chunk(2, dim=-1)
                return back(activation(a_TF).mul_(b_TF), residual)

            return gated
        case ExpertNetwork():
            return lambda x, residual: residual + network(x)
        case _:
            raise AssertionError(type(network).__name__)
