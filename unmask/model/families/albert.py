"""ALBERT (Lan et al. 2020), versions 1 and 2: few weights, used many times.

A narrow embedding projected to the encoder's width, and layers in groups: every layer of a group runs the
same ``inner`` layers' weights. Published checkpoints have one group of one inner layer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.bert import ACTIVATIONS, feedforward_of
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.bert import write as write_bert
from unmask.model.families.family import (
    Compat,
    Family,
    Published,
    Shapes,
    architectures,
    classifies_tokens,
    predictor,
    present,
    tying,
)
from unmask.model.spec import Activation, Classifier, EncoderSpec, MaskedLM, Projection, Transform
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Concat, Copy, Ignore, Rename
from unmask.settings import Settings


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    embedding: int = 128,
    groups: int = 1,
    inner: int = 1,
    vocabulary: int = 30000,
    positions: int = 512,
    segments: int = 2,
    activation: Activation = "gelu_tanh",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    eps: float = 1e-12,
    init_std: float = 0.02,
    padding_id: int | None = 0,
) -> EncoderSpec:
    """An ALBERT of the given sizes: ``layers`` passes over ``groups`` groups of ``inner`` layers each.

    The spec counts every inner layer as one, so it has ``layers * inner`` of them.
    """
    for name, number in (("layers", layers), ("groups", groups), ("inner", inner)):
        require_at_least(name, number, 1)
    if groups > layers:
        raise UnknownArchitecture(f"{groups} groups for {layers} layers would leave groups unused")
    if groups == layers and inner > 1:
        # Nothing repeats, so the encoder itself does not tell how its layers are grouped in files.
        raise UnknownArchitecture(f"{inner} inner layers in each of {groups} groups that run only once")
    one = bert_spec(
        layers=1,
        width=width,
        heads=heads,
        feedforward=feedforward,
        vocabulary=vocabulary,
        positions=positions,
        segments=segments,
        activation=activation,
        dropout=dropout,
        attention_dropout=attention_dropout,
        eps=eps,
        init_std=init_std,
        padding_id=padding_id,
    )
    # Rounded as `transformers` does, where groups do not divide layers evenly.
    group_of_layer = [int(layer / (layers / groups)) for layer in range(layers)]
    return replace(
        one,
        embedding=replace(one.embedding, width=embedding, projection=Projection()),
        layers=one.layers * (layers * inner),
        sharing=tuple(group * inner + part for group in group_of_layer for part in range(inner)),
    )


def inner_layers(encoder: EncoderSpec) -> int:
    """How many layers a group has: the first group is the first to run again, where any does."""
    sharing = encoder.weights_of_layer
    return sharing.index(0, 1) if sharing.count(0) > 1 else 1


def layer_name(encoder: EncoderSpec, weights: int) -> str:
    """A set of weights by its group and its place in it."""
    group, part = divmod(weights, inner_layers(encoder))
    return f"{group}.albert_layers.{part}"


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("position_embedding_type", "absolute")
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("hidden_act", "gelu_new", *ACTIVATIONS)
    # Experiments that the authors' configs name and their published code has not.
    config.require("net_structure_type", 0)
    config.require("gap_size", 0)
    config.require("num_memory_blocks", 0)
    config.require("down_scale_factor", 1)
    return spec(
        layers=config.take("num_hidden_layers", 12),
        width=config.take("hidden_size", 4096),
        heads=config.take("num_attention_heads", 64),
        feedforward=config.take("intermediate_size", 16384),
        embedding=config.take("embedding_size", 128),
        groups=config.take("num_hidden_groups", 1),
        inner=config.take("inner_group_num", 1),
        vocabulary=config.take("vocab_size", 30000),
        positions=config.take("max_position_embeddings", 512),
        segments=config.take("type_vocab_size", 2),
        activation=ACTIVATIONS[config.take("hidden_act", "gelu_new")],
        dropout=config.take("hidden_dropout_prob", 0.0),
        attention_dropout=config.take("attention_probs_dropout_prob", 0.0),
        eps=config.take("layer_norm_eps", 1e-12),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
    )


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the heads that a checkpoint has, and without the pooler where it has none."""
    norm, activation = encoder.layers[0].norm, feedforward_of(encoder).activation
    tokens = classifies_tokens(config)
    return replace(
        encoder,
        pooler=encoder.pooler if "pooler.weight" in shapes else None,
        heads=present(
            shapes,
            (
                "predictions.dense.weight",
                lambda w: predictor(Transform(w, activation, norm), config, shapes, "predictions.decoder"),
            ),
            ("sop_classifier.classifier.weight", lambda c: Classifier("sentence_order", c, "pooler")),
            (
                "classifier.weight",
                lambda c: (
                    Classifier("tokens", c, "tokens") if tokens else Classifier("sequence", c, "pooler")
                ),
            ),
            ("qa_outputs.weight", lambda c: Classifier("span", c, "tokens")),
        ),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    inner = inner_layers(encoder)
    return {
        **write_bert(encoder),
        "architectures": architectures("Albert", encoder),
        "embedding_size": encoder.embedding.width,
        "inner_group_num": inner,
        "model_type": "albert",
        "num_hidden_groups": (max(encoder.weights_of_layer) + 1) // inner,
        "num_hidden_layers": len(encoder.layers) // inner,
        **tying(encoder),
    }


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With the heads that it was pretrained with: masked words and the order of sentences."""
    transform = Transform(encoder.embedding.width, feedforward_of(encoder).activation, encoder.layers[0].norm)
    return replace(encoder, heads=(MaskedLM(transform), Classifier("sentence_order", 2, "pooler")))


_LAYER = "encoder.albert_layer_groups.{l}."
_ATTENTION = _LAYER + "attention."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Rename("encoder.embedding_hidden_mapping_in", "embedding.projection"),
    Concat((_ATTENTION + "query", _ATTENTION + "key", _ATTENTION + "value"), "layers.{l}.attention.qkv"),
    Rename(_ATTENTION + "dense", "layers.{l}.attention.out"),
    Rename(_ATTENTION + "LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "ffn", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "ffn_output", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "full_layer_layer_norm", "layers.{l}.feedforward_norm"),
    Rename("pooler", "pooler.dense"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Rename("predictions.dense", "heads.masked.transform.dense"),
    Rename("predictions.LayerNorm", "heads.masked.transform.norm"),
    Rename("predictions.bias", "heads.masked.bias"),
    Rename("predictions.decoder", "heads.masked.decoder"),
    Copy("predictions.decoder.weight", "embedding.words.weight"),
    Copy("predictions.decoder.bias", "heads.masked.bias"),
    Rename("sop_classifier.classifier", "heads.sentence_order.out"),
    Rename("classifier", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_outputs", "heads.span.out"),
)

_LAN = "Lan et al. 2020"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096)
XLARGE = spec(layers=24, width=2048, heads=16, feedforward=8192)
XXLARGE = spec(layers=12, width=4096, heads=64, feedforward=16384)


def _published(name: str, encoder: EncoderSpec) -> Published:
    return Published(name, encoder, "Apache-2.0", _LAN, pretraining(encoder))


ALBERT = Family(
    name="albert",
    model_types=("albert",),
    paper=_LAN,
    read=read,
    adapt=adapt,
    write=write,
    prefix="albert.",
    rows=ROWS,
    published=(
        _published("albert/albert-base-v2", BASE),
        _published("albert/albert-large-v2", LARGE),
        _published("albert/albert-xlarge-v2", XLARGE),
        _published("albert/albert-xxlarge-v2", XXLARGE),
    ),
    layer_name=layer_name,
)
