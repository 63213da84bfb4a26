"""UltraBERT (DMIS Lab 2026): EuroBERT's layers in ModernBERT's arrangement.

Two of three layers read a window, each kind of layer with its own theta. The MLM head has two dense layers
and a matrix of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.families import eurobert
from unmask.families.common import SLIDING, WHOLE, Kind, kinds_and_radius, read_kinds
from unmask.families.family import CheckpointInfo, Family
from unmask.families.heads import SPAN, HeadLayout
from unmask.families.rope import read_rope_by_kind, write_rope_by_kind
from unmask.spec import (
    AttentionPattern,
    Classifier,
    DoubleTransform,
    EncoderSpec,
    FullAttention,
    MaskedLM,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
)
from unmask.spec.check import require_positive, require_size
from unmask.spec.config_keys import Arguments, Compat, KeyGroup, changed, in_range
from unmask.spec.tensor_map import Copy, Rename

Number = TypeVar("Number", int, float)

THETA: dict[Kind, float] = {WHOLE: 2_560_000.0, SLIDING: 10_000.0}
"""The default theta of each kind of layer."""


def _read_layers(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The kind of each layer, the radius, and thetas; the authors' config.json lists windows and thetas.

    A window of 0, or none, is a layer that reads the whole text.
    """
    layers, windows, thetas = (
        arguments["layers"],
        config.get_list("attention_windows", int),
        config.get_list("rope_theta", float),
    )
    for name, listed in (("attention_windows", windows), ("rope_theta", thetas)):
        if listed is not None and len(listed) != layers:
            raise CorruptCheckpoint(f"{config.name} says {name} of {len(listed)} layers and has {layers}")
    radius, old = config.get("sliding_window", 128), dict(THETA)
    in_range(config, "sliding_window", radius, require_size)
    if windows is None:
        kinds = read_kinds(config, layers, lambda layer: SLIDING if (layer + 1) % 3 else WHOLE)
    else:
        kinds = read_kinds(config, layers, lambda layer: SLIDING if windows[layer] else WHOLE)
        radius = _by_kind(config, "attention_windows", kinds, windows).get(SLIDING, radius)
        in_range(config, "attention_windows", radius, require_size)
    if thetas is not None:
        old |= _by_kind(config, "rope_theta", kinds, thetas)
    for theta in old.values():
        in_range(config, "rope_theta", theta, require_positive)
    return {"kinds": kinds, "radius": radius, "rotary": read_rope_by_kind(config, old)}


def _by_kind(
    config: JsonSettings, key: str, kinds: Sequence[Kind], values: Sequence[Number | None]
) -> dict[Kind, Number]:
    """The value of each kind of layer, from a value a layer, which may be null.

    Raises:
        UnknownArchitecture: layers of one kind differ.
    """
    by_kind: dict[Kind, Number] = {}
    for kind, value in zip(kinds, values, strict=True):
        if value is not None and by_kind.setdefault(kind, value) != value:
            raise UnknownArchitecture(
                f"{config.name} says {key} is {quoted(values)}; only one value for a type of layers is built"
            )
    return by_kind


def _write_layers(encoder: EncoderSpec) -> Mapping[str, Any]:
    kinds, radius = kinds_and_radius(encoder, 128)
    return {"layer_types": kinds, "sliding_window": radius, **write_rope_by_kind(encoder, THETA)}


KEYS = (
    eurobert.ACTIVATION,
    *changed(
        eurobert.LLAMA_KEYS,
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        intermediate_size=11008,
        vocab_size=32000,
        rms_norm_eps=1e-6,
        max_position_embeddings=32768,
    ),
    *eurobert.KEYS[-1:],
    KeyGroup(_read_layers, _write_layers),
)


def spec(*, kinds: tuple[Kind, ...], radius: int, rotary: Mapping[Kind, Rotary], **sizes: Any) -> EncoderSpec:
    """An UltraBERT of the given sizes; ``sizes`` are other arguments of EuroBERT's `spec`."""
    encoder = eurobert.spec(rotary=rotary[WHOLE], **sizes)
    (layer, *_) = encoder.layers
    assert isinstance(layer.mixer, SoftmaxAttention)
    patterns: dict[Kind, AttentionPattern] = {WHOLE: FullAttention(), SLIDING: SlidingWindow(radius)}
    of_kind = {
        kind: replace(layer, mixer=replace(layer.mixer, pattern=pattern, position=rotary[kind]))
        for kind, pattern in patterns.items()
    }
    return replace(encoder, layers=tuple(of_kind[kind] for kind in kinds))


def parts(info: CheckpointInfo) -> EncoderSpec:
    """The encoder unchanged; the head keys of config.json are checked even without a head."""
    info.config.require_one_of("classifier_pooling", "cls", "mean")
    info.config.get("prediction_head_size", 768)
    return info.encoder


def _masked(info: CheckpointInfo, width: int) -> MaskedLM:
    (inner, *_) = info.shapes.get("head.linear1.weight", (info.config.get("prediction_head_size", 768),))
    transform = DoubleTransform(inner, width, "gelu_tanh", bias=False)
    return MaskedLM(transform, info.config.get("tie_word_embeddings", False), bias=False)


def _write_masked(head: MaskedLM) -> Mapping[str, Any]:
    assert isinstance(head.transform, DoubleTransform)
    return {"tie_word_embeddings": head.tied, "prediction_head_size": head.transform.inner}


def _classifier(info: CheckpointInfo, classes: int) -> Classifier:
    """The head called ``classifier``; only the class it was saved from determines its role."""
    if info.saved_from("TokenClassification"):
        return Classifier("tokens", classes, "tokens")
    mean = info.config.get("classifier_pooling", "cls") == "mean"
    return Classifier("sequence", classes, "mean" if mean else "first")


def _write_classifier(head: Classifier) -> Mapping[str, Any]:
    pooling = "mean" if head.reads == "mean" else "cls"
    return {"classifier_pooling": pooling} if head.role == "sequence" else {}


HEADS = (
    HeadLayout(
        "head.linear2.weight",
        ("masked",),
        _masked,
        (
            Rename("head.linear1", "heads.masked.transform.inner"),
            Rename("head.linear2", "heads.masked.transform.outer"),
            Rename("cls", "heads.masked.decoder"),
            Copy("cls.weight", "embedding.words.weight"),
        ),
        _write_masked,
    ),
    HeadLayout(
        "classifier.weight",
        ("sequence", "tokens"),
        _classifier,
        (Rename("classifier", "heads.sequence.out"), Rename("classifier", "heads.tokens.out")),
        _write_classifier,
    ),
    SPAN,
)

ULTRABERT = Family(
    name="ultrabert",
    model_types=("ultrabert",),
    stem="Ultrabert",
    paper="DMIS Lab 2026",
    keys=KEYS,
    encoder_rows=eurobert.ROWS,
    spec=spec,
    prefix="model.",  # of the modules that adapters name; files have the other
    other_prefixes=("ultrabert.",),
    heads=HEADS,
    parts=parts,
)
