"""GTE (Zhang et al. 2024, mGTE): the encoders called GTE-en-MLM, GTE-multilingual and GTE v1.5.

Post-norm layers like BERT's, with GeGLU and rotary positions, and biases on attention and on the feed-forward
output matrix. The authors' code calls the type ``new``, `transformers` calls it ``gte``; the tensor names are
the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.common import ENCODER_KEYS, LARGE
from unmask.families.family import SEARCH, SEARCH_LANGUAGES, Family, Release
from unmask.families.heads import POOLED_OR_TOKENS, masked_words
from unmask.families.nomicbert import LINEAR_MODULES
from unmask.families.nomicbert import spec as nomic_spec
from unmask.families.rope import read_rope, rotary_of, write_rope
from unmask.spec import EncoderSpec
from unmask.spec.check import require_positive
from unmask.spec.config_keys import Arguments, Compat, Key, KeyGroup, changed, in_range, only
from unmask.spec.tensor_map import Rename, Reorder

THETA = {"gte": 160_000.0, "new": 10_000.0}
"""The default theta by ``model_type``."""


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Rotary positions; old configs scale them by ``ntk``, equally for texts of every length.

    A factor f multiplies theta by f and divides positions by f ** (2 / width of a head).
    """
    theta = config.get("rope_theta", THETA[config.get("model_type", "gte")])
    scaling = config.get_optional("rope_scaling", dict)
    rotary = read_rope(config.get_optional("rope_parameters", dict) or {}, theta)
    if scaling is None:
        return {"rotary": rotary}
    settings = JsonSettings("config.json's rope_scaling", scaling)
    settings.require_one_of("type", "ntk")
    settings.require_one_of("mixed_b", None)
    factor = settings.get("factor", 1.0)
    in_range(settings, "factor", factor, require_positive)
    head_width = max(1, arguments["width"] // arguments["heads"])
    stretched = replace(rotary, theta=rotary.theta * factor, scale=factor ** (2 / head_width))
    return {"rotary": stretched}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"rope_parameters": write_rope(rotary_of(encoder)), "rope_scaling": None}


KEYS = (
    only("is_decoder", False),
    only("position_embedding_type", "rope"),
    only("layer_norm_type", "layer_norm"),
    only("pack_qkv", True),
    only("logn_attention_scale", False),
    *changed(
        ENCODER_KEYS,
        vocab_size=250_048,
        type_vocab_size=1,
        attention_probs_dropout_prob=0.0,
    ),
    Key("head_dim", "head_width"),
    KeyGroup(_read_rotary, _write_rotary),
    Key("max_position_embeddings", "trained_tokens", 8192),
)


def _second_half_first(encoder: EncoderSpec) -> tuple[int, ...]:
    return (1, 0)


_LAYER = "encoder.layer.{l}."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Rename(_LAYER + "attention.qkv_proj", "layers.{l}.attention.qkv"),
    Rename(_LAYER + "attention.o_proj", "layers.{l}.attention.out"),
    Rename(_LAYER + "attn_ln", "layers.{l}.attention_norm"),
    # The activation applies to the second half of their matrix.
    Reorder(_LAYER + "mlp.up_gate_proj", "layers.{l}.feedforward.inner", _second_half_first),
    Rename(_LAYER + "mlp.down_proj", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "mlp_ln", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)

spec = partial(nomic_spec, bias=True)
"""A GTE of the given sizes."""

HEADS = (
    masked_words(
        "lm_head.dense", "lm_head.norm", "lm_head.decoder.bias", "lm_head.decoder", activation="gelu"
    ),
    POOLED_OR_TOKENS,
)

_STRETCHED = {"rope_theta": 20_000.0, "rope_scaling": {"type": "ntk", "factor": 8.0}}
_ENGLISH = {"vocab_size": 30_528, "type_vocab_size": 2, "rope_theta": 160_000.0}

PUBLISHED = (
    Release(
        "Alibaba-NLP/gte-multilingual-base",
        {"pad_token_id": 1, **_STRETCHED},
        roles=(),
        use=SEARCH_LANGUAGES,
    ),
    Release(
        "Snowflake/snowflake-arctic-embed-m-v2.0",
        {"pad_token_id": 1, "rope_theta": 160_000.0},
        "Yu et al. 2024",
        roles=(),
        use=SEARCH_LANGUAGES,
    ),
    Release(
        "NovaSearch/stella_en_400M_v5",
        {**LARGE, **_ENGLISH, "rope_scaling": {"type": "ntk", "factor": 2.0}},
        "Zhang, Li, Zeng & Wang 2024",
        "MIT",
        roles=(),
        use=SEARCH,
    ),
)

GTE = Family(
    name="gte",
    model_types=("gte", "new"),
    stem="Gte",
    paper="Zhang et al. 2024",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="gte.",
    heads=HEADS,
    releases=PUBLISHED,
    other_prefixes=("new.",),
    linear_modules=LINEAR_MODULES,
)
