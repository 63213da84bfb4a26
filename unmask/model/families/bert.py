"""BERT (Devlin, Chang, Lee & Toutanova 2019) and its distillations in the same layout: MiniLM, TinyBERT.

Post-norm layers with exact GELU, learned absolute positions, two segments, and a pooler on [CLS].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.errors import UnknownArchitecture
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
from unmask.model.spec import (
    Activation,
    Classifier,
    Embedding,
    EncoderSpec,
    Layer,
    LayerNorm,
    LearnedPositions,
    MaskedLM,
    PlainFeedForward,
    Pooler,
    SoftmaxAttention,
    Transform,
)
from unmask.model.spec.check import require_at_least
from unmask.model.spec.rows import Concat, Copy, Ignore, Rename
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


def read(config: Settings, compat: Compat) -> EncoderSpec:
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
    mixer, network, norm = layer.mixer, feedforward_of(encoder), layer.norm
    assert isinstance(mixer, SoftmaxAttention)
    assert isinstance(norm, LayerNorm)
    assert embedding.positions is not None
    return {
        "architectures": architectures("Bert", encoder),
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
        **tying(encoder),
    }


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """Without the pooler where a checkpoint has none, as those saved from a masked-LM have."""
    norm = encoder.layers[0].norm
    activation = feedforward_of(encoder).activation
    tokens = classifies_tokens(config)
    return replace(
        encoder,
        pooler=encoder.pooler if "pooler.dense.weight" in shapes else None,
        heads=present(
            shapes,
            (
                "cls.predictions.transform.dense.weight",
                lambda w: predictor(
                    Transform(w, activation, norm), config, shapes, "cls.predictions.decoder"
                ),
            ),
            ("cls.seq_relationship.weight", lambda c: Classifier("next_sentence", c, "pooler")),
            (
                "classifier.weight",
                lambda c: (
                    Classifier("tokens", c, "tokens") if tokens else Classifier("sequence", c, "pooler")
                ),
            ),
            ("qa_outputs.weight", lambda c: Classifier("span", c, "tokens")),
        ),
    )


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With the heads that BERT was pretrained with: masked words and next sentence."""
    masked = MaskedLM(Transform(encoder.width, "gelu", encoder.layers[0].norm))
    return replace(encoder, heads=(masked, Classifier("next_sentence", 2, "pooler")))


def feedforward_of(encoder: EncoderSpec) -> PlainFeedForward:
    """The feed-forward network of a family whose layers all have the same plain one."""
    network = encoder.layers[0].feedforward
    assert isinstance(network, PlainFeedForward)
    return network


_SELF = "encoder.layer.{l}.attention.self."

ENCODER_ROWS = (
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
)
"""Names that the families after it kept."""

ROWS = (
    *ENCODER_ROWS,
    Rename("cls.predictions.transform.dense", "heads.masked.transform.dense"),
    Rename("cls.predictions.transform.LayerNorm", "heads.masked.transform.norm"),
    Rename("cls.predictions.bias", "heads.masked.bias"),
    Rename("cls.predictions.decoder", "heads.masked.decoder"),
    Copy("cls.predictions.decoder.weight", "embedding.words.weight"),
    Copy("cls.predictions.decoder.bias", "heads.masked.bias"),
    Rename("cls.seq_relationship", "heads.next_sentence.out"),
    Rename("classifier", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_outputs", "heads.span.out"),
)

_DEVLIN = "Devlin et al. 2019"

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)
BASE_CASED = spec(layers=12, width=768, heads=12, feedforward=3072, vocabulary=28996)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096)
MINI_12 = spec(layers=12, width=384, heads=12, feedforward=1536)
MINI_6 = spec(layers=6, width=384, heads=12, feedforward=1536)


def _published(name: str, encoder: EncoderSpec) -> Published:
    return Published(name, encoder, "Apache-2.0", _DEVLIN, pretraining(encoder))


BERT = Family(
    name="bert",
    model_types=("bert",),
    paper=_DEVLIN,
    read=read,
    adapt=adapt,
    write=write,
    prefix="bert.",
    rows=ROWS,
    published=(
        _published("google-bert/bert-base-uncased", BASE),
        _published("google-bert/bert-base-cased", BASE_CASED),
        _published("google-bert/bert-large-uncased", LARGE),
        Published("microsoft/MiniLM-L12-H384-uncased", MINI_12, "MIT", "Wang et al. 2020"),
        Published(
            "sentence-transformers/all-MiniLM-L6-v2",
            MINI_6,
            "Apache-2.0",
            "Wang et al. 2020; Reimers & Gurevych 2019",
        ),
    ),
)
