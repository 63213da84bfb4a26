"""ESM C (ESM Team 2024): an encoder of proteins with Llama's names of tensors.

Pre-norm layers with rotary positions and SwiGLU, queries and keys normalized over all heads. What a layer's
parts add is divided by the square root of the number of layers over 36. The epsilon of norms is not in
config.json. A text of several chains is one text here: the ``sequence_id`` by which `transformers` can keep
chains from reading each other is an input, not a property of the encoder.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families.common import with_every_layer
from unmask.families.eurobert import ACTIVATION, LLAMA_KEYS, MLP_BIAS, ROTARY
from unmask.families.eurobert import spec as eurobert_spec
from unmask.families.family import CheckpointInfo, Family, Release
from unmask.families.heads import classifier, dense_sequence, masked_words
from unmask.families.qwen3 import ROWS
from unmask.spec import (
    Classifier,
    EncoderSpec,
    LayerNorm,
    MaskedLM,
    QueryKeyNorm,
    Transform,
)
from unmask.spec.config_keys import Arguments, Compat, KeyGroup, changed, only

EPS = 1e-5
"""The epsilon of all norms."""
UNSCALED_LAYERS = 36
"""An encoder of this many layers adds what its parts give as it is."""


def output_scale(layers: int) -> float:
    """The factor of what each part adds in an encoder of so many layers."""
    scale: float = (UNSCALED_LAYERS / layers) ** 0.5
    return scale


def _read_heads(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Refuses heads that share keys and values, and heads whose features are not as many as the width."""
    heads, width = arguments["heads"], arguments["width"]
    if arguments["key_value_heads"] not in (None, heads):
        raise UnknownArchitecture(
            f"{config.name} says num_key_value_heads is {arguments['key_value_heads']} and "
            f"num_attention_heads is {heads}; in this family they are equal"
        )
    if arguments["head_width"] is not None and arguments["head_width"] * heads != width:
        raise UnknownArchitecture(
            f"{config.name} says head_dim is {arguments['head_width']} and num_attention_heads is {heads}; "
            f"in this family their product is hidden_size, which is {width}"
        )
    return {}


def _check_scale(encoder: EncoderSpec) -> Mapping[str, Any]:
    """No key says the factor of what parts add: the number of layers does."""
    scale, wanted = encoder.layers[0].output_scale, output_scale(len(encoder.layers))
    if scale != wanted:
        raise UnknownArchitecture(
            f"a config.json of this family cannot say that what parts add is multiplied by {scale:g}; with "
            f"{len(encoder.layers)} layers it is multiplied by {wanted:g}"
        )
    return {}


KEYS = (
    ACTIVATION,
    *changed(
        LLAMA_KEYS,
        num_hidden_layers=80,
        hidden_size=2560,
        num_attention_heads=40,
        intermediate_size=6912,
        vocab_size=64,
        rms_norm_eps=...,
        max_position_embeddings=2048,
    ),
    ROTARY,
    MLP_BIAS,
    only("token_classification_bias", True),
    KeyGroup(_read_heads, _check_scale),
)


def spec(*, layers: int, **sizes: Any) -> EncoderSpec:
    """An ESM C of the given sizes; ``sizes`` are other arguments of EuroBERT's `spec`."""
    encoder = eurobert_spec(layers=layers, eps=EPS, **sizes)
    bare = LayerNorm(EPS, bias=False)
    return with_every_layer(
        replace(encoder, final_norm=bare),
        mixer={"query_key_norm": QueryKeyNorm(bare, "all")},
        norm=LayerNorm(EPS),
        output_scale=output_scale(layers),
    )


def _masked(info: CheckpointInfo, width: int) -> MaskedLM:
    """The head, whose matrix is its own whatever config.json says."""
    return MaskedLM(Transform(width, "gelu", LayerNorm(EPS)), tied=False)


HEADS = (
    replace(
        masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.bias", "lm_head.decoder"),
        make=_masked,
    ),
    dense_sequence("tanh", dense="classifier.dense", name="classifier.out_proj"),
    classifier("tokens", "score", lambda info, classes: Classifier("tokens", classes, "tokens")),
)


def _sizes(layers: int, width: int, feedforward: int) -> Mapping[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": feedforward,
    }


PUBLISHED = (
    Release("biohub/ESMC-300M", _sizes(30, 960, 2560)),
    Release("biohub/ESMC-600M", _sizes(36, 1152, 3072)),
    Release("biohub/ESMC-6B", _sizes(80, 2560, 6912)),
)

ESMC = Family(
    name="esmc",
    model_types=("esmc",),
    stem="Esmc",
    paper="ESM Team 2024",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="esmc.",
    heads=HEADS,
    releases=PUBLISHED,
    released={"pad_token_id": 1},
    license="MIT",
)
