"""BERT (Devlin, Chang, Lee & Toutanova 2019) and its distillations in the same layout: MiniLM, TinyBERT.

Post-norm layers with exact GELU, learned absolute positions, two segments, and a pooler on [CLS].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.family import Family, Published
from unmask.model.spec import (
    Activation,
    Embedding,
    EncoderSpec,
    Layer,
    LayerNorm,
    LearnedPositions,
    PlainFeedForward,
    Pooler,
    SoftmaxAttention,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Concat, Ignore, Rename
from unmask.settings import Settings

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""config.json's ``hidden_act`` -> ours; the first name of each of ours is the one written."""


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    vocabulary: int = 30522,
    positions: int = 512,
    segments: int = 2,
    activation: Activation = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    eps: float = 1e-12,
    init_std: float = 0.02,
    padding_id: int | None = 0,
) -> EncoderSpec:
    """A BERT of the given sizes."""
    require_at_least("heads", heads, 1)
    if width % heads:
        raise UnknownArchitecture(f"width {width} does not divide into {heads} heads")
    norm = LayerNorm(eps)
    layer = Layer(
        mixer=SoftmaxAttention(heads, width // heads, dropout=attention_dropout),
        feedforward=PlainFeedForward(feedforward, activation),
        norm=norm,
        dropout=dropout,
    )
    return EncoderSpec(
        width=width,
        embedding=Embedding(
            vocabulary=vocabulary,
            width=width,
            positions=LearnedPositions(positions),
            segments=segments,
            norm=norm,
            dropout=dropout,
            padding_id=padding_id,
        ),
        layers=(layer,) * layers,
        pooler=Pooler(),
        init_std=init_std,
    )


def read(config: Settings) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("position_embedding_type", "absolute")
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("hidden_act", *ACTIVATIONS)
    return spec(
        layers=config.take("num_hidden_layers", 12),
        width=config.take("hidden_size", 768),
        heads=config.take("num_attention_heads", 12),
        feedforward=config.take("intermediate_size", 3072),
        vocabulary=config.take("vocab_size", 30522),
        positions=config.take("max_position_embeddings", 512),
        segments=config.take("type_vocab_size", 2),
        activation=ACTIVATIONS[config.take("hidden_act", "gelu")],
        dropout=config.take("hidden_dropout_prob", 0.1),
        attention_dropout=config.take("attention_probs_dropout_prob", 0.1),
        eps=config.take("layer_norm_eps", 1e-12),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    layer, embedding = encoder.layers[0], encoder.embedding
    mixer, network, norm = layer.mixer, layer.feedforward, layer.norm
    assert isinstance(mixer, SoftmaxAttention)
    assert isinstance(network, PlainFeedForward)
    assert isinstance(norm, LayerNorm)
    assert embedding.positions is not None
    return {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": mixer.dropout,
        "hidden_act": next(name for name, ours in ACTIVATIONS.items() if ours == network.activation),
        "hidden_dropout_prob": layer.dropout,
        "hidden_size": encoder.width,
        "initializer_range": encoder.init_std,
        "intermediate_size": network.width,
        "layer_norm_eps": norm.eps,
        "max_position_embeddings": embedding.positions.rows,
        "model_type": "bert",
        "num_attention_heads": mixer.heads,
        "num_hidden_layers": len(encoder.layers),
        "pad_token_id": embedding.padding_id,
        "position_embedding_type": "absolute",
        "type_vocab_size": embedding.segments,
        "vocab_size": embedding.vocabulary,
    }


def adapt(encoder: EncoderSpec, names: frozenset[str]) -> EncoderSpec:
    """Without the pooler where a checkpoint has none, as those saved from a masked-LM have."""
    return encoder if "pooler.dense.weight" in names else replace(encoder, pooler=None)


_SELF = "encoder.layer.{l}.attention.self."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.token_type_embeddings", "embedding.segments"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Concat((_SELF + "query", _SELF + "key", _SELF + "value"), "layers.{l}.attention.qkv"),
    Rename("encoder.layer.{l}.attention.output.dense", "layers.{l}.attention.out"),
    Rename("encoder.layer.{l}.attention.output.LayerNorm", "layers.{l}.attention_norm"),
    Rename("encoder.layer.{l}.intermediate.dense", "layers.{l}.feedforward.inner"),
    Rename("encoder.layer.{l}.output.dense", "layers.{l}.feedforward.outer"),
    Rename("encoder.layer.{l}.output.LayerNorm", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Ignore("cls.*", "a pretraining head, not part of the encoder"),
    Ignore("classifier.*", "a task head, not part of the encoder"),
    Ignore("qa_outputs.*", "a task head, not part of the encoder"),
)

_DEVLIN = "Devlin et al. 2019"

BERT = Family(
    name="bert",
    model_types=("bert",),
    paper=_DEVLIN,
    read=read,
    write=write,
    adapt=adapt,
    prefix="bert.",
    rows=ROWS,
    published=(
        Published(
            "google-bert/bert-base-uncased",
            spec(layers=12, width=768, heads=12, feedforward=3072),
            "Apache-2.0",
            _DEVLIN,
        ),
        Published(
            "google-bert/bert-base-cased",
            spec(layers=12, width=768, heads=12, feedforward=3072, vocabulary=28996),
            "Apache-2.0",
            _DEVLIN,
        ),
        Published(
            "google-bert/bert-large-uncased",
            spec(layers=24, width=1024, heads=16, feedforward=4096),
            "Apache-2.0",
            _DEVLIN,
        ),
        Published(
            "microsoft/MiniLM-L12-H384-uncased",
            spec(layers=12, width=384, heads=12, feedforward=1536),
            "MIT",
            "Wang et al. 2020",
        ),
        Published(
            "sentence-transformers/all-MiniLM-L6-v2",
            spec(layers=6, width=384, heads=12, feedforward=1536),
            "Apache-2.0",
            "Wang et al. 2020; Reimers & Gurevych 2019",
        ),
    ),
)
