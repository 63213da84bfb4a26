"""Gemma 3 (Gemma Team 2025) without its images, read as an encoder: EmbeddingGemma (Vera et al. 2025).

Norms stand before and after each part of a layer and multiply by 1 plus their weight; word vectors are
multiplied by the root of the width; queries and keys of each head are normalized. Five of six layers read a
window, with a theta of their own. In Gemma 3 itself the windows are causal too; such layers are refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families import eurobert, qwen3
from unmask.families.common import (
    ACTIVATIONS,
    SLIDING,
    WHOLE,
    Kind,
    biases,
    kinds_and_radius,
    read_kinds,
)
from unmask.families.family import SEARCH_LANGUAGES, Family, Release
from unmask.families.rope import read_rope_by_kind, write_rope_by_kind
from unmask.spec import (
    Activation,
    AttentionPattern,
    CausalAttention,
    Embedding,
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
from unmask.spec.check import require_positive, require_size
from unmask.spec.config_keys import (
    Arguments,
    Compat,
    Field,
    Key,
    KeyGroup,
    changed,
    in_range,
    only,
    softmax_of,
)
from unmask.spec.tensor_map import Rename

THETA: dict[Kind, float] = {WHOLE: 1_000_000.0, SLIDING: 10_000.0}
"""The default theta of each kind of layer."""


def _read_kinds(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The pattern of each layer: in old configs every sixth reads the whole text, or as often as they say."""
    every, window = 6, config.get("sliding_window", 4096)
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        every = config.get(name, every)
        in_range(config, name, every, require_size)
    in_range(config, "sliding_window", window, require_size)
    kinds = read_kinds(config, arguments["layers"], lambda layer: SLIDING if (layer + 1) % every else WHOLE)
    both = config.get_optional("use_bidirectional_attention", bool) or False
    if not both and SLIDING in kinds:
        raise UnknownArchitecture(
            f"{config.name} does not say use_bidirectional_attention, and layers with causal windows are not "
            "built; use a checkpoint that reads in both directions, such as EmbeddingGemma"
        )
    # The config counts the tokens on both sides.
    return {"kinds": kinds, "radius": window // 2, "causal": not both}


def _write_kinds(encoder: EncoderSpec) -> Mapping[str, Any]:
    kinds, radius = kinds_and_radius(encoder, 256)
    return {
        "layer_types": kinds,
        "sliding_window": max(1, 2 * radius),
        "use_bidirectional_attention": not encoder.causal,
    }


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Rotary positions by kind of layer: in one object in new configs, as two numbers in old ones."""
    names: dict[Kind, str] = {WHOLE: "rope_theta", SLIDING: "rope_local_base_freq"}
    old = {kind: config.get(name, THETA[kind]) for kind, name in names.items()}
    for kind, name in names.items():
        in_range(config, name, old[kind], require_positive)
    return {"rotary": read_rope_by_kind(config, old, config.get_optional("rope_scaling", dict))}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    return write_rope_by_kind(encoder, THETA)


def _scored_width(encoder: EncoderSpec) -> int:
    mixer = softmax_of(encoder)
    return mixer.head_width if mixer.score_scale is None else round(mixer.score_scale**-2)


KEYS = (
    Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
    *changed(
        eurobert.LLAMA_KEYS,
        num_hidden_layers=26,
        hidden_size=2304,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        intermediate_size=9216,
        vocab_size=262_208,
        rms_norm_eps=1e-6,
        max_position_embeddings=131_072,
    ),
    Key("query_pre_attn_scalar", "scored_width", 256, field=Field(_scored_width, require_size)),
    KeyGroup(_read_kinds, _write_kinds),
    KeyGroup(_read_rotary, _write_rotary),
    only("attn_logit_softcapping", None),
    only("final_logit_softcapping", None),
)

_LAYER = "layers.{l}."

ROWS = (
    *(row for row in qwen3.ROWS if getattr(row, "theirs", "") != _LAYER + "post_attention_layernorm"),
    Rename(_LAYER + "post_attention_layernorm", _LAYER + "attention_output_norm"),
    Rename(_LAYER + "pre_feedforward_layernorm", _LAYER + "feedforward_norm"),
    Rename(_LAYER + "post_feedforward_layernorm", _LAYER + "feedforward_output_norm"),
)


def spec(
    *,
    width: int,
    heads: int,
    key_value_heads: int,
    head_width: int,
    feedforward: int,
    vocabulary: int,
    layers: int,
    kinds: tuple[Kind, ...],
    radius: int,
    causal: bool,
    rotary: Mapping[Kind, Rotary],
    scored_width: int,
    activation: Activation,
    attention_bias: bool,
    attention_dropout: float,
    eps: float,
    init_std: float,
    padding_id: int | None,
    trained_tokens: int,
) -> EncoderSpec:
    """A Gemma 3 of the given sizes, one layer for each of ``kinds``; ``layers`` is their number.

    Scores are products divided by the root of ``scored_width``.
    """
    norm = RMSNorm(eps, one_plus=True)
    patterns: dict[Kind, AttentionPattern] = {
        WHOLE: CausalAttention() if causal else FullAttention(),
        SLIDING: SlidingWindow(radius),
    }
    mixer = SoftmaxAttention(
        heads,
        head_width,
        **biases(attention_bias),
        dropout=attention_dropout,
        key_value_heads=None if key_value_heads == heads else key_value_heads,
        query_key_norm=QueryKeyNorm(norm),
        score_scale=None if scored_width == head_width else scored_width**-0.5,
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(vocabulary=vocabulary, width=width, padding_id=padding_id, scale=width**0.5),
        layers=tuple(
            Layer(
                mixer=replace(mixer, pattern=patterns[kind], position=rotary[kind]),
                feedforward=GatedFeedForward(feedforward, activation),
                norm=norm,
                norm_first=True,
                output_norms=True,
            )
            for kind in kinds
        ),
        final_norm=norm,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


CLASSES = {
    frozenset[str](): "TextModel",
    frozenset({"masked"}): "ForCausalLM",
    frozenset({"sequence"}): "TextForSequenceClassification",
}
"""The suffixes of class names."""

PUBLISHED = (
    Release(
        "google/embeddinggemma-300m",
        {
            "num_hidden_layers": 24,
            "hidden_size": 768,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "intermediate_size": 1152,
            "vocab_size": 262_144,
            "sliding_window": 512,
            "max_position_embeddings": 2048,
        },
        "Vera et al. 2025",
        use=SEARCH_LANGUAGES,
    ),
)

GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3_text",),
    stem="Gemma3",
    paper="Gemma Team 2025",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="model.",
    heads=qwen3.heads_of_decoder(tied=True),
    releases=PUBLISHED,
    released={"use_bidirectional_attention": True},
    roles=(),
    license="Gemma",
    classes=CLASSES,
)
