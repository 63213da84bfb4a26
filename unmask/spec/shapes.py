"""The names and shapes of an encoder's tensors, from its spec alone. Free of torch."""

from collections.abc import Iterator
from math import prod
from typing import assert_never

from unmask.spec import (
    Disentangled,
    DoubleTransform,
    Embedding,
    EncoderSpec,
    ExpertFeedForward,
    FeedForward,
    GatedFeedForward,
    Head,
    Layer,
    LayerNorm,
    LinearAttention,
    MaskedLM,
    Mixer,
    NoNorm,
    Norm,
    ResidualTransform,
    SlidingWindowGlobal,
    SoftmaxAttention,
    StackedFeedForward,
    Transform,
    role_of,
)

Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]

UNTRAINED = (".attention.projection", ".factor")
"""Name suffixes of tensors that are saved but not trained: random features (FAVOR+) and factors of layers."""


def tensor_shapes(spec: EncoderSpec) -> dict[str, Shape]:
    """Our name of every tensor of an encoder and its shape, in the order of the encoder's ``state_dict``.

    Raises:
        UnknownArchitecture: a layer's attention is an unsupported combination of parts.
    """
    return dict(_encoder(spec))


def parameter_count(spec: EncoderSpec) -> int:
    """The number of trained parameters of an encoder, shared ones counted once."""
    shapes = tensor_shapes(spec).items()
    return sum(prod(shape) for name, shape in shapes if not name.endswith(UNTRAINED))


def _encoder(spec: EncoderSpec) -> Shapes:
    width = spec.width
    yield from _under("embedding", _embedding(spec.embedding, width))
    if spec.distance_table is not None:
        yield "distances.table.weight", spec.distance_table
    if isinstance(spec.distances, Disentangled):
        yield from _under("distances.norm", _norm(spec.distances.table_norm, width))
    if spec.convolution is not None:
        groups, kernel = spec.convolution.groups, spec.convolution.kernel
        yield "convolution.inner.weight", (width, width // groups, kernel)
        yield "convolution.inner.bias", (width,)
        yield from _under("convolution.norm", _norm(spec.convolution.norm, width))
    if spec.gate is not None:
        gated = spec.gate.width
        yield from _under("layer_inputs.map", _linear(width, len(spec.layers) * gated, bias=False))
        yield from _under("layer_inputs.norm", _norm(spec.layers[0].norm, gated))
    used = spec.weights_of_layer
    for weights in range(max(used, default=-1) + 1):
        yield from _under(f"layers.{weights}", _layer(spec.layers[used.index(weights)], width))
    yield from _under("final_norm", _norm(spec.final_norm, width))
    if spec.output_width is not None:
        yield from _under("final_map", _linear(width, spec.output_width, bias=False))
    if spec.pooler is not None:
        yield from _under("pooler.dense", _linear(spec.state_width, spec.state_width))
    for head in spec.heads:
        yield from _under(f"heads.{role_of(head)}", _head(head, spec))


def _under(prefix: str, tensors: Shapes) -> Shapes:
    return ((f"{prefix}.{name}", shape) for name, shape in tensors)


def _linear(inputs: int, outputs: int, bias: bool = True) -> Shapes:
    yield "weight", (outputs, inputs)
    if bias:
        yield "bias", (outputs,)


def _norm(norm: Norm | None, width: int) -> Shapes:
    if norm is not None:
        yield "weight", (width,)
    if isinstance(norm, NoNorm) or (isinstance(norm, LayerNorm) and norm.bias):
        yield "bias", (width,)


def _embedding(spec: Embedding, width: int) -> Shapes:
    yield "words.weight", (spec.vocabulary, spec.width)
    if spec.positions is not None:
        yield "positions.weight", (spec.positions.rows, spec.added_width(width))
    if spec.segments:
        yield "segments.weight", (spec.segments, spec.added_width(width))
    if spec.tasks:
        yield "tasks.weight", (spec.tasks, spec.added_width(width))
    normalized = spec.width
    if spec.projection is not None:
        yield from _under(
            "projection", _linear(spec.projection.tokens * spec.width, width, spec.projection.bias)
        )
        normalized = width if spec.projection.before_norm else spec.width
    yield from _under("norm", _norm(spec.norm, normalized))


def _layer(spec: Layer, outer: int) -> Shapes:
    width = spec.inner_width(outer)
    if spec.factor:
        yield "factor", (1,)
    if spec.bottleneck is not None:
        for name, sizes in (("inner", (outer, width)), ("outer", (width, outer))):
            yield from _under(f"bottleneck.{name}", _linear(*sizes))
            yield from _under(f"bottleneck.{name}_norm", _norm(spec.norm, sizes[1]))
    yield from _under("attention", _mixer(spec, spec.attention_width(outer), width))
    yield from _under("attention_norm", _norm(spec.norm if spec.attention_norm else None, width))
    yield from _under("feedforward", _feedforward(spec.feedforward, width))
    yield from _under("feedforward_norm", _norm(spec.norm, width))
    if spec.output_norms or spec.attention_sum_norm:
        yield from _under("attention_output_norm", _norm(spec.norm, width))
    if spec.output_norms:
        yield from _under("feedforward_output_norm", _norm(spec.norm, width))
    if spec.gate is not None:
        yield from _under("gate.inner", _linear(width, spec.gate.width, bias=False))
        yield from _under("gate.outer", _linear(spec.gate.width, width, bias=False))
        yield from _under("gate.norm", _norm(spec.norm, width))


def _mixer(layer: Layer, width: int, outputs: int) -> Shapes:
    spec: Mixer = layer.mixer
    match spec:
        case SoftmaxAttention():
            shared = layer.bottleneck is not None and layer.bottleneck.attention == "shared"
            yield from _softmax(spec, width, outputs, layer.norm if shared else None)
        case LinearAttention(heads=heads, head_width=head_width):
            if spec.random_features:
                yield "projection", (spec.random_features, head_width)
            yield from _under("qkv", _linear(width, 3 * heads * head_width, spec.bias))
            yield from _under("out", _linear(heads * head_width, width, spec.bias))
        case _:
            assert_never(spec)


def _softmax(spec: SoftmaxAttention, width: int, outputs: int, shared_norm: Norm | None) -> Shapes:
    spec.check_is_built()
    inner = spec.heads * spec.head_width
    biased = {"query_bias": spec.query_bias, "key_bias": spec.key_bias, "value_bias": spec.value_bias}
    if not all(biased.values()):
        named = zip(biased.items(), spec.qkv_widths, strict=True)
        yield from ((name, (features,)) for (name, has), features in named if has)
    if spec.sinks:
        yield "sinks", (spec.heads,)
    if isinstance(spec.position, Disentangled) and not spec.position.shared_projections:
        if spec.position.content_to_position:
            yield from _under("distances.key", _linear(width, inner, spec.position.position_key_bias))
        if spec.position.position_to_content:
            yield from _under("distances.query", _linear(width, inner))
    if shared_norm is None:
        yield from _under("qkv", _linear(width, sum(spec.qkv_widths), all(biased.values())))
    else:
        queries, keys, values = spec.qkv_widths
        yield from _under("qkv.shared", _linear(width, outputs))
        yield from _under("qkv.shared_norm", _norm(shared_norm, outputs))
        yield from _under("qkv.queries_keys", _linear(outputs, queries + keys, all(biased.values())))
        yield from _under("qkv.values", _linear(width, values, all(biased.values())))
    yield from _under("out", _linear(spec.mixed_width, outputs, spec.out_bias))
    if spec.span_convolution is not None:
        yield from _under("spans", _spans(spec, spec.span_convolution.kernel, width))
    if spec.query_key_norm is not None:
        norm, over_head = spec.query_key_norm.norm, spec.query_key_norm.over == "head"
        for name, features in zip(("query_norm", "key_norm"), spec.qkv_widths, strict=False):
            yield from _under(name, _norm(norm, spec.head_width if over_head else features))
    if isinstance(spec.pattern, SlidingWindowGlobal) and spec.pattern.own_projections:
        yield from _under("globals.qkv", _linear(width, 3 * inner, spec.query_bias))


def _spans(spec: SoftmaxAttention, kernel: int, width: int) -> Shapes:
    inner = spec.heads * spec.head_width
    yield "bias", (inner, 1)
    yield "depthwise.weight", (width, 1, kernel)
    yield "pointwise.weight", (inner, width, 1)
    yield from _under("weights", _linear(inner, spec.heads * kernel))
    yield from _under("values", _linear(width, inner))


def _feedforward(spec: FeedForward, width: int) -> Shapes:
    if isinstance(spec, StackedFeedForward):
        for number in range(spec.count - 1):
            yield from _under(f"earlier.{number}", _feedforward(spec.network, width))
            yield from _under(f"earlier.{number}.norm", _norm(spec.norm, width))
        yield from _feedforward(spec.network, width)
    elif isinstance(spec, ExpertFeedForward):
        yield from _under("router", _linear(width, spec.experts, spec.router_bias))
        yield "experts.inner", (spec.experts * spec.inner_width, width)
        yield "experts.outer", (spec.experts * spec.width, width)
        if spec.expert_biases:
            yield "experts.inner_bias", (spec.experts * spec.inner_width,)
            yield "experts.outer_bias", (spec.experts * width,)
        if spec.bias:
            yield "experts.bias", (width,)
    elif isinstance(spec, GatedFeedForward):
        yield from _under("inner", _linear(width, 2 * spec.width, spec.in_bias))
        yield from _under("outer", _linear(spec.width, width, spec.out_bias))
    elif spec.groups > 1:
        for name, inputs, outputs in (("inner", width, spec.width), ("outer", spec.width, width)):
            yield f"{name}.weight", (spec.groups, inputs // spec.groups, outputs // spec.groups)
            if spec.bias:
                yield f"{name}.bias", (outputs,)
    else:
        yield from _under("inner", _linear(width, spec.width, spec.bias))
        yield from _under("outer", _linear(spec.width, width, spec.bias))


def _head(head: Head, spec: EncoderSpec) -> Shapes:
    transform, width = head.transform, spec.state_width
    after = transform.width if isinstance(transform, Transform | DoubleTransform) else width
    if isinstance(head, MaskedLM):
        vocabulary = spec.embedding.vocabulary
        if head.bias:
            yield "bias", (vocabulary,)
        yield from _under("transform", _transform(transform, width))
        if not head.tied:
            yield from _under("decoder", _linear(after - head.beside, vocabulary, head.own_bias))
        if head.beside:
            yield from _under("beside", _linear(vocabulary, head.beside, bias=False))
    else:
        yield from _under("norm", _norm(head.input_norm, width))
        yield from _under("transform", _transform(transform, width))
        yield from _under("out", _linear(after, head.classes, head.bias))


def _transform(spec: Transform | DoubleTransform | ResidualTransform | None, width: int) -> Shapes:
    match spec:
        case Transform():
            yield from _under("dense", _linear(width, spec.width, spec.bias))
            yield from _under("norm", _norm(spec.norm, spec.width))
        case DoubleTransform():
            yield from _under("inner", _linear(width, spec.inner, spec.bias))
            yield from _under("outer", _linear(spec.inner, spec.width, spec.bias))
        case ResidualTransform():
            yield from _under("inner", _linear(width, spec.width))
            yield from _under("outer", _linear(spec.width, width))
            yield from _under("norm", _norm(spec.norm, width))
        case None:
            pass
        case _:
            assert_never(spec)
