"""EmbeddingGemma 2 (Google DeepMind 2026), the tower that reads text: Gemma 4's layers in both directions.

Gemma 3's four norms a layer, with plain scales; values are normalized too, and scores are not divided. Layers
that read the whole text have wider heads. Each layer reads the embedding once more through a gate, and its
output is multiplied by a stored number. The last states are mapped from 512 to 768 features. A checkpoint
with towers of images and sound is read without them.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted
from unmask.families import eurobert, gemma3
from unmask.families.common import SLIDING, WHOLE, Kind, biases, kinds_and_radius, read_kinds
from unmask.families.family import SEARCH_LANGUAGES, Family, Release
from unmask.families.rope import read_rope_by_kind, write_rope_by_kind
from unmask.spec import (
    Activation,
    AttentionPattern,
    Embedding,
    EmbeddingGate,
    EncoderSpec,
    FullAttention,
    GatedFeedForward,
    Layer,
    QueryKeyNorm,
    RMSNorm,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
)
from unmask.spec.check import require_size
from unmask.spec.config_keys import Arguments, Compat, Field, Key, KeyGroup, changed, in_range, only
from unmask.spec.tensor_map import Ignore, Rename

RADIUS = 512
"""The default of ``sliding_window``, which is a radius here."""

Sizes = tuple[int, int]
"""Of a layer's attention: the width of a head, and the heads of keys and values."""

SIZES: Mapping[str, Sizes] = {"head_dim": (256, 512), "num_key_value_heads": (2, 1)}
"""The default of layers with a window, and of those that read the whole text."""

GLOBAL = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""What configs without ``per_layer_config`` call the sizes of layers that read the whole text."""


def _read_kinds(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The kind of each layer. As in `transformers`, the last reads the whole text whatever is said of it."""
    every, radius = config.get("sliding_window_pattern", 6), config.get("sliding_window", RADIUS)
    in_range(config, "sliding_window_pattern", every, require_size)
    in_range(config, "sliding_window", radius, require_size)
    kinds = read_kinds(config, arguments["layers"], lambda layer: SLIDING if (layer + 1) % every else WHOLE)
    return {"kinds": (*kinds[:-1], WHOLE), "radius": radius}


def _write_kinds(encoder: EncoderSpec) -> Mapping[str, Any]:
    kinds, radius = kinds_and_radius(encoder, RADIUS)
    if kinds[-1] != WHOLE:
        raise UnknownArchitecture(
            "a config.json of this family cannot say that the last layer has a window; give it full attention"
        )
    return {"layer_types": kinds, "sliding_window": max(1, radius)}


def _read_sizes(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The sizes of each layer: those of the whole config but where ``per_layer_config`` has others."""
    usual = {name: _size(config, name, default) for name, (default, _) in SIZES.items()}
    listed = config.get_optional("per_layer_config", dict)
    if listed is None:
        wide = {name: _size(config, GLOBAL[name], default) for name, (_, default) in SIZES.items()}
        by_layer = {layer: wide for layer, kind in enumerate(arguments["kinds"]) if kind == WHOLE}
    else:
        by_layer = dict(_listed_sizes(config, listed, arguments["layers"]))
    sizes = ({**usual, **by_layer.get(layer, {})} for layer in range(arguments["layers"]))
    return {"sizes": tuple((size["head_dim"], size["num_key_value_heads"]) for size in sizes)}


def _size(config: JsonSettings, name: str, default: int) -> int:
    size = config.get(name, default)
    in_range(config, name, size, require_size)
    return size


def _listed_sizes(
    config: JsonSettings, listed: Mapping[str, Any], layers: int
) -> list[tuple[int, dict[str, int]]]:
    """What ``per_layer_config`` says of some layers, by their numbers."""
    said = []
    for number, values in listed.items():
        name = f"{config.name}'s per_layer_config"
        if not (number.isascii() and number.isdecimal() and int(number) < layers):
            raise CorruptCheckpoint(
                f"{name} names layer {quoted(number)}; layers are 0 to {layers - 1} (num_hidden_layers)"
            )
        if not isinstance(values, dict):
            raise CorruptCheckpoint(f"{name} says of layer {number} {quoted(values)}; it must be an object")
        settings = JsonSettings(f"{name} of layer {number}", values)
        for key in settings.values.keys() - SIZES.keys():
            raise UnknownArchitecture(f"{settings.name} says {key}; only {' and '.join(SIZES)} are built")
        said.append((int(number), {key: _size(settings, key, 1) for key in values}))
    return said


def _sizes_of(layer: Layer) -> Sizes:
    assert isinstance(layer.mixer, SoftmaxAttention)
    return layer.mixer.head_width, layer.mixer.qkv_heads[1]


def _write_sizes(encoder: EncoderSpec) -> Mapping[str, Any]:
    sizes = [_sizes_of(layer) for layer in encoder.layers]
    digits = len(str(len(sizes) - 1))
    return {
        **dict(zip(SIZES, sizes[0], strict=True)),
        "per_layer_config": {
            str(layer).zfill(digits): dict(zip(SIZES, size, strict=True))
            for layer, size in enumerate(sizes)
            if size != sizes[0]
        },
    }


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    return {"rotary": read_rope_by_kind(config, gemma3.THETA)}


def _gate_width(encoder: EncoderSpec) -> int | None:
    return None if encoder.gate is None else encoder.gate.width


KEYS = (
    gemma3.KEYS[0],
    *changed(
        eurobert.LLAMA_KEYS,
        num_hidden_layers=24,
        hidden_size=512,
        num_attention_heads=4,
        num_key_value_heads=...,
        head_dim=...,
        intermediate_size=2048,
        vocab_size=262_144,
        rms_norm_eps=1e-6,
        max_position_embeddings=262_144,
    ),
    Key("hidden_size_per_layer_input", "gate", 512, field=Field(_gate_width, require_size)),
    Key(
        "embedding_dim",
        "output_width",
        768,
        field=Field(lambda encoder: encoder.state_width, require_size),
    ),
    KeyGroup(_read_kinds, _write_kinds),
    KeyGroup(_read_sizes, _write_sizes),
    KeyGroup(_read_rotary, lambda encoder: write_rope_by_kind(encoder, gemma3.THETA)),
    only("num_kv_shared_layers", 0, None),
    only("attention_k_eq_v", False, None),
    only("enable_moe_block", False, None),
    only("use_double_wide_mlp", False, None),
    only("vocab_size_per_layer_input", 0, None),
    only("final_logit_softcapping", None),
)

_LAYER = "layers.{l}."
_GATE = _LAYER + "ple_block."
_TOWERS = ("vision_tower", "embed_vision", "audio_tower", "embed_audio")

ROWS = (
    *gemma3.ROWS,
    Rename(_LAYER + "layer_scalar", _LAYER + "factor"),
    Rename(_GATE + "per_layer_input_gate", _LAYER + "gate.inner"),
    Rename(_GATE + "per_layer_projection", _LAYER + "gate.outer"),
    Rename(_GATE + "post_per_layer_input_norm", _LAYER + "gate.norm"),
    Rename("ple.per_layer_model_projection", "layer_inputs.map"),
    Rename("ple.per_layer_projection_norm", "layer_inputs.norm"),
    Rename("embedding_projection", "final_map"),
    *(Ignore(f"{tower}.*", "of a tower of images or sound, which reads no text") for tower in _TOWERS),
)


def spec(
    *,
    width: int,
    heads: int,
    sizes: tuple[Sizes, ...],
    feedforward: int,
    vocabulary: int,
    layers: int,
    kinds: tuple[Kind, ...],
    radius: int,
    rotary: Mapping[Kind, Rotary],
    gate: int,
    output_width: int,
    activation: Activation,
    attention_bias: bool,
    attention_dropout: float,
    eps: float,
    init_std: float,
    padding_id: int | None,
    trained_tokens: int,
) -> EncoderSpec:
    """An EmbeddingGemma 2 of the given sizes, one layer for each of ``kinds``; ``layers`` is their number."""
    norm = RMSNorm(eps)
    patterns: dict[Kind, AttentionPattern] = {WHOLE: FullAttention(), SLIDING: SlidingWindow(radius)}
    return EncoderSpec(
        width=width,
        embedding=Embedding(vocabulary=vocabulary, width=width, padding_id=padding_id, scale=width**0.5),
        layers=tuple(
            Layer(
                mixer=SoftmaxAttention(
                    heads,
                    head_width,
                    patterns[kind],
                    rotary[kind],
                    **biases(attention_bias),
                    dropout=attention_dropout,
                    key_value_heads=None if key_value_heads == heads else key_value_heads,
                    query_key_norm=QueryKeyNorm(norm, values=True),
                    score_scale=1.0,
                ),
                feedforward=GatedFeedForward(feedforward, activation),
                norm=norm,
                norm_first=True,
                output_norms=True,
                gate=EmbeddingGate(gate, activation),
                factor=True,
            )
            for kind, (head_width, key_value_heads) in zip(kinds, sizes, strict=True)
        ),
        final_norm=norm,
        output_width=output_width,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


EMBEDDING_GEMMA2 = Family(
    name="embedding_gemma2",
    model_types=("embedding_gemma2_text", "embedding_gemma2"),
    stem="EmbeddingGemma2",
    paper="Google DeepMind 2026",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="language_model.",
    other_prefixes=("model.language_model.", "model."),
    inner_configs={"embedding_gemma2": "text_config"},
    releases=(Release("google/embeddinggemma-2", use=SEARCH_LANGUAGES),),
    roles=(),
    classes={frozenset(): "TextModel"},
)
