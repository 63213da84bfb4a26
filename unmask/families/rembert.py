"""RemBERT (Chung et al. 2021): BERT's layers under a narrow embedding, with a wide matrix of its own that
predicts masked words.

The embedding is always projected to the encoder's width, as ALBERT's is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_ROWS, activation_of, with_decoder
from unmask.families.family import Family, Release
from unmask.families.heads import (
    CHOICE,
    POOLED_OR_TOKENS,
    SPAN,
    CheckpointInfo,
    masked_words,
    tying,
)
from unmask.spec import EncoderSpec, MaskedLM, Projection, Transform
from unmask.spec.config_keys import Key, changed
from unmask.spec.tensor_map import Rename

OUTPUT_WIDTH = 1664
"""The default width of the matrix that predicts words."""

KEYS = (
    *changed(
        BERT_KEYS,
        num_hidden_layers=32,
        hidden_size=1152,
        num_attention_heads=18,
        intermediate_size=4608,
        vocab_size=250300,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    Key("input_embedding_size", "embedding_width", 256),
)

ROWS = (*ENCODER_ROWS, Rename("encoder.embedding_hidden_mapping_in", "embedding.projection"))


def spec(**bert: Any) -> EncoderSpec:
    """A RemBERT of the given sizes; ``bert`` are arguments of BERT's `spec`."""
    return bert_spec(projection=Projection(), **bert)


def _masked(info: CheckpointInfo, width: int) -> MaskedLM:
    """The head, whose matrix is its own whatever config.json says; for a new encoder, that says its width."""
    if not info.has_weights:
        width = info.config.get("output_embedding_size", OUTPUT_WIDTH)
    transform = Transform(width, activation_of(info.encoder), info.encoder.layers[0].norm)
    return MaskedLM(transform, tied=False)


def _write_masked(head: MaskedLM) -> Mapping[str, Any]:
    assert head.transform is not None
    return {**tying(head), "output_embedding_size": head.transform.width}


HEADS = (
    replace(
        masked_words(
            "cls.predictions.dense",
            "cls.predictions.LayerNorm",
            "cls.predictions.decoder.bias",
            "cls.predictions.decoder",
        ),
        make=_masked,
        write=_write_masked,
    ),
    POOLED_OR_TOKENS,
    SPAN,
    CHOICE,
)

PUBLISHED = (Release("google/rembert"),)

REMBERT = Family(
    name="rembert",
    model_types=("rembert",),
    stem="RemBert",
    paper="Chung et al. 2021",
    keys=with_decoder(KEYS),
    encoder_rows=ROWS,
    spec=spec,
    prefix="rembert.",
    heads=HEADS,
    releases=PUBLISHED,
)
