"""The parts of an encoder that a diagram shows, in the words of `unmask.spec.describe`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from unmask.spec import (
    AttentionPattern,
    CheckpointOutput,
    Classifier,
    Disentangled,
    DoubleTransform,
    EncoderSpec,
    ExpertFeedForward,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LinearAttention,
    MaskedLM,
    Mixer,
    MultiVector,
    NoNorm,
    Norm,
    PairScore,
    PlainFeedForward,
    PooledVector,
    Reads,
    RelativePositionBias,
    ResidualTransform,
    RMSNorm,
    SlidingWindowGlobal,
    SoftmaxAttention,
    SparseVector,
    StackedFeedForward,
    Transform,
    UnknownOutput,
)
from unmask.spec.describe import (
    ACTIVATIONS,
    describe_feedforward,
    describe_gate,
    describe_head,
    describe_norm,
    describe_output,
    describe_pattern,
    describe_position,
    describe_ranges,
    describe_scores,
)

OUTPUTS: dict[type, str] = {
    PooledVector: "Sentence embedding",
    MultiVector: "Vectors of tokens",
    SparseVector: "Weights of words",
    PairScore: "Score of a pair",
}

READS: dict[Reads, str] = {
    "pooler": "the pooler",
    "first": "first token",
    "mean": "mean over tokens",
    "tokens": "every token",
    "last": "last token",
    "tokens_and_first": "every token plus the first",
    "unnormed": "every token before the final norm",
    "late": "every token, mean of their logits",
}
"""The state that a classifier reads."""

Kind = Literal["embedding", "norm", "attention", "feedforward", "recurrent", "head"]


@dataclass(frozen=True)
class Variant:
    """One kind of attention among those of a block's layers."""

    lines: tuple[str, ...]
    pattern: AttentionPattern | None
    """None for attention without a pattern: linear attention."""
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One box: a title, lines below it, and for attention its variants."""

    title: str
    lines: tuple[str, ...] = ()
    kind: Kind = "norm"
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True)
class Block:
    """Layers that differ at most in their attention; drawn once."""

    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    """From the block's input to its output."""
    norm_first: bool | None
    """Where the norms stand; None for a block without residual sums."""
    notes: tuple[str, ...] = ()
    """What is not in a box: shared weights, a convolution beside layer 0."""


@dataclass(frozen=True)
class Parts:
    """Everything that is drawn, from the input upward."""

    source: str
    """What goes in."""
    summed: tuple[Part, ...]
    """The embeddings, which are added."""
    before: tuple[Part, ...]
    """Between the embeddings and the first layer."""
    blocks: tuple[Block, ...]
    layer_count: int
    after: tuple[Part, ...]
    heads: tuple[Part, ...]


def encoder_parts(spec: EncoderSpec, output: CheckpointOutput | None = None) -> Parts:
    """The parts of an encoder, and what a checkpoint with it outputs."""
    groups: dict[Layer, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        # What differs is shown inside of the block: attention, and a first norm that is left out.
        alike = replace(layer, mixer=spec.layers[0].mixer, attention_norm=True, dropout=0.0)
        groups.setdefault(alike, []).append(number)
    final: tuple[Part, ...] = () if spec.final_norm is None else (_norm("Final norm", spec.final_norm),)
    if spec.output_width is not None:
        final += (Part("Final map", (f"{spec.width:,} to {spec.output_width:,}, no bias",), "head"),)
    return Parts(
        source="token ids",
        summed=tuple(_summed(spec)),
        before=tuple(_before(spec)),
        blocks=tuple(_block(spec, tuple(numbers)) for numbers in groups.values()),
        layer_count=len(spec.layers),
        after=final,
        heads=(*_heads(spec), *_output(spec, output)),
    )


def _summed(spec: EncoderSpec) -> Iterator[Part]:
    embedding = spec.embedding
    dropped = () if embedding.token_dropout is None else ("mask tokens are zero",)
    size = f"{embedding.vocabulary:,} × {embedding.width:,}"
    projection, added = embedding.projection, embedding.added_width(spec.width)
    if projection is not None and projection.words_alone:
        beside = f", with neighbors up to distance {projection.neighbors}" if projection.neighbors else ""
        size = f"{size}, projected to {spec.width:,}{beside}"
    yield Part("Token embedding", (size, *dropped), "embedding")
    positions = embedding.positions
    if positions is not None and positions.added:
        yield Part("Learned positions", (f"{positions.rows:,} × {added:,}",), "embedding")
    if embedding.segments:
        yield Part("Token types", (f"{embedding.segments} × {added:,}",), "embedding")
    if embedding.tasks:
        yield Part("Task 0", (f"{embedding.tasks} × {added:,}",), "embedding")


def _before(spec: EncoderSpec) -> Iterator[Part]:
    embedding = spec.embedding
    if embedding.scale != 1:
        yield Part("Scale", (f"word vectors times {embedding.scale:g}",), "embedding")
    norm = [] if embedding.norm is None else [_norm("Norm", embedding.norm)]
    if embedding.projection is None or embedding.projection.words_alone:
        yield from norm
        return
    bias = "with bias" if embedding.projection.bias else "no bias"
    projection = Part("Projection", (f"{embedding.width:,} to {spec.width:,}, {bias}",), "embedding")
    yield from [projection, *norm] if embedding.projection.before_norm else [*norm, projection]


def _norm(title: str, norm: Norm, notes: tuple[str, ...] = ()) -> Part:
    if isinstance(norm, NoNorm):
        return Part(title, (describe_norm(norm), *notes), "norm")
    bias = ", no bias" if isinstance(norm, LayerNorm) and not norm.bias else ""
    if isinstance(norm, RMSNorm) and norm.one_plus:
        bias = ", scale 1 + weight"
    words = f"{type(norm).__name__}{bias}"
    return Part(title, (f"{words}, eps {norm.eps:g}", *notes), "norm")


def _block(spec: EncoderSpec, numbers: tuple[int, ...]) -> Block:
    layers = [spec.layers[number] for number in numbers]
    first = layers[0]
    bare = [number for number in numbers if not spec.layers[number].attention_norm]
    without = (f"not in layer {describe_ranges(bare)}",) if bare else ()
    attention = _attention(spec, numbers)
    feedforward = _feedforward(spec, first)
    norms = _norm("Norm", first.norm, without), _norm("Norm", first.norm)
    if first.norm_first:
        parts = norms[0], attention, norms[1], feedforward
    else:
        parts = attention, norms[0], feedforward, norms[1]
    return Block(numbers, parts, first.norm_first, tuple(_notes(spec, numbers)))


def _notes(spec: EncoderSpec, numbers: tuple[int, ...]) -> Iterator[str]:
    if spec.layers[numbers[0]].output_norms:
        yield "what each part adds is normalized too"
    if spec.layers[numbers[0]].attention_sum_norm:
        yield "attention adds the norm of its output plus its input"
    if spec.layers[numbers[0]].output_scale != 1:
        yield f"what each part adds is multiplied by {spec.layers[numbers[0]].output_scale:g}"
    gate = spec.layers[numbers[0]].gate
    if gate is not None:
        yield f"plus {describe_gate(gate)}"
    if spec.layers[numbers[0]].factor:
        yield "the output is multiplied by a stored number"
    bottleneck = spec.layers[numbers[0]].bottleneck
    if bottleneck is not None:
        yield f"in narrow states: {spec.width:,} to {bottleneck.width:,} and back, with a residual and norms"
        if bottleneck.attention != "narrow":
            shared = bottleneck.attention == "shared"
            others = "queries and keys another map of it" if shared else "as queries and keys do"
            yield f"values read the layer's input, {others}"
    if spec.sharing is not None:
        sets = max(spec.sharing) + 1
        yield "all layers share one set of weights" if sets == 1 else f"layers share {sets} sets of weights"
    if spec.convolution is not None and 0 in numbers:
        kernel = spec.convolution.kernel
        yield f"layer 0: plus a convolution over {kernel} tokens of the embedding"


def _attention(spec: EncoderSpec, numbers: tuple[int, ...]) -> Part:
    mixers = [spec.layers[number].mixer for number in numbers]
    heads = tuple(dict.fromkeys(map(_attention_heads, mixers)))
    common = heads if len(heads) == 1 else ()
    # By what is said of them: BigBird's layers differ in the seed of their random blocks alone.
    variants: dict[tuple[str, ...], Variant] = {}
    for number, mixer in zip(numbers, mixers, strict=True):
        lines = tuple(_variant(spec, mixer, common))
        before = variants[lines].layers if lines in variants else ()
        variants[lines] = Variant(lines, _pattern(mixer), (*before, number))
    linear = all(isinstance(mixer, LinearAttention) for mixer in mixers)
    title = "Linear attention" if linear else "Self-attention"
    return Part(title, common, "attention", tuple(variants.values()))


def _pattern(mixer: Mixer) -> AttentionPattern | None:
    return mixer.pattern if isinstance(mixer, SoftmaxAttention) else None


def _attention_heads(mixer: Mixer) -> str:
    return f"{mixer.heads} heads of width {mixer.head_width}, {_attention_bias(mixer)}"


def _attention_bias(mixer: Mixer) -> str:
    if isinstance(mixer, LinearAttention):
        return "biases" if mixer.bias else "no biases"
    has = {
        "queries": mixer.query_bias,
        "keys": mixer.key_bias,
        "values": mixer.value_bias,
        "output": mixer.out_bias,
    }
    names = [name for name, bias in has.items() if bias]
    return "biases" if all(has.values()) else f"biases of {', '.join(names)} only" if names else "no biases"


def _variant(spec: EncoderSpec, mixer: Mixer, common: tuple[str, ...]) -> Iterator[str]:
    if not common:
        yield _attention_heads(mixer)
    if isinstance(mixer, LinearAttention):
        features = f", {mixer.random_features} random features" if mixer.random_features else ""
        yield f"feature map {mixer.feature_map}{features}"
        return
    if isinstance(mixer.pattern, SlidingWindowGlobal):
        yield describe_pattern(mixer.pattern.window)
        separate = ", separate projections" if mixer.pattern.own_projections else ""
        yield f"global tokens{separate}"
    else:
        yield describe_pattern(mixer.pattern)
    if mixer.key_value_heads is not None:
        yield f"{mixer.key_value_heads} heads of keys and values"
    if position := describe_position(mixer.position):
        yield position
    yield from describe_scores(mixer)
    if isinstance(mixer.position, Disentangled | RelativePositionBias) and spec.distance_table is not None:
        rows, width = spec.distance_table
        what = "distances" if isinstance(mixer.position, Disentangled) else "buckets × heads"
        yield f"table {rows:,} × {width:,} ({what}), shared by all layers"


def _feedforward(spec: EncoderSpec, layer: Layer) -> Part:
    feedforward, width = layer.feedforward, layer.inner_width(spec.width)
    plain = feedforward.network if isinstance(feedforward, StackedFeedForward) else feedforward
    match plain:
        case PlainFeedForward(bias=bias):  # groups are among the words
            biases = "biases" if bias else "no biases"
        case ExpertFeedForward(bias=bias, expert_biases=own):
            biases = "biases" if own else "one bias" if bias else "no biases"
        case GatedFeedForward(in_bias=into, out_bias=out):
            biases = {(True, True): "biases", (False, False): "no biases"}.get(
                (into, out), "bias of the output only" if out else "bias of the input only"
            )
        case _:
            assert_never(plain)
    words = describe_feedforward(feedforward).removeprefix(f"{feedforward.width:,} ")
    return Part(
        "Feed-forward",
        (f"{width:,} to {feedforward.width:,} to {width:,}", f"{words}, {biases}"),
        "feedforward",
    )


def _heads(spec: EncoderSpec) -> Iterator[Part]:
    pooler = ""
    if spec.pooler is not None:
        pooler = f"first token, dense {spec.state_width:,}, {ACTIVATIONS[spec.pooler.activation]}"
        if not any(isinstance(head, Classifier) and head.reads == "pooler" for head in spec.heads):
            yield Part("Pooler", (pooler,), "head")
    for head in spec.heads:
        name, _, details = describe_head(head, causal=spec.causal).partition(" (")
        lines = []
        if isinstance(head, Classifier):
            lines.append(f"pooler: {pooler}" if head.reads == "pooler" else READS[head.reads])
        if isinstance(head.transform, Transform):
            norm = ", norm" if head.transform.norm is not None else ""
            lines.append(f"dense {head.transform.width:,}, {ACTIVATIONS[head.transform.activation]}{norm}")
        elif isinstance(head.transform, DoubleTransform):
            widths = f"{head.transform.inner:,} and {head.transform.width:,}"
            lines.append(f"dense {widths}, {ACTIVATIONS[head.transform.activation]}")
        elif isinstance(head.transform, ResidualTransform):
            lines.append(f"feed-forward of width {head.transform.width:,}, norm")
        details = details.removesuffix(")")
        words = f"to {spec.embedding.vocabulary:,} words, " if isinstance(head, MaskedLM) else "to "
        lines.append(f"{words}{details}")
        yield Part(name[:1].upper() + name[1:], tuple(lines), "head")


def _output(spec: EncoderSpec, output: CheckpointOutput | None) -> Iterator[Part]:
    if output is None or isinstance(output, UnknownOutput):
        return
    words = describe_output(output)
    if isinstance(output, PooledVector | MultiVector):
        words += f"; width {output.width(spec):,}"
    yield Part(OUTPUTS[type(output)], tuple(words.split("; ")), "head")
