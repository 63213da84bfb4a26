"""ALBERT (Lan et al. 2020), versions 1 and 2: layers that share weights.

A narrow embedding is projected to the encoder's width, and layers are grouped: every layer of a group uses
the weights of the same ``inner`` layers. Published checkpoints have one group of one inner layer.
"""

from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import LARGE
from unmask.families.family import Family, Release
from unmask.families.heads import CHOICE, POOLED_OR_TOKENS, SPAN, masked_words, pooled
from unmask.spec import EncoderSpec, Projection
from unmask.spec.check import require_size
from unmask.spec.config_keys import Field, Key, changed, only
from unmask.spec.tensor_map import Concat, Ignore, Rename


def inner_layers(encoder: EncoderSpec) -> int:
    """The number of inner layers of a group, found from the first layer whose weights repeat."""
    sharing = encoder.weights_of_layer
    return sharing.index(0, 1) if sharing.count(0) > 1 else 1


_LAYERS = Field(lambda encoder: len(encoder.layers) // inner_layers(encoder), require_size)
_GROUPS = Field(lambda encoder: (max(encoder.weights_of_layer) + 1) // inner_layers(encoder), require_size)

KEYS = (
    # Experiments that the authors' configs name but their published code does not contain.
    only("net_structure_type", 0),
    only("gap_size", 0),
    only("num_memory_blocks", 0),
    only("down_scale_factor", 1),
    *changed(
        BERT_KEYS,
        num_hidden_layers=...,
        hidden_act="gelu_new",
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        vocab_size=30000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    Key("num_hidden_layers", "layers", 12, field=_LAYERS),
    Key("num_hidden_groups", "groups", 1, field=_GROUPS),
    Key("inner_group_num", "inner", 1, field=Field(inner_layers, require_size)),
    Key("embedding_size", "embedding_width", 128),
)

_LAYER = "encoder.albert_layer_groups.{l}."
_ATTENTION = _LAYER + "attention."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Rename("encoder.embedding_hidden_mapping_in", "embedding.projection"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Concat((_ATTENTION + "query", _ATTENTION + "key", _ATTENTION + "value"), "layers.{l}.attention.qkv"),
    Rename(_ATTENTION + "dense", "layers.{l}.attention.out"),
    Rename(_ATTENTION + "LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "ffn", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "ffn_output", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "full_layer_layer_norm", "layers.{l}.feedforward_norm"),
    Rename("pooler", "pooler.dense"),
)


def spec(*, layers: int, groups: int, inner: int, **bert: Any) -> EncoderSpec:
    """An ALBERT of the given sizes: ``layers`` passes over ``groups`` groups of ``inner`` layers each.

    The spec counts every inner layer as one, so it has ``layers * inner`` of them.
    """
    if groups > layers:
        raise UnknownArchitecture(f"{groups} groups for {layers} layers would leave groups unused")
    if groups == layers and inner > 1:
        # Nothing repeats, so the spec does not determine how layers are grouped in files.
        raise UnknownArchitecture(f"{inner} inner layers in each of {groups} groups that run only once")
    single_layer = bert_spec(layers=1, projection=Projection(), **bert)
    # Rounded as in `transformers` if groups do not divide layers evenly.
    group_of_layer = [int(layer / (layers / groups)) for layer in range(layers)]
    return replace(
        single_layer,
        layers=single_layer.layers * (layers * inner),
        sharing=tuple(group * inner + part for group in group_of_layer for part in range(inner)),
    )


def layer_name(encoder: EncoderSpec, weights: int) -> str:
    """The name of a set of weights: its group and its index within the group."""
    group, part = divmod(weights, inner_layers(encoder))
    return f"{group}.albert_layers.{part}"


HEADS = (
    masked_words("predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder"),
    pooled("sentence_order", "sop_classifier.classifier"),
    POOLED_OR_TOKENS,
    SPAN,
    CHOICE,
)

_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_XLARGE = {"hidden_size": 2048, "intermediate_size": 8192}

PUBLISHED = (
    Release("albert/albert-base-v2", _BASE),
    Release("albert/albert-large-v2", LARGE),
    Release("albert/albert-xlarge-v2", LARGE | _XLARGE),
    Release("albert/albert-xxlarge-v2"),
)

ALBERT = Family(
    name="albert",
    model_types=("albert",),
    stem="Albert",
    paper="Lan et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="albert.",
    heads=HEADS,
    releases=PUBLISHED,
    roles=("masked", "sentence_order"),
    layer_name=layer_name,
)
