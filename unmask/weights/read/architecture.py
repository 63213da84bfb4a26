"""The architecture behind a name, and two of them compared row by row. Free of torch, and of weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.families import FAMILIES, find_pretraining
from unmask.spec import (
    CheckpointOutput,
    EncoderSpec,
    ExpertFeedForward,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    LinearAttention,
    Mixer,
    NoNorm,
    Norm,
    SoftmaxAttention,
    StackedFeedForward,
    UnknownOutput,
)
from unmask.spec.config_keys import Compat
from unmask.spec.describe import (
    describe_feedforward,
    describe_gate,
    describe_head,
    describe_layer_groups,
    describe_norm,
    describe_output,
    describe_pattern,
    describe_position,
)
from unmask.spec.shapes import UNTRAINED, tensor_shapes
from unmask.weights.read.checkpoint import read_checkpoint
from unmask.weights.read.find import cached, find

Value = int | str | None


@dataclass(frozen=True)
class Architecture:
    """The architecture of a checkpoint, or of a published one that is not on this machine."""

    name: str
    family: str
    spec: EncoderSpec
    output: CheckpointOutput | None
    max_tokens: int | None
    trained_tokens: int | None
    paper: str | None
    on_disk: bool
    """Whether it was read from files; otherwise it is what this package knows of the published checkpoint."""


@dataclass(frozen=True)
class ArchitectureRow:
    """One property of two encoders."""

    name: str
    a: Value
    """None if it is not known here, or does not apply."""
    b: Value
    differs: bool


@dataclass(frozen=True)
class ArchitectureComparison:
    """Two encoders, row by row."""

    a: str
    b: str
    rows: tuple[ArchitectureRow, ...]


def find_architecture_of(
    name: str,
    revision: str | None = None,
    compat: Compat = "published",
    *,
    verify: bool | None = None,
    ignore_tensors: Sequence[str] = (),
) -> Architecture:
    """The architecture of a checkpoint by name; a published one needs no download.

    Args:
        name: "default", a shipped checkpoint, a folder, a hub id, or the last part of a published hub id.
        revision: as for `unmask.load`; a checkpoint is downloaded for it.
        compat: as for `unmask.load`.
        verify: as for `unmask.load`.
        ignore_tensors: as for `unmask.load`.

    Raises:
        CheckpointError: there is no such checkpoint, or it cannot be read.
    """
    published = {entry.name: (family, entry) for family in FAMILIES for entry in family.published}
    short = {full.rpartition("/")[2].lower(): full for full in published}
    full = name if name in published else short.get(name.lower(), name)
    if (
        full in published
        and revision is None
        and full not in cached()
        and not Path(name).expanduser().is_dir()
    ):
        family, entry = published[full]
        spec = entry.pretraining or entry.spec
        limits = spec.max_tokens, spec.trained_tokens
        return Architecture(full, family.name, spec, None, *limits, entry.paper, on_disk=False)
    checkpoint = read_checkpoint(find(name, revision), compat, verify=verify, ignore_tensors=ignore_tensors)
    row = published.get(checkpoint.source.name)
    return Architecture(
        name=checkpoint.source.name,
        family=checkpoint.family.name,
        spec=checkpoint.spec,
        output=None if isinstance(checkpoint.head, UnknownOutput) else checkpoint.head,
        max_tokens=checkpoint.max_tokens,
        trained_tokens=checkpoint.trained_tokens,
        paper=None if row is None else row[1].paper,
        on_disk=True,
    )


def compare_architectures(a: Architecture, b: Architecture) -> ArchitectureComparison:
    """Two encoders, property by property: pretraining where it is known, parts, lengths and parameters.

    Raises:
        InvalidRequest: one of them is no result of `find_architecture_of`.
    """
    if not isinstance(a, Architecture) or not isinstance(b, Architecture):
        raise InvalidRequest("give two results of find_architecture_of")
    first, second = dict(_rows(a)), dict(_rows(b))
    return ArchitectureComparison(
        a.name,
        b.name,
        tuple(
            ArchitectureRow(name, first[name], second[name], first[name] != second[name]) for name in first
        ),
    )


def _rows(architecture: Architecture) -> Iterator[tuple[str, Value]]:
    spec, pretraining = architecture.spec, find_pretraining(architecture.name)
    yield "family", architecture.family
    yield "paper", architecture.paper
    yield "pretraining objective", _objective(spec) if pretraining is None else pretraining.objective
    yield "masking", None if pretraining is None else pretraining.masking
    yield "layers", len(spec.layers)
    yield "width", spec.width
    yield "attention heads", _by_layer(spec, _heads)
    yield "attention pattern", _by_layer(spec, _pattern)
    yield "positions", _positions(spec)
    yield "feed-forward", _join(describe_feedforward(layer.feedforward) for layer in spec.layers)
    yield (
        "norms",
        _join(
            f"{'pre-norm' if layer.norm_first else 'post-norm'} {describe_norm(layer.norm)}"
            for layer in spec.layers
        ),
    )
    yield "embedding norm", describe_norm(spec.embedding.norm)
    yield "final norm", describe_norm(spec.final_norm)
    yield "gate by the embedding", "none" if spec.gate is None else describe_gate(spec.gate)
    yield "width of last states", spec.state_width
    yield "biases", _biases(spec)
    yield "shared weights", _sharing(spec)
    yield "token types", spec.embedding.segments
    yield "vocabulary", spec.embedding.vocabulary
    yield "longest text, tokens", "unlimited" if architecture.max_tokens is None else architecture.max_tokens
    yield "longest training text", architecture.trained_tokens
    yield "heads", "; ".join(describe_head(head, causal=spec.causal) for head in spec.heads) or "none"
    yield "output", None if architecture.output is None else describe_output(architecture.output)
    shapes = {k: prod(v) for k, v in tensor_shapes(spec).items() if not k.endswith(UNTRAINED)}
    yield "parameters", sum(shapes.values())
    yield "of embeddings", _under(shapes, "embedding.")
    yield "of each layer", _of_layers(spec, shapes)
    yield "of heads and pooler", _under(shapes, "heads.") + _under(shapes, "pooler.")


def _under(counts: dict[str, int], prefix: str) -> int:
    return sum(count for name, count in counts.items() if name.startswith(prefix))


def _of_layers(spec: EncoderSpec, counts: dict[str, int]) -> Value:
    sizes = sorted({_under(counts, f"layers.{weights}.") for weights in set(spec.weights_of_layer)})
    return sizes[0] if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def _objective(spec: EncoderSpec) -> str | None:
    """What the heads of a checkpoint say, which need not be all that it was trained on."""
    names = [describe_head(head, causal=spec.causal).partition(" (")[0] for head in spec.heads]
    return f"{', '.join(names)} (by its heads)" if names else None


def _join(words: Iterator[str]) -> str:
    return "; ".join(dict.fromkeys(words))


def _by_layer(spec: EncoderSpec, words: Callable[[Mixer], str]) -> str:
    """What is said of each layer's attention, with the layers of each where they differ."""
    groups: dict[str, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        groups.setdefault(words(layer.mixer), []).append(number)
    return describe_layer_groups(groups)


def _heads(mixer: Mixer) -> str:
    shared = mixer.key_value_heads if isinstance(mixer, SoftmaxAttention) else None
    few = "" if shared is None else f", {shared} of keys and values"
    return f"{mixer.heads} of width {mixer.head_width}{few}"


def _pattern(mixer: Mixer) -> str:
    if isinstance(mixer, LinearAttention):
        return f"linear attention ({mixer.feature_map})"
    return describe_pattern(mixer.pattern) + (", attention sinks" if mixer.sinks else "")


def _position(mixer: Mixer) -> str:
    return describe_position(mixer.position) if isinstance(mixer, SoftmaxAttention) else ""


def _positions(spec: EncoderSpec) -> str:
    positions = spec.embedding.positions
    added = ["learned, added to the embedding"] if positions is not None and positions.added else []
    within = _by_layer(spec, _position)
    return "; ".join([*added, *([within] if within else [])]) or "none"


def _biases(spec: EncoderSpec) -> str:
    """Which of attention, feed-forward networks and norms have biases."""
    mixers = [layer.mixer for layer in spec.layers]
    feedforwards = [layer.feedforward for layer in spec.layers]
    norms: list[Norm] = [layer.norm for layer in spec.layers]
    has = {
        "attention": [bias for mixer in mixers for bias in _attention_biases(mixer)],
        "feed-forward": [bias for network in feedforwards for bias in _feedforward_biases(network)],
        "norms": [isinstance(norm, NoNorm) or (isinstance(norm, LayerNorm) and norm.bias) for norm in norms],
    }
    words = {True: "all", False: "none"}
    return ", ".join(
        f"{name}: {words[values[0]] if len(set(values)) == 1 else 'some'}" for name, values in has.items()
    )


def _attention_biases(mixer: Mixer) -> tuple[bool, ...]:
    if isinstance(mixer, LinearAttention):
        return (mixer.bias,)
    return mixer.query_bias, mixer.key_bias, mixer.value_bias, mixer.out_bias


def _feedforward_biases(network: FeedForward) -> tuple[bool, ...]:
    match network:
        case GatedFeedForward():
            return network.in_bias, network.out_bias
        case ExpertFeedForward():
            return (network.bias or network.expert_biases,)
        case StackedFeedForward():
            return (network.network.bias,)
        case _:
            return (network.bias,)


def _sharing(spec: EncoderSpec) -> str:
    if spec.sharing is None:
        return "none"
    return f"{len(spec.layers)} layers use {max(spec.sharing) + 1} sets of weights"
