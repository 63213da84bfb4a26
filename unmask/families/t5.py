"""Encoders of T5 (Raffel et al. 2020) without their decoders: sentence-T5, GTR, INSTRUCTOR.

Pre-norm layers with RMSNorm and no biases; scores are not divided by the root of the heads' width, and one
table of relative position biases, stored with layer 0, serves all layers. The networks have ReLU, or a gate
with GELU since version 1.1.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture, quoted
from unmask.families.common import ACTIVATIONS, activation_of, biases
from unmask.families.family import Family, Release
from unmask.families.heads import TOKENS
from unmask.spec import (
    Embedding,
    EncoderSpec,
    FeedForward,
    GatedFeedForward,
    Layer,
    PlainFeedForward,
    RelativePositionBias,
    RMSNorm,
    SoftmaxAttention,
)
from unmask.spec.compat import Compat
from unmask.spec.config_keys import Arguments, Key, KeyGroup, name_of, only
from unmask.spec.tensor_map import Concat, Copy, Ignore, Rename

GATED = "gated-"
"""How the name of a gated network begins."""
GELU_OF_GATES = "gelu"
"""In a gated network this name means the tanh approximation, as in the code that wrote it first."""


def _read_network(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    name = config.get("feed_forward_proj", "relu")
    activation = name.removeprefix(GATED)
    if name == GATED + GELU_OF_GATES:
        activation = "gelu_new"
    if activation not in ACTIVATIONS:
        choices = ", ".join((*ACTIVATIONS, *(GATED + known for known in ACTIVATIONS)))
        raise UnknownArchitecture(
            f"{config.name} says feed_forward_proj is {quoted(name)}; only {choices} are built"
        )
    width, ours = arguments["feedforward"], ACTIVATIONS[activation]
    gated = name.startswith(GATED)
    return {
        "feedforward": GatedFeedForward(width, ours) if gated else PlainFeedForward(width, ours, bias=False)
    }


def _write_network(encoder: EncoderSpec) -> Mapping[str, Any]:
    name = name_of(ACTIVATIONS, activation_of(encoder))
    if not isinstance(encoder.layers[0].feedforward, GatedFeedForward):
        return {"feed_forward_proj": name}
    if name == GELU_OF_GATES:
        raise UnknownArchitecture("a config.json of this family cannot say a gate with exact GELU")
    return {"feed_forward_proj": GATED + (GELU_OF_GATES if name == "gelu_new" else name)}


def _read_biases(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    usual = RelativePositionBias()
    buckets = config.get("relative_attention_num_buckets", usual.buckets)
    max_distance = config.get("relative_attention_max_distance", usual.max_distance)
    try:
        return {"position": RelativePositionBias(buckets, max_distance)}
    except InvalidRequest as error:
        raise CorruptCheckpoint(str(error)) from None


def _write_biases(encoder: EncoderSpec) -> Mapping[str, Any]:
    position = encoder.distances
    assert isinstance(position, RelativePositionBias)
    return {
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.max_distance,
    }


KEYS = (
    only("is_decoder", False),
    Key("num_layers", "layers", 6),
    Key("d_model", "width", 512),
    Key("num_heads", "heads", 8),
    Key("d_kv", "head_width", 64),
    Key("d_ff", "feedforward", 2048),
    KeyGroup(_read_network, _write_network),
    Key("vocab_size", "vocabulary", 32128),
    KeyGroup(_read_biases, _write_biases),
    Key("dropout_rate", "dropout", 0.1),
    Key("layer_norm_epsilon", "eps", 1e-6),
    Key("pad_token_id", "padding_id"),
    Key("n_positions", "trained_tokens", 512),
)

_BLOCK = "encoder.block.{l}."
_ATTENTION = _BLOCK + "layer.0.SelfAttention."
_NETWORK = _BLOCK + "layer.1.DenseReluDense."


def _gated(encoder: EncoderSpec) -> bool:
    return isinstance(encoder.layers[0].feedforward, GatedFeedForward)


def _plain(encoder: EncoderSpec) -> bool:
    return not _gated(encoder)


ROWS = (
    Rename("shared", "embedding.words"),
    Copy("encoder.embed_tokens.weight", "embedding.words.weight"),
    Rename("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "distances.table"),
    Rename(_BLOCK + "layer.0.layer_norm", "layers.{l}.attention_norm"),
    Concat(tuple(_ATTENTION + part for part in "qkv"), "layers.{l}.attention.qkv"),
    Rename(_ATTENTION + "o", "layers.{l}.attention.out"),
    Rename(_BLOCK + "layer.1.layer_norm", "layers.{l}.feedforward_norm"),
    Rename(_NETWORK + "wi", "layers.{l}.feedforward.inner", _plain),
    Concat((_NETWORK + "wi_0", _NETWORK + "wi_1"), "layers.{l}.feedforward.inner", where=_gated),
    Rename(_NETWORK + "wo", "layers.{l}.feedforward.outer"),
    Rename("encoder.final_layer_norm", "final_norm"),
    Ignore("decoder.*", "the decoder, which no encoder reads"),
    Ignore("lm_head.weight", "the decoder's head"),
)


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    head_width: int,
    feedforward: FeedForward,
    vocabulary: int,
    position: RelativePositionBias,
    dropout: float,
    eps: float,
    padding_id: int | None,
    trained_tokens: int,
) -> EncoderSpec:
    """An encoder of T5 of the given sizes."""
    norm = RMSNorm(eps)
    layer = Layer(
        mixer=SoftmaxAttention(
            heads,
            head_width,
            position=position,
            score_scale=1.0,
            dropout=dropout,
            **biases(False),
        ),
        feedforward=feedforward,
        norm=norm,
        norm_first=True,
        dropout=dropout,
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(vocabulary, width, dropout=dropout, padding_id=padding_id),
        layers=(layer,) * layers,
        final_norm=norm,
        trained_tokens=trained_tokens,
    )


HEADS = (TOKENS,)
"""The classes with other heads also have the decoder."""

_BASE = {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}
_LARGE = {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}

PUBLISHED = (
    Release("sentence-transformers/sentence-t5-base", _BASE, "Ni et al. 2022, Sentence-T5"),
    Release("sentence-transformers/sentence-t5-large", _LARGE, "Ni et al. 2022, Sentence-T5"),
    Release("sentence-transformers/gtr-t5-base", _BASE, "Ni et al. 2022, GTR"),
    Release("sentence-transformers/gtr-t5-large", _LARGE, "Ni et al. 2022, GTR"),
    Release(
        "google/t5-v1_1-base",
        {**_BASE, "d_ff": 2048, "feed_forward_proj": "gated-gelu"},
    ),
)

T5 = Family(
    name="t5",
    model_types=("t5",),
    stem="T5",
    paper="Raffel et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="transformer.",
    heads=HEADS,
    releases=PUBLISHED,
    roles=(),
    classes={frozenset(): "EncoderModel", frozenset({"tokens"}): "ForTokenClassification"},
)
