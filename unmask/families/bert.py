"""BERT (Devlin, Chang, Lee & Toutanova 2019), its distillations in the same layout, MiniLM and TinyBERT, and
ERNIE (Sun et al. 2019), whose later versions also add the vector of a task of their pretraining.

Post-norm layers with exact GELU, learned absolute positions, two token types, and a pooler on [CLS].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.families.common import (
    ENCODER_KEYS,
    ENCODER_ROWS,
    LARGE,
    NO_DECODER,
    head_width_of,
    post_norm_encoder,
    with_decoder,
    with_every_layer,
)
from unmask.families.family import SEARCH_LANGUAGES, Family, Release
from unmask.families.heads import CHOICE, POOLED_OR_TOKENS, SPAN, masked_words, pooled
from unmask.spec import (
    Activation,
    CausalAttention,
    EncoderSpec,
    FullAttention,
    LearnedPositions,
    PlainFeedForward,
    Pooler,
    Rotary,
    SoftmaxAttention,
)
from unmask.spec.check import require_size
from unmask.spec.config_keys import Arguments, Compat, Key, KeyGroup, in_range, only
from unmask.spec.tensor_map import Rename

KEYS = (
    only("position_embedding_type", "absolute", written=True),
    *NO_DECODER,
    *ENCODER_KEYS,
    Key("max_position_embeddings", "positions", 512),
)

ROWS = ENCODER_ROWS


def spec(
    *,
    width: int,
    heads: int,
    feedforward: int,
    activation: Activation,
    attention_dropout: float,
    positions: int,
    causal: bool = False,
    **others: Any,
) -> EncoderSpec:
    """A BERT of the given sizes; ``others`` are those of `post_norm_encoder`."""
    return post_norm_encoder(
        width=width,
        mixer=SoftmaxAttention(
            heads,
            head_width_of(width, heads),
            CausalAttention() if causal else FullAttention(),
            dropout=attention_dropout,
        ),
        feedforward=PlainFeedForward(feedforward, activation),
        positions=LearnedPositions(positions),
        **{"pooler": Pooler()} | others,
    )


def rotary_spec(*, rotary: Rotary, trained_tokens: int, **bert: Any) -> EncoderSpec:
    """A BERT with rotary positions instead of learned ones; ``bert`` are other arguments of `spec`."""
    encoder = spec(positions=1, **bert)
    embedding = replace(encoder.embedding, positions=None)
    encoder = replace(encoder, embedding=embedding, trained_tokens=trained_tokens)
    return with_every_layer(encoder, mixer={"position": rotary})


MASKED = masked_words(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
    "cls.predictions.decoder",
)
NEXT_SENTENCE = pooled("next_sentence", "cls.seq_relationship")
HEADS = (MASKED, NEXT_SENTENCE, POOLED_OR_TOKENS, SPAN, CHOICE)

_MINI = {"hidden_size": 384, "intermediate_size": 1536}
_WANG = "Wang et al. 2020"

PUBLISHED = (
    Release("google-bert/bert-base-uncased"),
    Release("google-bert/bert-base-cased", {"vocab_size": 28996}),
    Release("google-bert/bert-large-uncased", LARGE),
    Release("microsoft/MiniLM-L12-H384-uncased", _MINI, _WANG, "MIT", roles=()),
    Release(
        "sentence-transformers/all-MiniLM-L6-v2",
        {"num_hidden_layers": 6, **_MINI},
        f"{_WANG}; Reimers & Gurevych 2019",
        roles=(),
        use="sentence similarity and search",
    ),
    Release(
        "sentence-transformers/LaBSE",
        {"vocab_size": 501_153},
        "Feng et al. 2022",
        roles=(),
        use="sentence similarity across languages",
    ),
    Release(
        "intfloat/multilingual-e5-small",
        {"vocab_size": 250_037, **_MINI},
        "Wang et al. 2024",
        "MIT",
        roles=(),
        use=SEARCH_LANGUAGES,
    ),
)

BERT = Family(
    name="bert",
    model_types=("bert",),
    stem="Bert",
    paper="Devlin et al. 2019",
    keys=with_decoder(KEYS),
    encoder_rows=ROWS,
    spec=spec,
    prefix="bert.",
    heads=HEADS,
    releases=PUBLISHED,
    roles=("masked", "next_sentence"),
    causal_class="LMHeadModel",
)


def _read_tasks(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    rows = config.get("task_type_vocab_size", TASKS)
    in_range(config, "task_type_vocab_size", rows, require_size)
    return {"tasks": rows if config.get("use_task_id", False) else 0}


def _write_tasks(encoder: EncoderSpec) -> Mapping[str, Any]:
    rows = encoder.embedding.tasks
    return {"use_task_id": rows > 0, "task_type_vocab_size": rows or TASKS}


TASKS = 3
"""The default number of ERNIE's tasks of pretraining."""


def ernie_spec(*, tasks: int, **bert: Any) -> EncoderSpec:
    """An ERNIE of the given sizes: BERT's `spec` and a table of tasks, or none."""
    encoder = spec(**bert)
    return replace(encoder, embedding=replace(encoder.embedding, tasks=tasks))


ERNIE = Family(
    name="ernie",
    model_types=("ernie",),
    stem="Ernie",
    paper="Sun et al. 2019",
    keys=(*with_decoder(KEYS), KeyGroup(_read_tasks, _write_tasks)),
    encoder_rows=(*ROWS, Rename("embeddings.task_type_embeddings", "embedding.tasks")),
    spec=ernie_spec,
    prefix="ernie.",
    heads=HEADS,
    releases=(
        Release("nghuyong/ernie-2.0-base-en", paper="Sun et al. 2020"),
        Release(
            "nghuyong/ernie-3.0-base-zh",
            {"max_position_embeddings": 2048, "use_task_id": True, "vocab_size": 40000},
            "Sun et al. 2021",
        ),
    ),
    released={"layer_norm_eps": 1e-5, "type_vocab_size": 4},
)
