"""GTE (Zhang et al. 2024, mGTE): the encoders called GTE-en-MLM, GTE-multilingual and GTE v1.5.

Post-norm layers as BERT's, with GeGLU and rotary positions, biases on attention and on the network's last
matrix. Their own code calls the type ``new``, `transformers` calls it ``gte``; the tensors have equal names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.model.families.bert import ACTIVATIONS
from unmask.model.families.family import Compat, Family, Published, Shapes, architectures
from unmask.model.families.nomicbert import activation_name, parts_of, spec, with_heads
from unmask.model.families.rope import read_rope, write_rope
from unmask.model.spec import EncoderSpec, MaskedLM, Rotary, Transform
from unmask.model.spec.rows import Copy, Rename, Reorder
from unmask.settings import Settings

THETA = {"gte": 160_000.0, "new": 10_000.0}
"""By ``model_type``, where a config names none."""

_NOT_BUILT: dict[str, tuple[object, ...]] = {
    "is_decoder": (False,),
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm",),
    "pack_qkv": (True,),
    "logn_attention_scale": (False,),
    "tie_word_embeddings": (True,),
}
"""Keys whose other values change outputs or tensors and are refused; the first is that of an absent key."""


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    for key, built in _NOT_BUILT.items():
        config.require(key, *built)
    config.require("hidden_act", *ACTIVATIONS)
    width, heads = config.take("hidden_size", 768), config.take("num_attention_heads", 12)
    return spec(
        layers=config.take("num_hidden_layers", 12),
        width=width,
        heads=heads,
        feedforward=config.take("intermediate_size", 3072),
        vocabulary=config.take("vocab_size", 250_048),
        head_width=config.maybe("head_dim", int),
        segments=config.take("type_vocab_size", 1),
        rotary=_rotary(config, width // max(1, heads)),
        activation=ACTIVATIONS[config.take("hidden_act", "gelu")],
        bias=True,
        dropout=config.take("hidden_dropout_prob", 0.1),
        attention_dropout=config.take("attention_probs_dropout_prob", 0.0),
        eps=config.take("layer_norm_eps", 1e-12),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
        trained_tokens=config.take("max_position_embeddings", 8192),
    )


def _rotary(config: Settings, head_width: int) -> Rotary:
    """Rotary positions; old configs stretch them by ``ntk``, the same for texts of every length.

    A factor f multiplies theta by f and divides positions by f ** (2 / width of a head).
    """
    theta = config.take("rope_theta", THETA[config.take("model_type", "gte")])
    scaling = config.maybe("rope_scaling", dict)
    rotary = read_rope(config.maybe("rope_parameters", dict) or {}, theta)
    if scaling is None:
        return rotary
    settings = Settings("config.json's rope_scaling", scaling)
    settings.require("type", "ntk")
    settings.require("mixed_b", None)
    factor = settings.take("factor", 1.0)
    return replace(rotary, theta=rotary.theta * factor, scale=factor ** (2 / head_width))


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `read`."""
    mixer, network, norm, rotary = parts_of(encoder)
    return {
        "architectures": architectures("Gte", encoder),
        "attention_probs_dropout_prob": mixer.dropout,
        "head_dim": mixer.head_width,
        "hidden_act": activation_name(network.activation),
        "hidden_dropout_prob": encoder.layers[0].dropout,
        "hidden_size": encoder.width,
        "initializer_range": encoder.init_std,
        "intermediate_size": network.width,
        "layer_norm_eps": norm.eps,
        "max_position_embeddings": encoder.trained_tokens,
        "model_type": "gte",
        "num_attention_heads": mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": encoder.embedding.padding_id,
        "rope_parameters": write_rope(rotary),
        "rope_scaling": None,
        "type_vocab_size": encoder.embedding.segments,
        "vocab_size": encoder.embedding.vocabulary,
    }


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the pooler and the head that a checkpoint has."""
    norm = encoder.layers[0].norm
    predictor = MaskedLM(Transform(encoder.width, "gelu", norm))
    return with_heads(encoder, shapes, config, "lm_head.dense.weight", predictor)


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
    # The second half of their matrix is the one that is activated.
    Reorder(_LAYER + "mlp.up_gate_proj", "layers.{l}.feedforward.inner", _second_half_first),
    Rename(_LAYER + "mlp.down_proj", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "mlp_ln", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
    Rename("lm_head.dense", "heads.masked.transform.dense"),
    Rename("lm_head.norm", "heads.masked.transform.norm"),
    Rename("lm_head.decoder.bias", "heads.masked.bias"),
    Copy("lm_head.decoder.weight", "embedding.words.weight"),
    Rename("classifier", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
)

_ZHANG = "Zhang et al. 2024"

MULTILINGUAL = spec(
    layers=12,
    width=768,
    heads=12,
    feedforward=3072,
    vocabulary=250_048,
    segments=1,
    rotary=Rotary(160_000.0, scale=8 ** (2 / 64)),
    activation="gelu",
    bias=True,
    dropout=0.1,
    padding_id=1,
    trained_tokens=8192,
)

GTE = Family(
    name="gte",
    model_types=("gte", "new"),
    paper=_ZHANG,
    read=read,
    adapt=adapt,
    write=write,
    prefix="gte.",
    other_prefixes=("new.",),
    rows=ROWS,
    published=(Published("Alibaba-NLP/gte-multilingual-base", MULTILINGUAL, "Apache-2.0", _ZHANG),),
)
