"""ModernBERT (Warner et al. 2024), and Ettin (Weller et al. 2025) in the same layout from 17M to 1B.

Pre-norm layers with GeGLU, norms and matrices without biases, and rotary positions. Every third layer
attends to the whole text, the others to a window, each kind with its own theta. The embedding is
normalized, so layer 0 has no norm before its attention.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.common import (
    ACTIVATIONS,
    LARGE,
    SLIDING,
    WHOLE,
    Kind,
    biases,
    head_width_of,
    kinds_and_radius,
    read_kinds,
)
from unmask.families.family import (
    LATE,
    SEARCH,
    SEARCH_LANGUAGES,
    CheckpointInfo,
    Family,
    Release,
)
from unmask.families.heads import CHOICE_CLASS, HeadLayout
from unmask.families.rope import read_rope_by_kind, write_rope_by_kind
from unmask.spec import (
    Activation,
    Classifier,
    ClassifierRole,
    Embedding,
    EncoderSpec,
    FullAttention,
    GatedFeedForward,
    Layer,
    LayerNorm,
    MaskedLM,
    Reads,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
    Transform,
)
from unmask.spec.check import require_positive, require_size
from unmask.spec.config_keys import (
    Arguments,
    Compat,
    Field,
    Key,
    KeyGroup,
    in_range,
    name_of,
    only,
    softmax_of,
)
from unmask.spec.tensor_map import Copy, Ignore, Rename, TensorRule

THETA: dict[Kind, float] = {WHOLE: 160_000.0, SLIDING: 10_000.0}
"""The default theta of each kind of layer."""


def _read_kinds(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """The kind of each layer: in old configs, by the interval between layers that read the whole text."""
    every, window = config.get("global_attn_every_n_layers", 3), config.get("local_attention", 128)
    in_range(config, "global_attn_every_n_layers", every, require_size)
    in_range(config, "local_attention", window, require_size)
    kinds = read_kinds(config, arguments["layers"], lambda layer: SLIDING if layer % every else WHOLE)
    # The config counts the tokens on both sides.
    return {"kinds": kinds, "radius": window // 2}


def _write_kinds(encoder: EncoderSpec) -> Mapping[str, Any]:
    kinds, radius = kinds_and_radius(encoder, 64)
    return {"layer_types": kinds, "local_attention": max(1, 2 * radius)}


def _read_rotary(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Rotary positions by kind of layer: in one object in new configs, as two numbers in old ones."""
    theta = config.get("global_rope_theta", THETA[WHOLE])
    # The authors' code uses the other theta if the local one is null.
    default = theta if "local_rope_theta" in config.values else THETA[SLIDING]
    local = config.get_optional("local_rope_theta", float)
    old = {WHOLE: theta, SLIDING: default if local is None else local}
    for name, base in (("global_rope_theta", theta), ("local_rope_theta", old[SLIDING])):
        in_range(config, name, base, require_positive)
    return {"rotary": read_rope_by_kind(config, old)}


def _write_rotary(encoder: EncoderSpec) -> Mapping[str, Any]:
    return write_rope_by_kind(encoder, THETA)


def _network_of(encoder: EncoderSpec) -> GatedFeedForward:
    network = encoder.layers[0].feedforward
    assert isinstance(network, GatedFeedForward)
    return network


def _norm_of(encoder: EncoderSpec) -> LayerNorm:
    assert isinstance(encoder.final_norm, LayerNorm)
    return encoder.final_norm


KEYS = (
    only("is_decoder", False),
    only("position_embedding_type", "absolute", "sans_pos"),  # written, but never read by any code
    only("rope_scaling", None),
    Key("hidden_activation", "activation", "gelu", ACTIVATIONS),
    Key("num_hidden_layers", "layers", 22),
    Key("hidden_size", "width", 768),
    Key("num_attention_heads", "heads", 12),
    Key("intermediate_size", "feedforward", 1152),
    Key("vocab_size", "vocabulary", 50368),
    KeyGroup(_read_kinds, _write_kinds),
    KeyGroup(_read_rotary, _write_rotary),
    Key(
        "attention_bias",
        "attention_bias",
        False,
        field=Field(lambda encoder: softmax_of(encoder).query_bias),
    ),
    Key("mlp_bias", "feedforward_bias", False, field=Field(lambda encoder: _network_of(encoder).in_bias)),
    Key("norm_bias", "norm_bias", False, field=Field(lambda encoder: _norm_of(encoder).bias)),
    Key("embedding_dropout", "embedding_dropout", 0.0),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("norm_eps", "eps", 1e-5),
    Key("initializer_range", "init_std", 0.02),
    Key("pad_token_id", "padding_id"),
    Key("max_position_embeddings", "trained_tokens", 8192),
)

_LAYER = "layers.{l}."

ROWS = (
    Rename("embeddings.tok_embeddings", "embedding.words"),
    Rename("embeddings.norm", "embedding.norm"),
    Rename(_LAYER + "attn_norm", _LAYER + "attention_norm"),
    Rename(_LAYER + "attn.Wqkv", _LAYER + "attention.qkv"),
    Rename(_LAYER + "attn.Wo", _LAYER + "attention.out"),
    Rename(_LAYER + "mlp_norm", _LAYER + "feedforward_norm"),
    Rename(_LAYER + "mlp.Wi", _LAYER + "feedforward.inner"),
    Rename(_LAYER + "mlp.Wo", _LAYER + "feedforward.outer"),
    Rename("final_norm", "final_norm"),
    Ignore("layers.*.attn.rotary_emb.inv_freq", "a buffer of frequencies, computed here"),
)


def spec(
    *,
    layers: int,
    kinds: tuple[Kind, ...],
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int,
    radius: int,
    rotary: Mapping[Kind, Rotary],
    activation: Activation,
    attention_bias: bool,
    feedforward_bias: bool,
    norm_bias: bool,
    embedding_dropout: float,
    attention_dropout: float,
    eps: float,
    init_std: float,
    padding_id: int | None,
    trained_tokens: int,
) -> EncoderSpec:
    """A ModernBERT of the given sizes, one layer for each of ``kinds``."""
    norm = LayerNorm(eps, norm_bias)
    blocks = (
        Layer(
            mixer=SoftmaxAttention(
                heads,
                head_width_of(width, heads),
                pattern=FullAttention() if kind == WHOLE else SlidingWindow(radius),
                position=rotary[kind],
                **biases(attention_bias),
                dropout=attention_dropout,
            ),
            feedforward=GatedFeedForward(feedforward, activation, feedforward_bias, feedforward_bias),
            norm=norm,
            norm_first=True,
            attention_norm=number > 0,
        )
        for number, kind in enumerate(kinds)
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(
            vocabulary=vocabulary,
            width=width,
            norm=norm,
            dropout=embedding_dropout,
            padding_id=padding_id,
        ),
        layers=tuple(blocks),
        final_norm=norm,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )


def _transform(info: CheckpointInfo) -> Transform:
    """The transform of every head: a dense layer, an activation, a norm."""
    config = info.config
    config.require_one_of("classifier_activation", *ACTIVATIONS)
    activation = ACTIVATIONS[config.get("classifier_activation", "gelu")]
    bias = config.get("classifier_bias", False)
    return Transform(info.encoder.width, activation, info.encoder.final_norm, bias)


def _write_transform(head: MaskedLM | Classifier) -> dict[str, Any]:
    if not isinstance(head.transform, Transform):
        return {}
    activation = name_of(ACTIVATIONS, head.transform.activation)
    return {"classifier_activation": activation, "classifier_bias": head.transform.bias}


def parts(info: CheckpointInfo) -> EncoderSpec:
    """The encoder unchanged; the head keys of config.json are checked even without a head."""
    _transform(info)
    info.config.require_one_of("classifier_pooling", "cls", "mean")
    info.config.get("decoder_bias", True)
    return info.encoder


def _masked(info: CheckpointInfo, width: int) -> MaskedLM | None:
    if "classifier.weight" in info.shapes:
        return None
    tied, bias = info.config.get("tie_word_embeddings", True), info.config.get("decoder_bias", True)
    return MaskedLM(_transform(info), tied, bias)


def _write_masked(head: MaskedLM) -> Mapping[str, Any]:
    return {**_write_transform(head), "decoder_bias": head.bias, "tie_word_embeddings": head.tied}


def _classifier(info: CheckpointInfo, classes: int) -> Classifier:
    """The head called ``classifier``; only the class it was saved from determines its role."""
    for role, name in (("tokens", "TokenClassification"), ("span", "QuestionAnswering")):
        if info.saved_from(name):
            return Classifier("tokens" if role == "tokens" else "span", classes, "tokens", _transform(info))
    return Classifier("sequence", classes, _pooling(info), _transform(info))


def _pooling(info: CheckpointInfo) -> Reads:
    return "mean" if info.config.get("classifier_pooling", "cls") == "mean" else "first"


def _choice(info: CheckpointInfo, classes: int) -> Classifier:
    return Classifier("choice", classes, _pooling(info), _transform(info))


def _write_classifier(head: Classifier) -> Mapping[str, Any]:
    pooling = {"classifier_pooling": "cls" if head.reads == "first" else "mean"}
    return {**_write_transform(head), **(pooling if head.role in ("sequence", "choice") else {})}


def _classifier_rows(role: ClassifierRole) -> tuple[TensorRule, ...]:
    return (
        Rename("head.dense", f"heads.{role}.transform.dense"),
        Rename("head.norm", f"heads.{role}.transform.norm"),
        Rename("classifier", f"heads.{role}.out"),
    )


HEADS = (
    HeadLayout(
        "head.dense.weight",
        ("masked",),
        _masked,
        (
            Rename("head.dense", "heads.masked.transform.dense"),
            Rename("head.norm", "heads.masked.transform.norm"),
            Rename("decoder", "heads.masked.decoder"),
            Rename("decoder.bias", "heads.masked.bias"),
            Copy("decoder.weight", "embedding.words.weight"),
        ),
        _write_masked,
    ),
    HeadLayout(
        "classifier.weight",
        ("sequence", "tokens", "span"),
        _classifier,
        (*_classifier_rows("sequence"), *_classifier_rows("tokens"), *_classifier_rows("span")),
        _write_classifier,
    ),
    HeadLayout(
        "classifier.weight",
        ("choice",),
        _choice,
        _classifier_rows("choice"),
        _write_classifier,
        of_class=CHOICE_CLASS,
    ),
)


def _sizes(layers: int, width: int, heads: int, feedforward: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": feedforward,
    }


_ONE_THETA = {"local_rope_theta": THETA[WHOLE]}
"""Ettin's and mmBERT's last phase of training gave all layers one theta."""

_17M, _32M = _sizes(7, 256, 4, 384) | _ONE_THETA, _sizes(10, 384, 6, 576) | _ONE_THETA

_MARKED = {"vocab_size": 50_370}
_EDGE = _MARKED | {"max_position_embeddings": 7999}
"""ModernBERT's words and two markers, of queries and of documents."""

_MULTILINGUAL = _ONE_THETA | {"vocab_size": 256_000, "pad_token_id": 0}
"""mmBERT, which has ModernBERT's sizes and Gemma's words."""

_GRANITE = _ONE_THETA | {"global_rope_theta": 150_000.0, "max_position_embeddings": 32_768}


def _ettin(size: str, config: Mapping[str, Any]) -> Release:
    return Release(f"jhu-clsp/ettin-encoder-{size}", config, "Weller et al. 2025", "MIT")


def _trained(name: str, paper: str, use: str, config: Mapping[str, Any] = MappingProxyType({})) -> Release:
    """A checkpoint trained further for a use, from an encoder whose head it lacks."""
    return Release(name, config, paper, roles=(), use=use)


_MGTE, _LIGHTON, _AWASTHY = "Zhang et al. 2024", "Sourty et al. 2026", "Awasthy et al. 2025"

PUBLISHED = (
    Release("answerdotai/ModernBERT-base"),
    Release("answerdotai/ModernBERT-large", LARGE | {"num_hidden_layers": 28, "intermediate_size": 2624}),
    _ettin("17m", _17M),
    _ettin("32m", _32M),
    _ettin("68m", _sizes(19, 512, 8, 768) | _ONE_THETA),
    _ettin("1b", _sizes(28, 1792, 28, 3840) | _ONE_THETA),
    _trained("Alibaba-NLP/gte-modernbert-base", _MGTE, SEARCH),
    _trained("Alibaba-NLP/gte-reranker-modernbert-base", _MGTE, "reranking"),
    _trained("lightonai/DenseOn", _LIGHTON, SEARCH),
    _trained("lightonai/LateOn", _LIGHTON, LATE, _MARKED),
    _trained("lightonai/mDenseOn", _LIGHTON, SEARCH_LANGUAGES, _MULTILINGUAL),
    _trained(
        "lightonai/mLateOn", _LIGHTON, f"{LATE}, many languages", _MULTILINGUAL | {"vocab_size": 256_002}
    ),
    _trained("lightonai/GTE-ModernColBERT-v1", "Chaffin 2025", LATE, _MARKED),
    _trained("mixedbread-ai/mxbai-edge-colbert-v0-17m", "Takehi et al. 2025", LATE, _17M | _EDGE),
    _trained("mixedbread-ai/mxbai-edge-colbert-v0-32m", "Takehi et al. 2025", LATE, _32M | _EDGE),
    _trained(
        "ibm-granite/granite-embedding-97m-multilingual-r2",
        _AWASTHY,
        SEARCH_LANGUAGES,
        _GRANITE
        | _sizes(12, 384, 12, 1536)
        | {"hidden_activation": "silu", "vocab_size": 180_000, "pad_token_id": 179_935},
    ),
    _trained(
        "ibm-granite/granite-embedding-311m-multilingual-r2",
        _AWASTHY,
        SEARCH_LANGUAGES,
        _GRANITE | {"vocab_size": 262_152, "pad_token_id": 0},
    ),
)

MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    stem="ModernBert",
    paper="Warner et al. 2024",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="model.",
    heads=HEADS,
    parts=parts,
    releases=PUBLISHED,
    released={"pad_token_id": 50283},
)
