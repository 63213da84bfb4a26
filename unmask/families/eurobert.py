"""EuroBERT (Boizard et al. 2025): Llama's layers read in both directions, for 15 languages and code.

Pre-norm layers with RMSNorm, SwiGLU and rotary positions, no biases, no norm after the embedding. In the two
larger sizes, each head of keys and values serves three heads of queries (grouped-query attention). The MLM
head is a matrix of its own.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.common import ACTIVATIONS, biases, head_width_of
from unmask.families.family import SEARCH_LANGUAGES, Family, Release
from unmask.families.heads import CheckpointInfo, HeadLayout, tying
from unmask.families.rope import read_rope, rotary_of, write_rope
from unmask.spec import (
    Activation,
    Classifier,
    Embedding,
    EncoderSpec,
    GatedFeedForward,
    Layer,
    MaskedLM,
    Reads,
    RMSNorm,
    Rotary,
    SoftmaxAttention,
    Transform,
)
from unmask.spec.check import require_positive, require_size
from unmask.spec.config_keys import Arguments, Compat, Field, Key, KeyGroup, in_range, only, softmax_of
from unmask.spec.tensor_map import Concat, Copy, Ignore, Rename

THETA = 10_000.0
"""The default theta; published checkpoints have 250,000."""

POOLING: Mapping[str, Reads] = {"late": "late", "bos": "first", "mean": "mean"}
"""config.json's ``classifier_pooling`` -> ours."""


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Rotary positions: in one object in new configs, in two keys in old ones."""
    theta = config.get("rope_theta", THETA)
    in_range(config, "rope_theta", theta, require_positive)
    new = config.get_optional("rope_parameters", dict)
    old = config.get_optional("rope_scaling", dict)
    return {"rotary": read_rope(old or {}, theta, "rope_scaling") if new is None else read_rope(new, theta)}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"rope_parameters": write_rope(rotary_of(encoder)), "rope_scaling": None}


def _feedforward_bias(encoder: EncoderSpec) -> bool:
    network = encoder.layers[0].feedforward
    assert isinstance(network, GatedFeedForward)
    return network.in_bias


LLAMA_KEYS = (
    Key("num_hidden_layers", "layers", 12),
    Key("hidden_size", "width", 768),
    Key("num_attention_heads", "heads", 12),
    Key(
        "num_key_value_heads",
        "key_value_heads",
        field=Field(lambda encoder: softmax_of(encoder).qkv_heads[1], require_size),
    ),
    Key("head_dim", "head_width"),
    Key("intermediate_size", "feedforward", 3072),
    Key("vocab_size", "vocabulary", 128_256),
    Key(
        "attention_bias",
        "attention_bias",
        False,
        field=Field(lambda encoder: softmax_of(encoder).query_bias),
    ),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("rms_norm_eps", "eps", 1e-5),
    Key("initializer_range", "init_std", 0.02),
    Key("pad_token_id", "padding_id"),
    Key("max_position_embeddings", "trained_tokens", 8192),
)
"""Llama's keys, which most families with its layers kept, with EuroBERT's defaults."""

ACTIVATION = Key("hidden_act", "activation", "silu", {"silu": "silu", **ACTIVATIONS})
ROTARY = KeyGroup(_read_rotary, _write_rotary)
MLP_BIAS = Key("mlp_bias", "feedforward_bias", False, field=Field(_feedforward_bias))

KEYS = (
    only("is_decoder", False),
    ACTIVATION,
    *LLAMA_KEYS,
    ROTARY,
    MLP_BIAS,
)

_LAYER = "layers.{l}."
_ATTENTION = _LAYER + "self_attn."


def _shares(encoder: EncoderSpec, weights: int) -> tuple[int, ...]:
    mixer = encoder.layers[encoder.weights_of_layer.index(weights)].mixer
    assert isinstance(mixer, SoftmaxAttention)
    return mixer.qkv_heads


ROWS = (
    Rename("embed_tokens", "embedding.words"),
    Rename(_LAYER + "input_layernorm", _LAYER + "attention_norm"),
    Concat(
        (_ATTENTION + "q_proj", _ATTENTION + "k_proj", _ATTENTION + "v_proj"),
        _LAYER + "attention.qkv",
        _shares,
    ),
    Rename(_ATTENTION + "o_proj", _LAYER + "attention.out"),
    Rename(_LAYER + "post_attention_layernorm", _LAYER + "feedforward_norm"),
    Concat((_LAYER + "mlp.gate_proj", _LAYER + "mlp.up_proj"), _LAYER + "feedforward.inner"),
    Rename(_LAYER + "mlp.down_proj", _LAYER + "feedforward.outer"),
    Rename("norm", "final_norm"),
    Ignore("*rotary_emb.inv_freq", "a buffer of frequencies, computed here"),
)


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    key_value_heads: int | None,
    head_width: int | None,
    feedforward: int,
    vocabulary: int,
    rotary: Rotary,
    activation: Activation,
    attention_bias: bool,
    feedforward_bias: bool,
    attention_dropout: float,
    eps: float,
    init_std: float,
    padding_id: int | None,
    trained_tokens: int,
) -> EncoderSpec:
    """A EuroBERT of the given sizes."""
    layer = Layer(
        mixer=SoftmaxAttention(
            heads,
            head_width_of(width, heads) if head_width is None else head_width,
            position=rotary,
            **biases(attention_bias),
            dropout=attention_dropout,
            key_value_heads=None if key_value_heads == heads else key_value_heads,
        ),
        feedforward=GatedFeedForward(feedforward, activation, feedforward_bias, feedforward_bias),
        norm=RMSNorm(eps),
        norm_first=True,
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(vocabulary=vocabulary, width=width, padding_id=padding_id),
        layers=(layer,) * layers,
        final_norm=RMSNorm(eps),
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


def _pooling(config: JsonSettings) -> Reads:
    """What the classifier of texts reads; the authors' code calls the key ``clf_pooling``."""
    name = "clf_pooling" if "classifier_pooling" not in config.values else "classifier_pooling"
    config.require_one_of(name, *POOLING)
    return POOLING[config.get(name, "late")]


def parts(info: CheckpointInfo) -> EncoderSpec:
    """The encoder unchanged; the head keys of config.json are checked even without a head."""
    for name in ("clf_pooling", "classifier_pooling"):
        info.config.require_one_of(name, *POOLING)
    return info.encoder


def _masked(info: CheckpointInfo, vocabulary: int) -> MaskedLM:
    return MaskedLM(None, info.config.get("tie_word_embeddings", False), _feedforward_bias(info.encoder))


def _tied(info: CheckpointInfo, vocabulary: int) -> MaskedLM | None:
    """A head without tensors of its own: only the class that a checkpoint was saved from tells of it."""
    untied = "lm_head.weight" in info.shapes or not info.config.get("tie_word_embeddings", False)
    return None if untied else _masked(info, vocabulary)


def _classifier(info: CheckpointInfo, classes: int) -> Classifier:
    """The head called ``classifier``: that of texts has a dense layer, that of tokens has none."""
    if "dense.weight" not in info.shapes:
        return Classifier("tokens", classes, "tokens")
    return Classifier("sequence", classes, _pooling(info.config), Transform(info.encoder.width, "gelu"))


def _write_classifier(head: Classifier) -> Mapping[str, Any]:
    names = {ours: name for name, ours in POOLING.items()}
    return {"classifier_pooling": names[head.reads]} if head.role == "sequence" else {}


HEADS = (
    HeadLayout("embed_tokens.weight", ("masked",), _tied, (), of_class="MaskedLM"),
    HeadLayout(
        "lm_head.weight",
        ("masked",),
        _masked,
        (
            Rename("lm_head", "heads.masked.decoder"),
            Rename("lm_head.bias", "heads.masked.bias"),
            Copy("lm_head.weight", "embedding.words.weight"),
        ),
        tying,
    ),
    HeadLayout(
        "classifier.weight",
        ("sequence", "tokens"),
        _classifier,
        (
            Rename("dense", "heads.sequence.transform.dense"),
            Rename("classifier", "heads.sequence.out"),
            Rename("classifier", "heads.tokens.out"),
        ),
        _write_classifier,
    ),
)

_610M = {
    "num_hidden_layers": 26,
    "hidden_size": 1152,
    "num_attention_heads": 18,
    "num_key_value_heads": 6,
    "intermediate_size": 4096,
}

PUBLISHED = (
    Release("EuroBERT/EuroBERT-210m"),
    Release("EuroBERT/EuroBERT-610m", _610M),
    Release(
        "EuroBERT/EuroBERT-2.1B",
        _610M | {"num_hidden_layers": 32, "hidden_size": 2304, "intermediate_size": 6144},
    ),
    Release(
        "jinaai/jina-embeddings-v5-text-nano-retrieval",
        paper="Akram et al. 2026",
        license="CC-BY-NC-4.0",
        roles=(),
        use=SEARCH_LANGUAGES,
    ),
)

EUROBERT = Family(
    name="eurobert",
    model_types=("eurobert",),
    stem="EuroBert",
    paper="Boizard et al. 2025",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="model.",
    heads=HEADS,
    releases=PUBLISHED,
    released={"rope_theta": 250_000.0, "pad_token_id": 128_001},
    parts=parts,
)
