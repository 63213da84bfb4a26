"""RoBERTa (Liu et al. 2019) and models with the same architecture: XLM-R, CamemBERT, DistilRoBERTa.

The layers are BERT's. Positions begin after the padding id, so the first token uses row 2 of the table, and
there is one token type. XLM-R and CamemBERT are separate families because their config.json and classes have
different names; tensors and settings are the same.
"""

from dataclasses import replace
from typing import Any

from unmask.errors import CorruptCheckpoint
from unmask.families.bert import KEYS as BERT_KEYS
from unmask.families.bert import spec as bert_spec
from unmask.families.common import ENCODER_ROWS, LARGE, with_decoder
from unmask.families.family import SEARCH_LANGUAGES, Family, Release
from unmask.families.heads import CHOICE, DENSE_OR_TOKENS, SPAN, masked_words
from unmask.spec import EncoderSpec, LearnedPositions
from unmask.spec.config_keys import changed

KEYS = changed(BERT_KEYS, pad_token_id=1)

ROWS = ENCODER_ROWS


def spec(*, padding_id: int, positions: int, **bert: Any) -> EncoderSpec:
    """A RoBERTa of the given sizes; ``bert`` are other arguments of BERT's `spec`."""
    if positions < padding_id + 2:
        raise CorruptCheckpoint(
            f"max_position_embeddings is {positions}; it must be at least {padding_id + 2}, because "
            f"positions begin after pad_token_id, which is {padding_id}"
        )
    encoder = bert_spec(padding_id=padding_id, positions=positions, **bert)
    after_padding = LearnedPositions(positions, offset=padding_id + 1)
    return replace(encoder, embedding=replace(encoder.embedding, positions=after_padding))


HEADS = (
    masked_words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", activation="gelu"),
    *DENSE_OR_TOKENS,
    SPAN,
    CHOICE,
)

RELEASED = {
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
"""Keys of the published config.json files that differ from BERT's."""


def _family(name: str, model_type: str, stem: str, paper: str, *releases: Release) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        stem=stem,
        paper=paper,
        keys=with_decoder(KEYS),
        encoder_rows=ROWS,
        spec=spec,
        prefix="roberta.",
        heads=HEADS,
        releases=releases,
        released=RELEASED,
        license="MIT",
    )


ROBERTA = _family(
    "roberta",
    "roberta",
    "Roberta",
    "Liu et al. 2019",
    Release("FacebookAI/roberta-base"),
    Release("FacebookAI/roberta-large", LARGE),
    Release("distilbert/distilroberta-base", {"num_hidden_layers": 6}, "Sanh et al. 2019", "Apache-2.0"),
)

_WORDS = {"vocab_size": 250_002}


def _search(name: str, paper: str, **config: Any) -> Release:
    return Release(name, _WORDS | config, paper, roles=(), use=SEARCH_LANGUAGES)


XLM_ROBERTA = _family(
    "xlm_roberta",
    "xlm-roberta",
    "XLMRoberta",
    "Conneau et al. 2020",
    Release("FacebookAI/xlm-roberta-base", _WORDS),
    Release("FacebookAI/xlm-roberta-large", _WORDS | LARGE),
    _search("intfloat/multilingual-e5-base", "Wang et al. 2024"),
    _search("intfloat/multilingual-e5-large", "Wang et al. 2024", **LARGE),
    _search("BAAI/bge-m3", "Chen et al. 2024", max_position_embeddings=8194, **LARGE),
)

CAMEMBERT = _family(
    "camembert",
    "camembert",
    "Camembert",
    "Martin et al. 2020",
    Release("almanach/camembert-base", {"vocab_size": 32005}),
)
