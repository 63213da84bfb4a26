"""BigBird (Zaheer et al. 2020), the ITC variant: BERT with tanh GELU and block-sparse attention.

Two implementations differ for texts longer than `BlockSparse.whole_up_to`, 704 tokens as published. The
authors draw each layer's random blocks once, seeded by the layer's index, for both training and evaluation.
`transformers` does so only in training; in evaluation all random blocks are block 0, which then counts four
times. ``compat="published"`` selects the former, ``compat="hf"`` the latter.

The plan depends on the text's length in blocks. The authors pad a batch to one length and draw the plan for
that length; here, as in `transformers`, the plan depends on each text's own length.

The question-answering head is the authors' TriviaQA head: a feed-forward part with a residual. `transformers`
also subtracts 1e6 from the logits of the question's tokens; here that is left to the caller.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import MASKED, NEXT_SENTENCE
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_ROWS, LARGE, activation_of
from unmask.families.family import CheckpointInfo, Family, Release
from unmask.families.heads import CHOICE, TOKENS, HeadLayout, dense_sequence
from unmask.spec import BlockSparse, Classifier, EncoderSpec, FullAttention, ResidualTransform
from unmask.spec.check import require_size
from unmask.spec.config_keys import (
    Arguments,
    Compat,
    Field,
    Key,
    KeyGroup,
    changed,
    in_range,
    only,
    softmax_of,
)
from unmask.spec.tensor_map import Ignore, Rename


def _read_blocks(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    config.require_one_of("attention_type", "block_sparse", "original_full")
    block, random = config.get("block_size", 64), config.get("num_random_blocks", 3)
    in_range(config, "block_size", block, require_size)
    in_range(config, "num_random_blocks", random, partial(require_size, least=0))
    if config.get("attention_type", "block_sparse") == "original_full":
        return {"blocks": None, "drawn": False}
    blocks = BlockSparse(block, random, plan_tokens=max(arguments["positions"], block))
    return {"blocks": blocks, "drawn": compat == "published"}


def _write_blocks(encoder: EncoderSpec) -> Mapping[str, Any]:
    pattern = softmax_of(encoder).pattern
    if not isinstance(pattern, BlockSparse):
        return {"attention_type": "original_full"}
    return {
        "attention_type": "block_sparse",
        "block_size": pattern.block,
        "num_random_blocks": pattern.random_blocks,
    }


KEYS = (
    only("rescale_embeddings", False, written=True),
    *changed(BERT_KEYS, hidden_act="gelu_new", vocab_size=50358, max_position_embeddings=4096),
    Key("use_bias", "biases", True, field=Field(lambda encoder: softmax_of(encoder).query_bias)),
    KeyGroup(_read_blocks, _write_blocks),
)

ROWS = (
    *(row for row in ENCODER_ROWS if row != Rename("pooler.dense", "pooler.dense")),
    Rename("pooler", "pooler.dense"),
    Ignore("embeddings.token_type_ids", "a buffer of zeros, computed here"),
)


def spec(*, biases: bool, blocks: BlockSparse | None, drawn: bool, **bert: Any) -> EncoderSpec:
    """A BERT with this block-sparse pattern; with ``drawn``, layer l draws its random blocks from seed l."""
    encoder = bert_spec(**bert)
    mixer = replace(softmax_of(encoder), query_bias=biases, key_bias=biases, value_bias=biases)
    patterns = [
        FullAttention() if blocks is None else replace(blocks, seed=number if drawn else None)
        for number in range(len(encoder.layers))
    ]
    layers = (replace(encoder.layers[0], mixer=replace(mixer, pattern=pattern)) for pattern in patterns)
    return replace(encoder, layers=tuple(layers))


def _span(info: CheckpointInfo, classes: int) -> Classifier:
    layer, activation = info.encoder.layers[0], activation_of(info.encoder)
    transform = ResidualTransform(layer.feedforward.width, activation, layer.norm)
    return Classifier("span", classes, "tokens", transform)


HEADS = (
    MASKED,
    NEXT_SENTENCE,
    dense_sequence(None, dense="classifier.dense", name="classifier.out_proj"),
    TOKENS,
    HeadLayout(
        "qa_classifier.qa_outputs.weight",
        ("span",),
        _span,
        (
            Rename("qa_classifier.intermediate.dense", "heads.span.transform.inner"),
            Rename("qa_classifier.output.dense", "heads.span.transform.outer"),
            Rename("qa_classifier.output.LayerNorm", "heads.span.transform.norm"),
            Rename("qa_classifier.qa_outputs", "heads.span.out"),
        ),
    ),
    CHOICE,
)

PUBLISHED = (
    Release("google/bigbird-roberta-base"),
    Release("google/bigbird-roberta-large", LARGE),
)

BIGBIRD = Family(
    name="bigbird",
    model_types=("big_bird",),
    stem="BigBird",
    paper="Zaheer et al. 2020",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="bert.",
    heads=HEADS,
    releases=PUBLISHED,
    roles=("masked", "next_sentence"),
    hf_difference="in texts of more than 704 tokens the three random blocks are all block 0",
)
