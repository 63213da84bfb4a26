"""Shared by families: BERT's config keys and tensor names, and post-norm layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.spec import (
    Activation,
    Embedding,
    EncoderSpec,
    FeedForward,
    Layer,
    LayerNorm,
    LearnedPositions,
    Mixer,
    Pooler,
    Projection,
    SlidingWindow,
    SoftmaxAttention,
)
from unmask.spec.config_keys import Arguments, Compat, ConfigKey, Key, KeyGroup, only, softmax_of
from unmask.spec.tensor_map import Concat, Ignore, Rename

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""config.json's ``hidden_act`` -> our activation; the first name of each activation is the one written."""

NO_DECODER = (only("is_decoder", False), only("add_cross_attention", False))


def _read_decoder(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    return {"causal": config.get("is_decoder", False)}


def _write_decoder(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"is_decoder": True} if encoder.causal else {}


def with_decoder(keys: Sequence[ConfigKey]) -> tuple[ConfigKey, ...]:
    """A table in which ``is_decoder`` gives the argument ``causal``: whether attention is causal."""
    decoder = KeyGroup(_read_decoder, _write_decoder)
    return tuple(decoder if key == NO_DECODER[0] else key for key in keys)


Kind = Literal["full_attention", "sliding_attention"]
"""The kinds of layers, as config.json names them."""

WHOLE: Kind = "full_attention"
SLIDING: Kind = "sliding_attention"


def read_kinds(config: JsonSettings, layers: int, kind_of: Callable[[int], Kind]) -> tuple[Kind, ...]:
    """The kind of each layer: listed in new configs, by their number in old ones.

    Raises:
        UnknownArchitecture: there is another kind, or one for more or fewer layers.
    """
    kinds = config.get_optional("layer_types", list)
    if kinds is None:
        return tuple(map(kind_of, range(layers)))
    if len(kinds) != layers:
        raise UnknownArchitecture(
            f"{config.name} says layer_types of {len(kinds)} layers, and num_hidden_layers is {layers}"
        )
    for kind in kinds:
        JsonSettings(config.name, {"layer_types": kind}).require_one_of("layer_types", WHOLE, SLIDING)
    return tuple(kinds)


def kinds_and_radius(encoder: EncoderSpec, default: int) -> tuple[list[Kind], int]:
    """The kind of each layer, and the radius of their windows; ``default`` where no layer has a window."""
    patterns = [layer.mixer.pattern for layer in encoder.layers if isinstance(layer.mixer, SoftmaxAttention)]
    radius = next((pattern.radius for pattern in patterns if isinstance(pattern, SlidingWindow)), default)
    return [SLIDING if isinstance(pattern, SlidingWindow) else WHOLE for pattern in patterns], radius


ENCODER_KEYS: tuple[ConfigKey, ...] = (
    Key("hidden_act", "activation", "gelu", ACTIVATIONS),
    Key("num_hidden_layers", "layers", 12),
    Key("hidden_size", "width", 768),
    Key("num_attention_heads", "heads", 12),
    Key("intermediate_size", "feedforward", 3072),
    Key("vocab_size", "vocabulary", 30522),
    Key("type_vocab_size", "segments", 2),
    Key("hidden_dropout_prob", "dropout", 0.1),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("layer_norm_eps", "eps", 1e-12),
    Key("initializer_range", "init_std", 0.02),
    Key("pad_token_id", "padding_id"),
)
"""BERT's keys, which most families kept, with BERT's defaults."""

LARGE = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
"""Sizes of BERT-large, which most families kept."""

_SELF = "encoder.layer.{l}.attention.self."

ENCODER_ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Concat((_SELF + "query", _SELF + "key", _SELF + "value"), "layers.{l}.attention.qkv"),
    Rename("encoder.layer.{l}.attention.output.dense", "layers.{l}.attention.out"),
    Rename("encoder.layer.{l}.attention.output.LayerNorm", "layers.{l}.attention_norm"),
    Rename("encoder.layer.{l}.intermediate.dense", "layers.{l}.feedforward.inner"),
    Rename("encoder.layer.{l}.output.dense", "layers.{l}.feedforward.outer"),
    Rename("encoder.layer.{l}.output.LayerNorm", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)
"""BERT's names of tensors, which the families after it kept."""


def head_width_of(width: int, heads: int) -> int:
    """The width of a head if heads divide the width evenly.

    Raises:
        UnknownArchitecture: they do not divide it evenly.
    """
    if width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    return width // heads


def biases(there: bool) -> dict[str, Any]:
    """Arguments of `SoftmaxAttention`: biases on all matrices or on none."""
    return dict.fromkeys(("query_bias", "key_bias", "value_bias", "out_bias"), there)


def activation_of(encoder: EncoderSpec) -> Activation:
    """The activation of the feed-forward networks."""
    return encoder.layers[0].feedforward.activation


def with_every_layer(
    encoder: EncoderSpec, *, mixer: Mapping[str, Any] | None = None, **changes: Any
) -> EncoderSpec:
    """An encoder of equal layers with other fields of each, and with those of ``mixer`` of its attention."""
    changed = replace(encoder.layers[0], mixer=replace(softmax_of(encoder), **(mixer or {})), **changes)
    return replace(encoder, layers=(changed,) * len(encoder.layers))


def post_norm_encoder(
    *,
    layers: int,
    width: int,
    mixer: Mixer,
    feedforward: FeedForward,
    eps: float,
    dropout: float,
    vocabulary: int,
    segments: int,
    init_std: float,
    padding_id: int | None,
    positions: LearnedPositions | None = None,
    embedding_width: int | None = None,
    projection: Projection | None = None,
    trained_tokens: int | None = None,
    pooler: Pooler | None = None,
) -> EncoderSpec:
    """BERT's structure: equal post-norm layers over a normalized embedding."""
    norm = LayerNorm(eps)
    return EncoderSpec(
        width=width,
        embedding=Embedding(
            vocabulary=vocabulary,
            width=width if embedding_width is None else embedding_width,
            positions=positions,
            segments=segments,
            norm=norm,
            projection=projection,
            dropout=dropout,
            padding_id=padding_id,
        ),
        layers=(Layer(mixer=mixer, feedforward=feedforward, norm=norm, dropout=dropout),) * layers,
        pooler=pooler,
        trained_tokens=trained_tokens,
        init_std=init_std,
    )
