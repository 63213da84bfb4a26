"""DistilBERT (Sanh et al. 2019): half of BERT's layers, taught by it.

BERT's layers without segments and without a pooler; norms have an epsilon of 1e-12 in every checkpoint.
In training, attention's output is dropped out as in BERT; the authors' code does not do that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.model.families.bert import ACTIVATIONS, feedforward_of
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.family import (
    Compat,
    Family,
    Published,
    Shapes,
    architectures,
    present,
    tying,
)
from unmask.model.spec import (
    Activation,
    Classifier,
    EncoderSpec,
    Head,
    MaskedLM,
    SoftmaxAttention,
    Transform,
)
from unmask.model.spec.rows import Concat, Copy, Ignore, Rename
from unmask.settings import Settings


def spec(
    *,
    layers: int = 6,
    width: int = 768,
    heads: int = 12,
    feedforward: int = 3072,
    vocabulary: int = 30522,
    positions: int = 512,
    activation: Activation = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    init_std: float = 0.02,
    padding_id: int | None = 0,
) -> EncoderSpec:
    """A DistilBERT of the given sizes."""
    encoder = bert_spec(
        layers=layers,
        width=width,
        heads=heads,
        feedforward=feedforward,
        vocabulary=vocabulary,
        positions=positions,
        segments=0,
        activation=activation,
        dropout=dropout,
        attention_dropout=attention_dropout,
        init_std=init_std,
        padding_id=padding_id,
    )
    return replace(encoder, pooler=None)


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("activation", *ACTIVATIONS)
    return spec(
        layers=config.take("n_layers", 6),
        width=config.take("dim", 768),
        heads=config.take("n_heads", 12),
        feedforward=config.take("hidden_dim", 3072),
        vocabulary=config.take("vocab_size", 30522),
        positions=config.take("max_position_embeddings", 512),
        activation=ACTIVATIONS[config.take("activation", "gelu")],
        dropout=config.take("dropout", 0.1),
        attention_dropout=config.take("attention_dropout", 0.1),
        init_std=config.take("initializer_range", 0.02),
        padding_id=config.maybe("pad_token_id", int),
    )


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the heads that a checkpoint has."""
    norm, activation = encoder.layers[0].norm, feedforward_of(encoder).activation
    tied = config.take("tie_word_embeddings", True)

    def classifier(classes: int) -> Head:
        if "pre_classifier.weight" in shapes:
            return Classifier("sequence", classes, "first", Transform(encoder.width, "relu"))
        return Classifier("tokens", classes, "tokens")

    return replace(
        encoder,
        heads=present(
            shapes,
            ("vocab_transform.weight", lambda w: MaskedLM(Transform(w, activation, norm), tied)),
            ("classifier.weight", classifier),
            ("qa_outputs.weight", lambda c: Classifier("span", c, "tokens")),
        ),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    layer, embedding, network = encoder.layers[0], encoder.embedding, feedforward_of(encoder)
    mixer = layer.mixer
    assert isinstance(mixer, SoftmaxAttention)
    assert embedding.positions is not None
    return {
        "activation": next(name for name, ours in ACTIVATIONS.items() if ours == network.activation),
        "architectures": architectures("DistilBert", encoder),
        "attention_dropout": mixer.dropout,
        "dim": encoder.width,
        "dropout": layer.dropout,
        "hidden_dim": network.width,
        "initializer_range": encoder.init_std,
        "max_position_embeddings": embedding.positions.rows,
        "model_type": "distilbert",
        "n_heads": mixer.heads,
        "n_layers": len(encoder.layers),
        "pad_token_id": embedding.padding_id,
        "vocab_size": embedding.vocabulary,
        **tying(encoder),
    }


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With the head that it was pretrained with: masked words."""
    return replace(encoder, heads=(MaskedLM(Transform(encoder.width, "gelu", encoder.layers[0].norm)),))


_LAYER = "transformer.layer.{l}."
_ATTENTION = _LAYER + "attention."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Concat((_ATTENTION + "q_lin", _ATTENTION + "k_lin", _ATTENTION + "v_lin"), "layers.{l}.attention.qkv"),
    Rename(_ATTENTION + "out_lin", "layers.{l}.attention.out"),
    Rename(_LAYER + "sa_layer_norm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "ffn.lin1", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "ffn.lin2", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "output_layer_norm", "layers.{l}.feedforward_norm"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Rename("vocab_transform", "heads.masked.transform.dense"),
    Rename("vocab_layer_norm", "heads.masked.transform.norm"),
    Rename("vocab_projector.bias", "heads.masked.bias"),
    Rename("vocab_projector", "heads.masked.decoder"),
    Copy("vocab_projector.weight", "embedding.words.weight"),
    Rename("pre_classifier", "heads.sequence.transform.dense"),
    Rename("classifier", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_outputs", "heads.span.out"),
)

_SANH = "Sanh et al. 2019"

BASE = spec()

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    paper=_SANH,
    read=read,
    adapt=adapt,
    write=write,
    prefix="distilbert.",
    rows=ROWS,
    published=(
        Published("distilbert/distilbert-base-uncased", BASE, "Apache-2.0", _SANH, pretraining(BASE)),
    ),
)
