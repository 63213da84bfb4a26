"""RoFormer (Su et al. 2021): BERT's layers with rotary positions in queries and keys.

Neighboring features are rotated, as in the paper. There is no table of positions and no pooler; the embedding
is projected if its width differs from the encoder's.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.bert import MASKED, rotary_spec
from unmask.families.common import (
    ENCODER_KEYS,
    ENCODER_ROWS,
    NO_DECODER,
    with_decoder,
)
from unmask.families.family import Family, Release
from unmask.families.heads import SPAN, TOKENS, CheckpointInfo, choice, dense_sequence
from unmask.spec import (
    Classifier,
    EncoderSpec,
    Projection,
    Rotary,
)
from unmask.spec.check import require_size
from unmask.spec.config_keys import Arguments, Compat, Key, KeyGroup, changed, in_range, only
from unmask.spec.tensor_map import Ignore, Rename

THETA = 10_000.0
"""The authors' constant."""


def _read_embedding(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    """Absent or null means the encoder's own width."""
    width = config.get_optional("embedding_size", int)
    width = arguments["width"] if width is None else width
    in_range(config, "embedding_size", width, require_size)
    return {"embedding_width": width}


def _write_embedding(encoder: EncoderSpec) -> Mapping[str, Any]:
    return {"embedding_size": encoder.embedding.width}


KEYS = (
    *NO_DECODER,
    only("rotary_value", False, written=True),
    *changed(ENCODER_KEYS, vocab_size=50000),
    KeyGroup(_read_embedding, _write_embedding),
    Key("max_position_embeddings", "trained_tokens", 1536),
)

ROWS = (
    *(
        row
        for row in ENCODER_ROWS
        if not (isinstance(row, Rename) and row.ours in ("embedding.positions", "pooler.dense"))
    ),
    Rename("embeddings_project", "embedding.projection"),
    Ignore("encoder.embed_positions.weight", "sines and cosines of positions, computed here"),
)


def spec(*, width: int, embedding_width: int, **bert: Any) -> EncoderSpec:
    """A RoFormer of the given sizes; ``bert`` are other arguments of BERT's `rotary_spec`."""
    return rotary_spec(
        rotary=Rotary(THETA, interleaved=True),
        width=width,
        embedding_width=embedding_width,
        projection=Projection() if embedding_width != width else None,
        pooler=None,
        **bert,
    )


SUMMARY: Mapping[str, Any] = {"summary_type": "first", "summary_use_proj": False, "summary_activation": None}
"""The keys of a multiple-choice head, and their supported values. `transformers` reads the last token where
``summary_type`` is absent, which for all but the longest choice is padding."""


def _choice(info: CheckpointInfo, classes: int) -> Classifier:
    absent = "last" if info.has_weights else "first"
    summary = {"summary_type": absent, **info.config.values}
    JsonSettings(info.config.name, summary).require_one_of("summary_type", "first")
    info.config.require_one_of("summary_use_proj", False, None)
    info.config.require_one_of("summary_activation", None)
    return Classifier("choice", classes, "first")


CHOICE_OF_FIRST = replace(choice(make=_choice), write=lambda head: SUMMARY)
"""A multiple-choice head that reads the first token's state, where config.json says so."""

HEADS = (
    MASKED,
    dense_sequence(None, dense="classifier.dense", name="classifier.out_proj"),
    TOKENS,
    SPAN,
    CHOICE_OF_FIRST,
)

PUBLISHED = (
    Release("junnyu/roformer_chinese_base"),
    Release(
        "junnyu/roformer_chinese_char_small",
        {
            "num_hidden_layers": 6,
            "hidden_size": 384,
            "num_attention_heads": 6,
            "intermediate_size": 1536,
            "vocab_size": 12000,
            "max_position_embeddings": 512,
        },
    ),
)

ROFORMER = Family(
    name="roformer",
    model_types=("roformer",),
    stem="RoFormer",
    paper="Su et al. 2021",
    keys=with_decoder(KEYS),
    encoder_rows=ROWS,
    spec=spec,
    prefix="roformer.",
    heads=HEADS,
    releases=PUBLISHED,
)
