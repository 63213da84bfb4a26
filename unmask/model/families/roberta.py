"""RoBERTa (Liu et al. 2019) and what is built like it: XLM-R, CamemBERT, DistilRoBERTa.

BERT's layers. Positions begin after the padding id, so that row 2 of the table is the first token's, and
there is one segment. XLM-R and CamemBERT are families of their own because their config.json and their
classes have names of their own; tensors and settings are the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.model.families.bert import ENCODER_ROWS
from unmask.model.families.bert import read as read_bert
from unmask.model.families.bert import spec as bert_spec
from unmask.model.families.bert import write as write_bert
from unmask.model.families.family import (
    Compat,
    Family,
    Published,
    Shapes,
    architectures,
    predictor,
    present,
    refuse_choices,
)
from unmask.model.spec import Classifier, EncoderSpec, LearnedPositions, MaskedLM, Transform
from unmask.model.spec.rows import Copy, Rename
from unmask.settings import Settings

PADDING_ID = 1
"""Of every published checkpoint."""


def spec(*, layers: int, width: int, heads: int, feedforward: int, vocabulary: int = 50265) -> EncoderSpec:
    """A RoBERTa of the given sizes, for texts of at most 512 tokens."""
    encoder = bert_spec(
        layers=layers,
        width=width,
        heads=heads,
        feedforward=feedforward,
        vocabulary=vocabulary,
        positions=514,
        segments=1,
        eps=1e-5,
        padding_id=PADDING_ID,
    )
    return after_padding(encoder, PADDING_ID)


def after_padding(encoder: EncoderSpec, padding_id: int) -> EncoderSpec:
    """With positions that begin at ``padding_id + 1``."""
    positions = encoder.embedding.positions
    assert positions is not None
    moved = LearnedPositions(positions.rows, offset=padding_id + 1)
    return replace(encoder, embedding=replace(encoder.embedding, positions=moved, padding_id=padding_id))


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that a config.json of this family describes: BERT's keys, with their meanings."""
    return after_padding(read_bert(config, compat), config.take("pad_token_id", PADDING_ID))


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """With the heads that a checkpoint has; its classes with heads have no pooler."""
    refuse_choices(config)
    width, norm = encoder.width, encoder.layers[0].norm
    return replace(
        encoder,
        pooler=encoder.pooler if "pooler.dense.weight" in shapes else None,
        heads=present(
            shapes,
            (
                "lm_head.dense.weight",
                lambda w: predictor(Transform(w, "gelu", norm), config, shapes, "lm_head.decoder"),
            ),
            (
                "classifier.out_proj.weight",
                lambda c: Classifier("sequence", c, "first", Transform(width, "tanh")),
            ),
            ("classifier.weight", lambda c: Classifier("tokens", c, "tokens")),
            ("qa_outputs.weight", lambda c: Classifier("span", c, "tokens")),
        ),
    )


def write(model_type: str, stem: str, encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of a spec made by `spec`; ``stem`` begins the names of its classes."""
    names = {"architectures": architectures(stem, encoder), "model_type": model_type}
    return {**write_bert(encoder), **names}


def pretraining(encoder: EncoderSpec) -> EncoderSpec:
    """With the head that it was pretrained with: masked words, and no pooler."""
    masked = MaskedLM(Transform(encoder.width, "gelu", encoder.layers[0].norm))
    return replace(encoder, pooler=None, heads=(masked,))


ROWS = (
    *ENCODER_ROWS,
    Rename("lm_head.dense", "heads.masked.transform.dense"),
    Rename("lm_head.layer_norm", "heads.masked.transform.norm"),
    Rename("lm_head.bias", "heads.masked.bias"),
    Rename("lm_head.decoder", "heads.masked.decoder"),
    Copy("lm_head.decoder.weight", "embedding.words.weight"),
    Copy("lm_head.decoder.bias", "heads.masked.bias"),
    Rename("classifier.dense", "heads.sequence.transform.dense"),
    Rename("classifier.out_proj", "heads.sequence.out"),
    Rename("classifier", "heads.tokens.out"),
    Rename("qa_outputs", "heads.span.out"),
)

BASE = spec(layers=12, width=768, heads=12, feedforward=3072)
LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096)
DISTILLED = spec(layers=6, width=768, heads=12, feedforward=3072)
XLM_BASE = spec(layers=12, width=768, heads=12, feedforward=3072, vocabulary=250002)
XLM_LARGE = spec(layers=24, width=1024, heads=16, feedforward=4096, vocabulary=250002)
CAMEMBERT_BASE = spec(layers=12, width=768, heads=12, feedforward=3072, vocabulary=32005)


def _published(name: str, encoder: EncoderSpec, paper: str, licence: str = "MIT") -> Published:
    return Published(name, encoder, licence, paper, pretraining(encoder))


def _family(name: str, model_type: str, stem: str, *published: Published) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        paper=published[0].paper,
        read=read,
        adapt=adapt,
        write=partial(write, model_type, stem),
        prefix="roberta.",
        rows=ROWS,
        published=published,
    )


ROBERTA = _family(
    "roberta",
    "roberta",
    "Roberta",
    _published("FacebookAI/roberta-base", BASE, "Liu et al. 2019"),
    _published("FacebookAI/roberta-large", LARGE, "Liu et al. 2019"),
    _published("distilbert/distilroberta-base", DISTILLED, "Sanh et al. 2019", "Apache-2.0"),
)

XLM_ROBERTA = _family(
    "xlm_roberta",
    "xlm-roberta",
    "XLMRoberta",
    _published("FacebookAI/xlm-roberta-base", XLM_BASE, "Conneau et al. 2020"),
    _published("FacebookAI/xlm-roberta-large", XLM_LARGE, "Conneau et al. 2020"),
)

CAMEMBERT = _family(
    "camembert",
    "camembert",
    "Camembert",
    _published("almanach/camembert-base", CAMEMBERT_BASE, "Martin et al. 2020"),
)
