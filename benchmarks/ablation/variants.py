"""The variants that are compared: each is its parent with one change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.ablation.budget import body_parameters, fitted
from unmask.errors import InvalidRequest
from unmask.spec import (
    Alibi,
    Disentangled,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LearnedPositions,
    LinearAttention,
    MaskedLM,
    PlainFeedForward,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
    Transform,
)
from unmask.spec.check import require_at_least
from unmask.training.objectives.generator import discriminator_spec

WHOLE_EVERY = 3
"""Every third layer has full attention, starting with the first; the others have windows (Warner et al.
2024)."""
BUCKETS_SHARE = 4
"""Disentangled distances are bucketed; each side has this fraction of the longest text as buckets."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the first variant; the others keep its number of parameters."""

    width: int = 64
    layers: int = 4
    heads: int = 4
    feedforward: int = 256
    vocabulary: int = 2048
    tokens: int = 64
    """Of the longest text, special tokens included."""
    radius: int = 8
    """Of sliding windows; small compared with ``tokens``, or windows would cover nearly the whole text."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "feedforward", "vocabulary", "radius"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("tokens", self.tokens, 16)
        if self.width % (2 * self.heads):
            raise InvalidRequest(
                f"width is {self.width} and heads {self.heads}; each head needs an even share of the width"
            )

    @property
    def head_width(self) -> int:
        """K."""
        return self.width // self.heads


@dataclass(frozen=True)
class BuiltVariant:
    """The encoder and the objective it is trained with."""

    encoder: EncoderSpec
    objective: Mapping[str, Any]
    """As in ``[objective]`` of a run file."""


Change = Callable[[BuiltVariant, Sizes], BuiltVariant]


@dataclass(frozen=True)
class Variant:
    """One variant."""

    name: str
    parent: str | None
    """The variant from which it differs in one change; None for the first."""
    change: str
    """A description of the change."""
    source: str
    """Who proposed it."""
    apply: Change = field(repr=False)
    """Maps the parent's built variant to this one's."""
    equal: bool = True
    """Whether feed-forward networks are resized until the parameter count equals that of the first."""


def build_variant(name: str, sizes: Sizes) -> BuiltVariant:
    """Build a variant at these sizes, with the parameter count of the first variant where that is fair.

    Raises:
        InvalidRequest: there is no such variant, or the sizes cannot be built.
    """
    variant = by_name(name)
    made = _unfitted(variant, sizes)
    if not variant.equal:
        assert variant.parent is not None
        return variant.apply(build_variant(variant.parent, sizes), sizes)
    return replace(made, encoder=fitted(made.encoder, body_parameters(first(sizes).encoder)))


def by_name(name: str) -> Variant:
    """The variant of that name."""
    found = next((variant for variant in VARIANTS if variant.name == name), None)
    if found is None:
        raise InvalidRequest(
            f"there is no variant {name!r}; there are {', '.join(one.name for one in VARIANTS)}"
        )
    return found


def first(sizes: Sizes) -> BuiltVariant:
    """BERT (Devlin et al. 2019) without what next sentence prediction needs: token types, pooler, sentence
    pairs.

    No variant has dropout, because no text is read twice.
    """
    norm = LayerNorm(1e-12)
    layer = Layer(
        mixer=SoftmaxAttention(sizes.heads, sizes.head_width),
        feedforward=PlainFeedForward(sizes.feedforward, "gelu"),
        norm=norm,
    )
    encoder = EncoderSpec(
        width=sizes.width,
        embedding=Embedding(
            sizes.vocabulary, sizes.width, positions=LearnedPositions(sizes.tokens), norm=norm
        ),
        layers=(layer,) * sizes.layers,
        heads=(MaskedLM(Transform(sizes.width, "gelu", norm)),),
        trained_tokens=sizes.tokens,
    )
    return BuiltVariant(encoder, {"kind": "masked", "rate": 0.15, "replacement": "bert"})


def _unfitted(variant: Variant, sizes: Sizes) -> BuiltVariant:
    if variant.parent is None:
        return first(sizes)
    return variant.apply(_unfitted(by_name(variant.parent), sizes), sizes)


def _each_layer(made: BuiltVariant, change: Callable[[Layer], Layer], **also: Any) -> BuiltVariant:
    layers = tuple(change(layer) for layer in made.encoder.layers)
    return replace(made, encoder=replace(made.encoder, layers=layers, **also))


def _mask_more(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    return replace(parent, objective={**parent.objective, "rate": 0.3})


def _norm_first(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    norm = parent.encoder.layers[0].norm
    return _each_layer(parent, lambda layer: replace(layer, norm_first=True), final_norm=norm)


def _positioned(parent: BuiltVariant, position: Disentangled | Alibi | Rotary) -> BuiltVariant:
    """Add positions in attention and remove those added to embeddings."""
    embedding = replace(parent.encoder.embedding, positions=None)

    def change(layer: Layer) -> Layer:
        assert isinstance(layer.mixer, SoftmaxAttention)
        return replace(layer, mixer=replace(layer.mixer, position=position))

    return _each_layer(parent, change, embedding=embedding)


def _disentangled(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    norm = parent.encoder.layers[0].norm
    buckets = max(2, sizes.tokens // BUCKETS_SHARE)
    position = Disentangled(sizes.tokens, buckets, shared_projections=True, table_norm=norm)
    return _positioned(parent, position)


def _alibi(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    return _positioned(parent, Alibi())


def _rotary(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    return _positioned(parent, Rotary(10_000.0))


def _gated(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    """Biases stay, so that only the gate changes."""
    gated = GatedFeedForward(1, "gelu", in_bias=True, out_bias=True)
    return _each_layer(
        parent,
        lambda layer: replace(layer, feedforward=replace(gated, width=layer.feedforward.width)),
    )


def _local(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    layers = list(parent.encoder.layers)
    for number, layer in enumerate(layers):
        if number % WHOLE_EVERY:
            assert isinstance(layer.mixer, SoftmaxAttention)
            layers[number] = replace(layer, mixer=replace(layer.mixer, pattern=SlidingWindow(sizes.radius)))
    return replace(parent, encoder=replace(parent.encoder, layers=tuple(layers)))


def _shared(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    return replace(parent, encoder=replace(parent.encoder, sharing=(0,) * sizes.layers))


def _linear(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    mixer = LinearAttention(sizes.heads, sizes.head_width, "elu+1")
    return _each_layer(parent, lambda layer: replace(layer, mixer=mixer))


def _replaced(parent: BuiltVariant, sizes: Sizes) -> BuiltVariant:
    """The head is replaced with the objective, because an MLM head would stay untrained."""
    return BuiltVariant(discriminator_spec(parent.encoder), {"kind": "replaced"})


VARIANTS = (
    Variant(
        "bert",
        None,
        "post-norm, learned positions, GELU; 15 % selected, of which 80 % masked, 10 % random, 10 % kept",
        "Devlin et al. 2019",
        lambda parent, sizes: parent,
    ),
    Variant(
        "disentangled",
        "bert",
        "positions: content and relative position disentangled in attention scores",
        "He et al. 2021; He, Gao & Chen 2023",
        _disentangled,
    ),
    Variant(
        "alibi",
        "bert",
        "positions: a linear distance penalty on attention scores",
        "Press, Smith & Lewis 2022",
        _alibi,
    ),
    Variant("rotary", "bert", "positions: queries and keys rotated", "Su et al. 2021", _rotary),
    Variant("mask-30", "rotary", "30 % of tokens selected instead of 15 %", "Wettig et al. 2023", _mask_more),
    Variant(
        "pre-norm", "mask-30", "norm before each sublayer instead of after", "Xiong et al. 2020", _norm_first
    ),
    Variant("geglu", "pre-norm", "gated feed-forward, narrower by a third", "Shazeer 2020", _gated),
    Variant(
        "local-global",
        "geglu",
        "sliding windows in two of every three layers",
        "Beltagy, Peters & Cohan 2020; Warner et al. 2024",
        _local,
    ),
    Variant(
        "shared",
        "rotary",
        "one set of weights shared by all layers: the same computation with fewer parameters",
        "Lan et al. 2020",
        _shared,
        equal=False,
    ),
    Variant(
        "replaced-token",
        "rotary",
        "detects replaced tokens instead of predicting masked ones",
        "Clark et al. 2020",
        _replaced,
    ),
    Variant(
        "linear",
        "bert",
        "linear attention with the feature map elu + 1",
        "Katharopoulos et al. 2020",
        _linear,
    ),
)
"""All variants, parents before children.

Positions are changed first: in so short a training, learned positions keep an encoder close to what word
frequencies alone predict, and further changes on top of them have no visible effect. Linear attention has no
scores to which a distance term could be added, so it is compared with the first variant.
"""
