"""A readable description of a spec, one line per part. Does not import torch."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import assert_never

from unmask.spec import (
    POOLING,
    ROLES,
    Alibi,
    AttentionPattern,
    AttentionPosition,
    BlockSparse,
    CausalAttention,
    CheckpointOutput,
    Classifier,
    Dense,
    Disentangled,
    Embedding,
    EmbeddingGate,
    EncoderSpec,
    ExpertFeedForward,
    FeedForward,
    FullAttention,
    GatedFeedForward,
    Head,
    Layer,
    LayerNorm,
    LinearAttention,
    MaskedLM,
    Mixer,
    MultiVector,
    NoNorm,
    NoPosition,
    Norm,
    OutputLayer,
    PairScore,
    PooledVector,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
    SparseVector,
    StackedFeedForward,
    UnitLength,
    UnknownOutput,
)
from unmask.spec.parts import AttentionInput

ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "relu": "ReLU",
    "silu": "SiLU",
    "tanh": "tanh",
}

GATED = {"gelu": "GeGLU", "gelu_tanh": "GeGLU (tanh)", "relu": "ReGLU", "silu": "SwiGLU"}


def describe_spec(spec: EncoderSpec) -> Iterator[tuple[str, str]]:
    """Each part of an encoder and its description; identical layers are one part."""
    yield "embedding", _embedding(spec.embedding, spec.width)
    alike: dict[str, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        alike.setdefault(_layer(layer), []).append(number)
    for words, numbers in alike.items():
        yield f"layer{'s' if len(numbers) > 1 else ''} {describe_ranges(numbers)}", words
    if spec.sharing is not None:
        yield "shared weights", f"{len(spec.layers)} layers use {max(spec.sharing) + 1} sets of weights"
    if spec.convolution is not None:
        kernel = spec.convolution.kernel
        yield "convolution", f"over {kernel} tokens of the embedding, added to the output of layer 0"
    if spec.final_norm is not None:
        yield "final norm", describe_norm(spec.final_norm)
    if spec.output_width is not None:
        yield "final map", f"{spec.width:,} to {spec.output_width:,}, no bias"
    if spec.pooler is not None:
        yield "pooler", f"dense layer and {ACTIVATIONS[spec.pooler.activation]} on the first token"
    yield "heads", "; ".join(describe_head(head, causal=spec.causal) for head in spec.heads) or "none"


def describe_output(head: CheckpointOutput) -> str:
    """What the checkpoint computes from a text, and how."""
    if isinstance(head, UnknownOutput):
        return head.reason
    match head:
        case PooledVector():
            return _pooled(head)
        case MultiVector():
            return _multi_vector(head)
        case SparseVector():
            words = f"one weight for each entry of the vocabulary, the {head.pooling} over tokens"
            return f"{words}; queries by a table" if head.static_queries else words
        case PairScore():
            scores = "one score" if head.labels == 1 else f"{head.labels} scores"
            sigmoid = ", between 0 and 1" if head.activation == "sigmoid" else ""
            shared = "; a query is encoded once for its documents" if head.shared_query else ""
            return f"{scores} for a pair of texts{sigmoid}{shared}"
        case _:
            assert_never(head)


def _pooled(head: PooledVector) -> str:
    pooling = " and ".join(POOLING[mode].description for mode in head.pooling)
    parts = [f"{pooling} pooling", *_layers(head.projections)]
    if head.normalize or head.projections[-1:] != (UnitLength(),):
        parts.append("normalized" if head.normalize else "not normalized")
    if head.dimensions is not None:
        parts.append(f"the first {head.dimensions} dimensions")
    if head.default_prompt is not None:
        parts.append(f"the prompt {head.default_prompt!r} before every text")
    return ", ".join(parts)


def _multi_vector(head: MultiVector) -> str:
    normalized = "normalized" if head.normalize else "not normalized"
    parts = [", ".join(["one vector for each token", *_layers(head.projections), normalized])]
    if head.expansion is not None:
        parts.append(f"queries expanded to {head.expansion.length} tokens")
    for kind, limit in (("queries", head.query_tokens), ("documents", head.document_tokens)):
        if limit is not None:
            parts.append(f"{kind} of at most {limit} tokens")
    if head.skipped_words:
        kinds = " and ".join(f"{kind}s" if kind == "document" else "queries" for kind in head.skipped_in)
        parts.append(f"none for {len(head.skipped_words)} words in {kinds}")
    return "; ".join(parts)


def _layers(layers: tuple[OutputLayer, ...]) -> Iterator[str]:
    for layer in layers:
        match layer:
            case Dense():
                activation = "" if layer.activation is None else f" {ACTIVATIONS[layer.activation]}"
                yield f"dense layer to {layer.width}{activation}"
            case LayerNorm():
                yield "LayerNorm"
            case UnitLength():
                yield "normalized"
            case _:
                assert_never(layer)


def _embedding(spec: Embedding, width: int) -> str:
    parts = [f"{spec.vocabulary:,} tokens, width {spec.width:,}"]
    if spec.projection is not None:
        beside = f" with neighbors up to distance {spec.projection.neighbors}" if spec.reads_neighbors else ""
        parts.append(f"projected to {width:,}{beside}")
    if spec.positions is not None:
        use = "learned positions" if spec.positions.added else "positions for the mask decoder"
        parts.append(f"{spec.positions.rows:,} {use}")
    if spec.segments:
        parts.append(f"{spec.segments} token types")
    if spec.tasks:
        parts.append(f"task 0 of {spec.tasks}")
    if spec.token_dropout is not None:
        parts.append("mask tokens dropped")
    if spec.scale != 1:
        parts.append(f"word vectors times {spec.scale:g}")
    return ", ".join([*parts, describe_norm(spec.norm)])


def _layer(spec: Layer) -> str:
    norm = f"{'pre-norm' if spec.norm_first else 'post-norm'} {describe_norm(spec.norm)}"
    first = "" if spec.attention_norm else " (none before attention)"
    first += ", also of what each part adds" if spec.output_norms else ""
    first += ", first of attention with its input" if spec.attention_sum_norm else ""
    first += _bottleneck(spec)
    first += "" if spec.output_scale == 1 else f"; what each part adds times {spec.output_scale:g}"
    first += "" if spec.gate is None else f"; {describe_gate(spec.gate)}"
    first += "; the output times a stored number" if spec.factor else ""
    return f"{_mixer(spec.mixer)}; feed-forward {describe_feedforward(spec.feedforward)}; {norm}{first}"


def describe_gate(gate: EmbeddingGate) -> str:
    """What follows the feed-forward network where a layer reads the embedding once more."""
    return f"{gate.width:,} features of the embedding with a gate ({ACTIVATIONS[gate.activation]})"


def _bottleneck(spec: Layer) -> str:
    if spec.bottleneck is None:
        return ""
    return f"; a bottleneck of {spec.bottleneck.width:,}, {ATTENTION_INPUT[spec.bottleneck.attention]}"


ATTENTION_INPUT: dict[AttentionInput, str] = {
    "narrow": "which attention reads",
    "shared": "another one for queries and keys",
    "input": "which attention does not read",
}
"""What attention reads in a layer with a bottleneck."""


def _mixer(spec: Mixer) -> str:
    heads = f"{spec.heads} heads of width {spec.head_width}"
    if isinstance(spec, SoftmaxAttention) and spec.key_value_heads is not None:
        heads += f" with {spec.key_value_heads} heads of keys and values"
    if isinstance(spec, LinearAttention):
        kind = f"linear attention ({spec.feature_map}"
        return (
            f"{kind}{f', {spec.random_features} random features' if spec.random_features else ''}), {heads}"
        )
    parts = describe_pattern(spec.pattern), heads, describe_position(spec.position), *describe_scores(spec)
    return ", ".join(filter(None, parts))


def describe_scores(spec: SoftmaxAttention) -> Iterator[str]:
    """Norms of queries and keys, the factor of scores and sinks, where they are not the usual ones, and what
    is beside the heads."""
    if spec.query_key_norm is not None:
        over = "each head" if spec.query_key_norm.over == "head" else "all heads together"
        yield f"queries and keys normalized over {over}"
        if spec.query_key_norm.values:
            yield "values too, without a scale"
    if spec.score_scale is not None:
        yield f"scores times {spec.score_scale:g}"
    if spec.sinks:
        yield "an attention sink in each head"
    if spec.span_convolution is not None:
        yield f"beside them {spec.heads} convolutions of {spec.span_convolution.kernel} tokens, not attention"


def describe_pattern(pattern: AttentionPattern) -> str:
    """Which keys a query attends to."""
    match pattern:
        case FullAttention():
            return "full attention"
        case CausalAttention():
            return "causal attention"
        case SlidingWindow(radius=radius, dilation=dilation):
            gaps = f", every {dilation} tokens" if dilation > 1 else ""
            return f"sliding window of {radius} tokens to each side{gaps}"
        case SlidingWindowGlobal(window=window, own_projections=separate):
            projections = " with separate projections" if separate else ""
            return f"{describe_pattern(window)} and global tokens{projections}"
        case BlockSparse(block=block, random_blocks=random):
            return f"block-sparse attention, blocks of {block} tokens, {random} random blocks"
        case _:
            assert_never(pattern)


def describe_position(position: AttentionPosition) -> str:
    """How positions enter attention scores; empty if they do not."""
    match position:
        case NoPosition():
            return ""
        case Rotary(theta=theta, width=width, scale=scale, yarn=yarn):
            part = "" if width is None else f" on {width} features"
            stretched = "" if scale == 1 else f", positions divided by {scale:g}"
            if yarn is not None:
                stretched += f", YaRN from {yarn.trained_tokens:,} tokens by {yarn.factor:g}"
            return f"RoPE with theta {theta:,g}{part}{stretched}"
        case Alibi():
            return "ALiBi"
        case Disentangled(max_distance=distance, buckets=buckets):
            merged = f" in {buckets} log buckets" if buckets else ""
            return f"disentangled relative positions up to {distance}{merged}"
        case RelativePositionBias(buckets=buckets, max_distance=distance):
            return f"relative position biases in {buckets} buckets, distances up to {distance}"
        case _:
            assert_never(position)


def describe_feedforward(spec: FeedForward) -> str:
    """The width of a feed-forward network and its activation or gate."""
    if isinstance(spec, GatedFeedForward):
        gated = GATED.get(spec.activation, f"gated {ACTIVATIONS[spec.activation]}")
        return f"{spec.width:,} {gated}"
    if isinstance(spec, StackedFeedForward):
        return f"{describe_feedforward(spec.network)}, {spec.count} one after the other"
    if isinstance(spec, ExpertFeedForward):
        gate = "" if spec.gate is None else f" gate clamped at {spec.gate.limit:g}"
        return f"{spec.width:,} {ACTIVATIONS[spec.activation]}{gate}, {spec.chosen} of {spec.experts} experts"
    groups = f" in {spec.groups} groups" if spec.groups > 1 else ""
    return f"{spec.width:,} {ACTIVATIONS[spec.activation]}{groups}"


def describe_norm(norm: Norm | None) -> str:
    """A norm with its eps, and whether it has no bias."""
    if norm is None:
        return "no norm"
    if isinstance(norm, NoNorm):
        return "scale and shift (NoNorm)"
    if isinstance(norm, LayerNorm):
        return f"LayerNorm (eps {norm.eps:g}{'' if norm.bias else ', no bias'})"
    return f"RMSNorm (eps {norm.eps:g}{', scale 1 + weight' if norm.one_plus else ''})"


def describe_head(head: Head, *, causal: bool) -> str:
    """What a head predicts, and from what."""
    if isinstance(head, MaskedLM):
        kind = "causal" if causal else "masked"
        kind += " language modeling" + (" through an enhanced mask decoder" if head.enhanced else "")
        beside = f" and {head.beside:,} features of its own" if head.beside else ""
        return f"{kind} ({'tied to the embedding' if head.tied else 'separate matrix'}{beside})"
    assert isinstance(head, Classifier)
    return f"{ROLES[head.role].predicts} ({head.classes} {'classes' if head.classes > 1 else 'logit'})"


def describe_layers(layers: Sequence[int], *, last: bool) -> str:
    """Which layers have a kind of attention; ``last``: all others are named before it."""
    steps = {b - a for a, b in pairwise(layers)}
    if len(layers) > 4 and len(steps) == 1 and steps != {1}:
        return f"layers {', '.join(map(str, layers[:3]))} ... {layers[-1]}"
    words = describe_ranges(list(layers)).split(", ")
    if len(words) > 3:
        if last:
            return f"the other {len(layers)} layers"
        words = [*words[:3], f"... {words[-1]}"]
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(words)}"


def describe_layer_groups(groups: Mapping[str, list[int]]) -> str:
    """What is said of layers; with their numbers where layers differ. Empty words are left out."""
    if len(groups) == 1:
        return next(iter(groups))
    last = list(groups)[-1]
    return "; ".join(
        f"{words} ({describe_layers(layers, last=words == last)})"
        for words, layers in groups.items()
        if words
    )


def describe_ranges(numbers: list[int]) -> str:
    """Ascending numbers with consecutive ones joined: "0 to 3, 7, 9"."""
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b > a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b > a + 1), numbers[-1]]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))
