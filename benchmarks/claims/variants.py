"""The encoders that are trained on text: each differs from ``rotary`` in one thing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.ablation.budget import body_parameters, fitted
from benchmarks.ablation.variants import Sizes
from unmask.spec import (
    Alibi,
    AttentionPosition,
    Classifier,
    Disentangled,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    LayerNorm,
    LearnedPositions,
    MaskedLM,
    NoPosition,
    PlainFeedForward,
    Pooler,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
    Transform,
)

SIZES = Sizes(width=64, layers=2, heads=4, feedforward=256, vocabulary=2048, tokens=64, radius=8)
ROWS = 16 * SIZES.tokens
"""Rows of the table of learned positions; training uses the first `Sizes.tokens`."""
MASKED: Mapping[str, Any] = {"kind": "masked", "rate": 0.3, "replacement": "mask"}


@dataclass(frozen=True)
class Variant:
    """An encoder and what it learns."""

    encoder: EncoderSpec
    objective: Mapping[str, Any] = field(default_factory=lambda: MASKED)
    repeated: bool = False
    """Read little text many times instead of much text once."""
    teacher: str | None = None
    """The variant, trained with the same seed, that it is distilled from."""


def rotary(share: int = 1) -> EncoderSpec:
    """BERT's layers with rotary positions; widths are divided by ``share``, those of heads excepted."""
    norm, width = LayerNorm(1e-12), SIZES.width // share
    mixer = SoftmaxAttention(SIZES.heads // share, SIZES.head_width, position=Rotary(10_000.0))
    layer = Layer(mixer, PlainFeedForward(SIZES.feedforward // share, "gelu"), norm)
    return EncoderSpec(
        width,
        Embedding(SIZES.vocabulary, width, norm=norm),
        (layer,) * SIZES.layers,
        heads=(MaskedLM(Transform(width, "gelu", norm)),),
        trained_tokens=ROWS,
    )


def each(encoder: EncoderSpec, change: Callable[[int, Layer], Layer], **also: Any) -> EncoderSpec:
    """Change every layer, given its number."""
    return replace(encoder, layers=tuple(change(*one) for one in enumerate(encoder.layers)), **also)


def mixing(encoder: EncoderSpec, **changes: Any) -> EncoderSpec:
    """Change the attention of every layer."""
    return each(encoder, lambda _, layer: replace(layer, mixer=replace(layer.mixer, **changes)))


def positioned(position: AttentionPosition) -> EncoderSpec:
    """Other positions."""
    return mixing(rotary(), position=position)


def learned() -> EncoderSpec:
    """A vector per position, added to the embedding."""
    plain = positioned(NoPosition())
    return replace(plain, embedding=replace(plain.embedding, positions=LearnedPositions(ROWS)))


def gated() -> EncoderSpec:
    """GeGLU, with biases, at the same number of parameters."""
    feedforward = GatedFeedForward(1, "gelu", in_bias=True, out_bias=True)
    changed = each(rotary(), lambda _, layer: replace(layer, feedforward=feedforward))
    return fitted(changed, body_parameters(rotary()))


def norm_first() -> EncoderSpec:
    """The norm before each part, and one after the last layer."""
    return each(
        rotary(), lambda _, layer: replace(layer, norm_first=True), final_norm=rotary().layers[0].norm
    )


def without_biases() -> EncoderSpec:
    """No bias in any layer."""
    norm = LayerNorm(1e-12, bias=False)
    bare = mixing(rotary(), query_bias=False, key_bias=False, value_bias=False, out_bias=False)
    return each(
        bare, lambda _, layer: replace(layer, norm=norm, feedforward=replace(layer.feedforward, bias=False))
    )


def without_embedding_norm() -> EncoderSpec:
    """The embedding enters the first layer as it is."""
    return replace(rotary(), embedding=replace(rotary().embedding, norm=None))


def local_global() -> EncoderSpec:
    """Windows in two of every three layers, the first layer excepted (Warner et al. 2024)."""
    window = SlidingWindow(SIZES.radius)
    return each(
        rotary(),
        lambda number, layer: (
            replace(layer, mixer=replace(layer.mixer, pattern=window)) if number % 3 else layer
        ),
    )


def paired(weight: float) -> Variant:
    """Sentence pairs, half of them exchanged, with next-sentence prediction of this weight."""
    encoder = rotary()
    encoder = replace(
        encoder,
        embedding=replace(encoder.embedding, segments=2),
        pooler=Pooler(),
        heads=(*encoder.heads, Classifier("next_sentence", 2, "pooler")),
    )
    masking = {key: value for key, value in MASKED.items() if key != "kind"}
    return Variant(
        encoder,
        {"kind": "sentence_pairs", "task": "next_sentence", "weight": weight, "masking": masking},
    )


def distilled(encoder: EncoderSpec) -> Variant:
    """The losses of DistilBERT (Sanh et al. 2019), with the masks of the others."""
    masking = {key: value for key, value in MASKED.items() if key != "kind"}
    return Variant(encoder, {"kind": "distillation", "masking": masking}, teacher="rotary")


REPLACED: Mapping[str, Any] = {"kind": "replaced", "masking": {"rate": 0.2, "replacement": "mask"}}
"""With its generator, as many operations by token as masked words at `MASKED`'s rate, to within 2 %."""


VARIANTS: Mapping[str, Variant] = {
    "rotary": Variant(rotary()),
    "learned": Variant(learned()),
    "alibi": Variant(positioned(Alibi())),
    "disentangled": Variant(
        positioned(Disentangled(ROWS, 32, shared_projections=True, table_norm=LayerNorm(1e-12)))
    ),
    "dynamic": Variant(rotary(), repeated=True),
    "static-1": Variant(rotary(), {**MASKED, "static_masks": 1}, repeated=True),
    "static-4": Variant(rotary(), {**MASKED, "static_masks": 4}, repeated=True),
    "pairs": paired(0.0),
    "pairs-nsp": paired(1.0),
    "shared": Variant(replace(rotary(), sharing=(0,) * SIZES.layers)),
    "geglu": Variant(gated()),
    "pre-norm": Variant(norm_first()),
    "no-biases": Variant(without_biases()),
    "no-embedding-norm": Variant(without_embedding_norm()),
    "local-global": Variant(local_global()),
    "replaced": Variant(rotary(), REPLACED),
    "half": Variant(rotary(2)),
    "half-distilled": distilled(rotary(2)),
    "quarter": Variant(rotary(4)),
    "quarter-distilled": distilled(rotary(4)),
}


POSITIONS = ("rotary", "learned", "alibi", "disentangled")
"""Variants that are also evaluated on longer texts."""

TEACHERS = frozenset(one.teacher for one in VARIANTS.values() if one.teacher is not None)
"""Variants whose trained encoders are kept."""


def rescaled(encoder: EncoderSpec, times: int) -> dict[str, EncoderSpec]:
    """Rotary positions changed for texts ``times`` as long as in training, without more training.

    ``interpolated``: positions are divided by ``times`` (Chen et al. 2023). ``ntk``: the base is raised so
    that the slowest angles are divided by ``times`` and the fastest stay ("NTK-aware" scaling).
    """
    mixer = encoder.layers[0].mixer
    if not isinstance(mixer, SoftmaxAttention) or not isinstance(mixer.position, Rotary):
        return {}
    position, width = mixer.position, mixer.head_width
    base = position.theta * times ** (width / (width - 2))
    return {
        "interpolated": mixing(encoder, position=replace(position, scale=float(times))),
        "ntk": mixing(encoder, position=replace(position, theta=base)),
    }
