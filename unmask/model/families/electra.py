"""ELECTRA (Clark, Luong, Le & Manning 2020): a generator of words and a discriminator that finds them.

Both are BERT's layers without a pooler, over an embedding that is projected where it is narrower or wider
than the encoder. A checkpoint holds one of the two; tensors say which.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.model.families.bert import ACTIVATIONS, ENCODER_ROWS, feedforward_of
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.bert import write as write_bert
from unmask.model.families.family import (
    Compat,
    Family,
    Published,
    Shapes,
    architectures,
    present,
    refuse_choices,
    tying,
)
from unmask.model.spec import Activation, Classifier, EncoderSpec, MaskedLM, Projection, Transform
from unmask.model.spec.rows import Copy, Rename
from unmask.settings import Settings


def spec(
    *,
    layers: int,
    width: int,
    heads: int,
    feedforward: int,
    embedding: int,
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
    """An ELECTRA of the given sizes."""
    encoder = bert_spec(
        layers=layers,
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
    projection = Projection() if embedding != width else None
    return replace(
        encoder,
        embedding=replace(encoder.embedding, width=embedding, projection=projection),
        pooler=None,
    )


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes."""
    config.require("position_embedding_type", "absolute")
    config.require("is_decoder", False)
    config.require("add_cross_attention", False)
    config.require("hidden_act", *ACTIVATIONS)
    return spec(
        layers=config.take("num_hidden_layers", 12),
        width=config.take("hidden_size", 256),
        heads=config.take("num_attention_heads", 4),
        feedforward=config.take("intermediate_size", 1024),
        embedding=config.take("embedding_size", 128),
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


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the heads that a checkpoint has.

    The discriminator's has the encoder's own activation; those of words and of texts always have GELU.
    """
    refuse_choices(config)
    width, norm, activation = encoder.width, encoder.layers[0].norm, feedforward_of(encoder).activation
    tied = config.take("tie_word_embeddings", True)
    return replace(
        encoder,
        heads=present(
            shapes,
            ("generator_predictions.dense.weight", lambda w: MaskedLM(Transform(w, "gelu", norm), tied)),
            (
                "discriminator_predictions.dense_prediction.weight",
                lambda c: Classifier("replaced", c, "tokens", Transform(width, activation)),
            ),
            (
                "classifier.out_proj.weight",
                lambda c: Classifier("sequence", c, "first", Transform(width, "gelu")),
            ),
            ("classifier.weight", lambda c: Classifier("tokens", c, "tokens")),
            ("qa_outputs.weight", lambda c: Classifier("span", c, "tokens")),
        ),
    )


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`."""
    return {
        **write_bert(encoder),
        "architectures": architectures("Electra", encoder),
        "embedding_size": encoder.embedding.width,
        "model_type": "electra",
        **tying(encoder),
    }


def discriminator(encoder: EncoderSpec) -> EncoderSpec:
    """With the head that says of each token whether it was replaced: above 0 means that it was."""
    transform = Transform(encoder.width, feedforward_of(encoder).activation)
    return replace(encoder, heads=(Classifier("replaced", 1, "tokens", transform),))


def generator(encoder: EncoderSpec) -> EncoderSpec:
    """With the head that proposes words, at the embedding's width."""
    transform = Transform(encoder.embedding.width, "gelu", encoder.layers[0].norm)
    return replace(encoder, heads=(MaskedLM(transform),))


ROWS = (
    *ENCODER_ROWS,
    Rename("embeddings_project", "embedding.projection"),
    Rename("generator_predictions.dense", "heads.masked.transform.dense"),
    Rename("generator_predictions.LayerNorm", "heads.masked.transform.norm"),
    Rename("generator_lm_head.bias", "heads.masked.bias"),
    Rename("generator_lm_head", "heads.masked.decoder"),
    Copy("generator_lm_head.weight", "embedding.words.weight"),
    Rename("discriminator_predictions.dense", "heads.replaced.transform.dense"),
    Rename("discriminator_predictions.dense_prediction", "heads.replaced.out"),
    Rename("classifier.dense", "heads.sequence.transform.dense"),
    Rename("classifier.out_proj", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_outputs", "heads.span.out"),
)

_CLARK = "Clark et al. 2020"

SMALL = spec(layers=12, width=256, heads=4, feedforward=1024, embedding=128)
BASE = spec(layers=12, width=768, heads=12, feedforward=3072, embedding=768)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096, embedding=1024)
BASE_GENERATOR = spec(layers=12, width=256, heads=4, feedforward=1024, embedding=768)
LARGE_GENERATOR = spec(layers=24, width=256, heads=4, feedforward=1024, embedding=1024)


def _published(name: str, encoder: EncoderSpec, pretrained: EncoderSpec) -> Published:
    return Published(name, encoder, "Apache-2.0", _CLARK, pretrained)


ELECTRA = Family(
    name="electra",
    model_types=("electra",),
    paper=_CLARK,
    read=read,
    adapt=adapt,
    write=write,
    prefix="electra.",
    rows=ROWS,
    published=(
        _published("google/electra-small-discriminator", SMALL, discriminator(SMALL)),
        _published("google/electra-base-discriminator", BASE, discriminator(BASE)),
        _published("google/electra-large-discriminator", LARGE, discriminator(LARGE)),
        _published("google/electra-base-generator", BASE_GENERATOR, generator(BASE_GENERATOR)),
        _published("google/electra-large-generator", LARGE_GENERATOR, generator(LARGE_GENERATOR)),
    ),
)
