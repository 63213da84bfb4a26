"""MPNet (Song et al. 2020).

BERT's layers with RoBERTa's positions, which begin after the padding id, and relative position biases. There
are no token types.
"""

from dataclasses import replace
from typing import Any

from unmask.errors import CorruptCheckpoint
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_KEYS, NO_DECODER, with_every_layer
from unmask.families.family import Family, Release
from unmask.families.heads import CHOICE, DENSE_OR_TOKENS, SPAN, masked_words
from unmask.spec import EncoderSpec, LearnedPositions, RelativePositionBias
from unmask.spec.config_keys import Key, changed, only
from unmask.spec.tensor_map import Concat, Ignore, Rename

PADDING_ID = 1
"""In the authors' code positions begin after this id, whatever config.json says."""

KEYS = (
    *NO_DECODER,
    *changed(ENCODER_KEYS, vocab_size=30527, pad_token_id=PADDING_ID, type_vocab_size=...),
    Key("max_position_embeddings", "positions", 512),
    # With another number, the code still makes 32 buckets.
    only("relative_attention_num_buckets", RelativePositionBias.buckets, written=True),
)

_LAYER = "encoder.layer.{l}."

ROWS = (
    Rename("embeddings.word_embeddings", "embedding.words"),
    Rename("embeddings.position_embeddings", "embedding.positions"),
    Rename("embeddings.LayerNorm", "embedding.norm"),
    Ignore("embeddings.position_ids", "a buffer of 0, 1, 2 ..., computed here"),
    Rename("encoder.relative_attention_bias", "distances.table"),
    Concat(tuple(f"{_LAYER}attention.attn.{part}" for part in "qkv"), "layers.{l}.attention.qkv"),
    Rename(_LAYER + "attention.attn.o", "layers.{l}.attention.out"),
    Rename(_LAYER + "attention.LayerNorm", "layers.{l}.attention_norm"),
    Rename(_LAYER + "intermediate.dense", "layers.{l}.feedforward.inner"),
    Rename(_LAYER + "output.dense", "layers.{l}.feedforward.outer"),
    Rename(_LAYER + "output.LayerNorm", "layers.{l}.feedforward_norm"),
    Rename("pooler.dense", "pooler.dense"),
)


def spec(*, positions: int, **bert: Any) -> EncoderSpec:
    """An MPNet of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    first = PADDING_ID + 1
    if positions <= first:
        raise CorruptCheckpoint(
            f"max_position_embeddings is {positions}; it must be at least {first + 1}, because positions "
            f"begin at {first}"
        )
    encoder = bert_spec(positions=positions, segments=0, **bert)
    embedding = replace(encoder.embedding, positions=LearnedPositions(positions, offset=first))
    encoder = replace(encoder, embedding=embedding)
    return with_every_layer(encoder, mixer={"position": RelativePositionBias()})


HEADS = (
    masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", activation="gelu"),
    *DENSE_OR_TOKENS,
    SPAN,
    CHOICE,
)

PUBLISHED = (
    Release("microsoft/mpnet-base"),
    Release(
        "sentence-transformers/all-mpnet-base-v2",
        paper="Song et al. 2020; Reimers & Gurevych 2019",
        license="Apache-2.0",
        roles=(),
        use="sentence similarity and search",
    ),
)

MPNET = Family(
    name="mpnet",
    model_types=("mpnet",),
    stem="MPNet",
    paper="Song et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="mpnet.",
    heads=HEADS,
    releases=PUBLISHED,
    released={"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "pad_token_id": 1},
    license="MIT",
)
