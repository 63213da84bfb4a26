"""ELECTRA (Clark, Luong, Le & Manning 2020): a generator that replaces words and a discriminator that
detects them.

Both are BERT's layers without a pooler, over an embedding that is projected if its width differs from the
encoder's. A checkpoint contains one of the two; its tensors determine which.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_ROWS, LARGE, activation_of, with_decoder
from unmask.families.family import Family, Release
from unmask.families.heads import (
    SPAN,
    TOKENS,
    CheckpointInfo,
    choice,
    classifier,
    dense_sequence,
    masked_words,
)
from unmask.spec import Classifier, EncoderSpec, Projection, Transform
from unmask.spec.config_keys import Key, changed
from unmask.spec.tensor_map import Rename

KEYS = (
    *changed(BERT_KEYS, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
    Key("embedding_size", "embedding_width", 128),
)

ROWS = (
    *(row for row in ENCODER_ROWS if row != Rename("pooler.dense", "pooler.dense")),
    Rename("embeddings_project", "embedding.projection"),
)


def spec(*, width: int, embedding_width: int, **bert: Any) -> EncoderSpec:
    """An ELECTRA of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    projection = Projection() if embedding_width != width else None
    return bert_spec(width=width, embedding_width=embedding_width, projection=projection, pooler=None, **bert)


SUMMARY: Mapping[str, Any] = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_proj_to_labels": False,
}
"""The keys of a multiple-choice head, which reads a summary of the states, and their supported values."""


def _choice(info: CheckpointInfo, classes: int) -> Classifier:
    for key, value in SUMMARY.items():
        info.config.require_one_of(key, value)
    return Classifier("choice", classes, "first", Transform(info.encoder.width, "gelu"))


HEADS = (
    masked_words(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
        "generator_lm_head",
        activation="gelu",
    ),
    classifier(
        "replaced",
        "discriminator_predictions.dense_prediction",
        lambda info, classes: Classifier(
            "replaced", classes, "tokens", Transform(info.encoder.width, activation_of(info.encoder))
        ),
        "discriminator_predictions.dense",
    ),
    dense_sequence("gelu", dense="classifier.dense", name="classifier.out_proj"),
    TOKENS,
    SPAN,
    replace(choice("sequence_summary.summary", make=_choice), write=lambda head: SUMMARY),
)
"""The discriminator's head uses the encoder's activation; MLM and text heads always use GELU."""

_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 768}

PUBLISHED = (
    Release("google/electra-small-discriminator"),
    Release("google/electra-base-discriminator", _BASE),
    Release("google/electra-large-discriminator", {**LARGE, "embedding_size": 1024}),
    Release("google/electra-base-generator", {"embedding_size": 768}, roles=("masked",)),
    Release(
        "google/electra-large-generator",
        {"num_hidden_layers": 24, "embedding_size": 1024},
        roles=("masked",),
    ),
)

ELECTRA = Family(
    name="electra",
    model_types=("electra",),
    stem="Electra",
    paper="Clark et al. 2020",
    keys=with_decoder(KEYS),
    encoder_rows=ROWS,
    spec=spec,
    prefix="electra.",
    heads=HEADS,
    releases=PUBLISHED,
    roles=("replaced",),
)
