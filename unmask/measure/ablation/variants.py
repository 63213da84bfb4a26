"""The designs that are compared: each is its parent with one thing changed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.errors import InvalidRequest
from unmask.learn.objectives.generator import discriminator_spec
from unmask.measure.ablation.budget import body_parameters, fitted
from unmask.model.spec import (
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
from unmask.model.spec.check import require_at_least

WHOLE_EVERY = 3
"""Of layers with windows, every third sees everything, beginning with the first (Warner et al. 2024)."""
BUCKETS_SHARE = 4
"""Disentangled distances are merged into a table of this part of the longest text on each side."""


@dataclass(frozen=True)
class Sizes:
    """How large the designs are. Those of the first one; others keep its number of parameters."""

    width: int = 64
    layers: int = 4
    heads: int = 4
    feedforward: int = 256
    vocabulary: int = 2048
    tokens: int = 64
    """Of the longest text, special ones included."""
    radius: int = 8
    """Of windows; small beside ``tokens``, or they would see nearly all."""

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
    """What is trained, and how."""

    encoder: EncoderSpec
    objective: Mapping[str, Any]
    """As the ``[objective]`` of a run file."""


Change = Callable[[BuiltVariant, Sizes], BuiltVariant]


@dataclass(frozen=True)
class Variant:
    """One design."""

    name: str
    parent: str | None
    """The design that it differs from in one thing; None for the first."""
    change: str
    """What that is, for people."""
    source: str
    """Who proposed it."""
    apply: Change = field(repr=False)
    """From the parent's variant to this one's; the first is given a bare one."""
    equal: bool = True
    """Whether feed-forward networks are made wider or narrower until parameters are those of the first."""


def build_variant(name: str, sizes: Sizes) -> BuiltVariant:
    """A design at these sizes, with the first one's number of parameters where that is fair.

    Raises:
        InvalidRequest: there is no such design, or the sizes cannot be built.
    """
    variant = by_name(name)
    made = _unfitted(variant, sizes)
    if not variant.equal:
        assert variant.parent is not None
        return variant.apply(build_variant(variant.parent, sizes), sizes)
    return replace(made, encoder=fitted(made.encoder, body_parameters(first(sizes).encoder)))


def by_name(name: str) -> Variant:
    """The design of that name."""
    found = next((variant for variant in VARIANTS if variant.name == name), None)
    if found is None:
        raise InvalidRequest(
            f"there is no design {name!r}; there are {', '.join(one.name for one in VARIANTS)}"
        )
    return found


def first(sizes: Sizes) -> BuiltVariant:
    """BERT (Devlin et al. 2019) without what its second task needs: segments, pooler, pairs of sentences.

    Dropout is left out of it and of all others: no text is read twice.
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
    """Positions in attention, and none added to words."""
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
    """Biases stay, so that the gate is all that changes."""
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
    """The head goes with the objective: a masked one would stay untrained."""
    return BuiltVariant(discriminator_spec(parent.encoder), {"kind": "replaced"})


VARIANTS = (
    Variant(
        "bert",
        None,
        "post-norm, learned positions, GELU; 15 % chosen, of them 80 % masked, 10 % random, 10 % kept",
        "Devlin et al. 2019",
        lambda parent, sizes: parent,
    ),
    Variant(
        "disentangled",
        "bert",
        "positions: content and distance apart in every score",
        "He et al. 2021; He, Gao & Chen 2023",
        _disentangled,
    ),
    Variant("alibi", "bert", "positions: a penalty per distance", "Press, Smith & Lewis 2022", _alibi),
    Variant("rotary", "bert", "positions: queries and keys turned", "Su et al. 2021", _rotary),
    Variant("mask-30", "rotary", "30 % of tokens chosen, not 15 %", "Wettig et al. 2023", _mask_more),
    Variant("pre-norm", "mask-30", "norms before each part, not after", "Xiong et al. 2020", _norm_first),
    Variant("geglu", "pre-norm", "feed-forward with a gate, narrower by a third", "Shazeer 2020", _gated),
    Variant(
        "local-global",
        "geglu",
        "windows in two layers of three",
        "Beltagy, Peters & Cohan 2020; Warner et al. 2024",
        _local,
    ),
    Variant(
        "shared",
        "rotary",
        "one set of weights for all layers: the same computation with fewer parameters",
        "Lan et al. 2020",
        _shared,
        equal=False,
    ),
    Variant(
        "replaced-token",
        "rotary",
        "finds replaced tokens instead of predicting masked ones",
        "Clark et al. 2020",
        _replaced,
    ),
    Variant("linear", "bert", "attention by feature maps, elu + 1", "Katharopoulos et al. 2020", _linear),
)
"""Every design, parents before children.

Positions come first: in so short a training, learned ones keep an encoder near what frequencies alone
foretell, and what is changed beside them does not show. Linear attention has no scores that a distance could
enter, so it is compared with the first design.
"""
