"""Typed routes under ``/v1``: entities, answers, masked words, attention. Errors are in OpenAI's form."""

from dataclasses import asdict
from typing import Any

from unmask.serve import typed
from unmask.serve.fields import Choice, Flag, Inputs, Schema, Share, Text, Texts, Whole
from unmask.serve.routes.openai import USAGE, usage
from unmask.serve.routes.route import MODEL, TRUNCATE, Given, PostRoute, named, truncation_of
from unmask.serve.schemas import TEXT, record, rows, schema_of
from unmask.serve.service import Call, Service
from unmask.tasks.answer import MAX_ANSWER_TOKENS, Answers
from unmask.tasks.fill import FilledMask
from unmask.tasks.tag import Tagging

TEXTS = Texts(required=True, about="one text or several; there is one result for each")
WINDOWS = Flag(
    default=False, about="drop the end of texts that are too long, which are otherwise read in windows"
)


async def entities(service: Service, call: Call, given: Given) -> Any:
    """The entities of each text, and the label of each of its words."""
    served = service.models.named(given["model"], "entities")
    inputs: Inputs = given["texts"]
    found = await service.run(
        call,
        lambda: typed.entities(
            served,
            inputs.texts,
            aggregation=given["aggregation"],
            truncate=given["truncate"],
            name=named("texts", inputs.single),
            most_tokens=service.limits.queued_tokens,
        ),
    )
    return _results(call, served.name, found)


async def answers(service: Service, call: Call, given: Given) -> Any:
    """The spans of the contexts that answer the question, most probable first."""
    served = service.models.named(given["model"], "answers")
    contexts: Inputs = given["contexts"]
    service.repeat(call, "question", given["question"], len(contexts.texts))
    (found,) = await service.run(
        call,
        lambda: typed.answers(
            served,
            given["question"],
            contexts.texts,
            truncate=given["truncate"],
            name=named("contexts", contexts.single),
            most_tokens=service.limits.queued_tokens,
            top_k=given["top_k"],
            max_answer_tokens=given["max_answer_tokens"],
            no_answer=given["no_answer"],
            null_threshold=given["null_threshold"],
        ),
    )
    return {"model": served.name, **asdict(found), "usage": usage(call)}


async def masked_words(service: Service, call: Call, given: Given) -> Any:
    """For each text, the most probable words at each of its mask tokens."""
    served = service.models.named(given["model"], "masked_words")
    inputs: Inputs = given["texts"]
    found = await service.run(
        call,
        lambda: typed.masked_words(
            served,
            inputs.texts,
            top_k=given["top_k"],
            truncation=truncation_of(service, given),
            name=named("texts", inputs.single),
        ),
    )
    return _results(call, served.name, found)


async def attention(service: Service, call: Call, given: Given) -> Any:
    """For each text and head: entropy, distance, the token that receives most, and to what it relates."""
    served = service.models.named(given["model"], "attention")
    inputs: Inputs = given["texts"]
    found = await service.run(
        call,
        lambda: typed.attention(
            served,
            inputs.texts,
            truncation=truncation_of(service, given),
            name=named("texts", inputs.single),
        ),
    )
    return _results(call, served.name, found)


def _results(call: Call, model: str, found: list[Any]) -> dict[str, Any]:
    return {"model": model, "results": found, "usage": usage(call)}


def _answered(kind: Any) -> Schema:
    return record(model=TEXT, results=rows(schema_of(kind)), usage=USAGE)


_ANSWERS = schema_of(Answers)

ROUTES = (
    PostRoute(
        "/v1/entities",
        "openai",
        entities,
        {
            "texts": TEXTS,
            "model": MODEL,
            "aggregation": Choice(
                options=("first", "mean"), default="first", about="which tokens of a word give its label"
            ),
            "truncate": WINDOWS,
        },
        _answered(Tagging),
    ),
    PostRoute(
        "/v1/answers",
        "openai",
        answers,
        {
            "question": Text(required=True),
            "contexts": Texts(required=True, about="one text or several in which to look"),
            "model": MODEL,
            "top_k": Whole(low=1, high=100, default=1, about="the most answers"),
            "max_answer_tokens": Whole(
                low=1, high=512, default=MAX_ANSWER_TOKENS, about="the longest answer"
            ),
            "no_answer": Flag(default=False, about="whether the contexts may lack the answer"),
            "null_threshold": Share(default=0.5, about="no answer if its probability exceeds this"),
            "truncate": WINDOWS,
        },
        record(model=TEXT, usage=USAGE, **_ANSWERS["properties"]),
    ),
    PostRoute(
        "/v1/masked_words",
        "openai",
        masked_words,
        {
            "texts": Texts(required=True, about="texts with mask tokens, such as [MASK]"),
            "model": MODEL,
            "top_k": Whole(low=1, high=1000, default=5, about="the predictions for each mask"),
            "truncate": TRUNCATE,
        },
        _answered(tuple[FilledMask, ...]),
    ),
    PostRoute(
        "/v1/attention",
        "openai",
        attention,
        {"texts": TEXTS, "model": MODEL, "truncate": TRUNCATE},
        _answered(typed.TextAttention),
    ),
)
