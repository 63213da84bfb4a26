"""Typed routes under ``/v1``, such as entities, answers and attention. Errors are in OpenAI's form."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from unmask.interpret.attention.layer_statistics import HeadSummary
from unmask.serve import fields
from unmask.serve.errors import BadField
from unmask.serve.fields import (
    TEXT,
    VECTOR,
    Flag,
    Inputs,
    Schema,
    Share,
    Text,
    TextList,
    Texts,
    Whole,
    record,
    rows,
    schema_of,
)
from unmask.serve.ids import TextsOrPairs
from unmask.serve.routes.openai import USAGE, usage
from unmask.serve.routes.route import MODEL, TRUNCATE, PostRoute, Values, named, truncation_of
from unmask.serve.service import Call, Service
from unmask.tasks import answer, check_answer, choose, fill, follows, prune, redact, tag, zero_shot
from unmask.tasks.answer import MAX_ANSWER_TOKENS, Answers
from unmask.tasks.check_answer import AnswerCheck
from unmask.tasks.choose import Choice
from unmask.tasks.classify import THRESHOLD, Classification
from unmask.tasks.fill import FilledMask
from unmask.tasks.follows import Continuation
from unmask.tasks.prune import PrunedText
from unmask.tasks.reader import Ready
from unmask.tasks.redact import Redaction, Redactor, Replacement
from unmask.tasks.tag import Entity, Tagging
from unmask.tasks.values import LongTexts, PromptLanguage
from unmask.text import Encoding
from unmask.text.tokenizer import check_texts

TEXTS = Texts(required=True, about="one text or several; there is one result for each")
WINDOWS = Flag(
    default=False, about="drop the end of texts that are too long, which are otherwise read in windows"
)


MOST_ATTENTION_TOKENS = 1024
"""The longest text whose attention is measured: every head's every pair of tokens is looked at."""


async def entities(service: Service, call: Call, values: Values) -> Any:
    """The entities of each text, and the label of each of its words."""
    served = service.models.named(values["model"], "entities")
    inputs: Inputs = values["texts"]
    taggings = await service.run(
        call,
        served,
        lambda: tag.prepare(
            served.texts,
            inputs.texts,
            aggregation=values["aggregation"],
            truncation=_long(values),
            name=named("texts", inputs.single),
            labels=values["labels"],
            threshold=values["threshold"],
            nested=values["nested"],
            multi_label=values["multi_label"],
            vectors=values["vectors"],
        ),
    )
    return _results(call, served.name, taggings)


async def classes(service: Service, call: Call, values: Values) -> Any:
    """The label of each text, by the model's own labels or by those that are named."""
    served = service.models.named(values["model"], "classify")
    inputs: Inputs = values["texts"]
    options: dict[str, Any] = {"labels": values["labels"], "multi_label": values["multi_label"]}
    if values["labels"] is not None:
        service.repeat(call, "labels", "".join(values["labels"]), len(inputs.texts))
        if served.model.checkpoint.class_head is None:
            service.repeat(call, "texts", "".join(inputs.texts), len(values["labels"]))
    results = await service.run(
        call,
        served,
        lambda: zero_shot.prepare_classes(
            served.texts,
            inputs.texts,
            threshold=values["threshold"],
            truncation=_long(values),
            name=named("texts", inputs.single),
            **options,
        ),
    )
    return _results(call, served.name, results)


async def redactions(service: Service, call: Call, values: Values) -> Any:
    """Each text with personal data replaced, and where it was; without a model, identifiers alone."""
    inputs: Inputs = values["texts"]
    name = named("texts", inputs.single)
    if values["model"] is None and values["labels"] is not None:
        raise BadField("labels", "labels are for a model; name it, or leave labels out")
    served = None if values["model"] is None else service.models.named(values["model"], "entities")
    redactor = Redactor(
        () if served is None else redact.entity_types(served.texts, values["labels"]),
        only=values["only"],
        keep=values["keep"],
        replacement=values["replacement"],
    )
    if served is None:
        check_texts(inputs.texts, name)
        results = await service.aside(call, lambda: list(map(redactor, inputs.texts)))
        return {**_results(call, None, results), "note": redact.NOTE}
    reader = served.texts
    results = await service.run(
        call,
        served,
        lambda: redact.prepare(
            reader,
            inputs.texts,
            redactor,
            labels=values["labels"],
            threshold=values["threshold"],
            name=name,
        ),
    )
    return {**_results(call, served.name, results), "note": redact.NOTE}


async def answers(service: Service, call: Call, values: Values) -> Any:
    """The spans of the contexts that answer the question, most probable first."""
    served = service.models.named(values["model"], "answers")
    contexts: Inputs = values["contexts"]
    service.repeat(call, "question", values["question"], len(contexts.texts))
    (result,) = await service.run(
        call,
        served,
        lambda: answer.prepare(
            served.texts,
            [values["question"]],
            [contexts.texts],
            top_k=values["top_k"],
            max_answer_tokens=values["max_answer_tokens"],
            no_answer=values["no_answer"],
            null_threshold=values["null_threshold"],
            truncation=_long(values),
            name=lambda _: "question",
            context_name=named("contexts", contexts.single),
        ),
    )
    return {"model": served.name, **asdict(result), "usage": usage(call)}


async def checked_answer(service: Service, call: Call, values: Values) -> Any:
    """The parts of the answer that no context supports."""
    served = service.models.named(values["model"], "entities")
    contexts: Inputs = values["contexts"]
    service.repeat(call, "answer", values["answer"], len(contexts.texts))
    (result,) = await service.run(
        call,
        served,
        lambda: check_answer.prepare(
            served.texts,
            [values["answer"]],
            [contexts.texts],
            values["question"],
            threshold=values["threshold"],
            language=values["language"],
            max_tokens=values["max_tokens"],
            truncation=_long(values),
            name=lambda _: "answer",
            context_name=named("contexts", contexts.single),
        ),
    )
    return {"model": served.name, **asdict(result), "usage": usage(call)}


async def pruned(service: Service, call: Call, values: Values) -> Any:
    """The sentences of each document that the query needs, and the relevance of the document."""
    served = service.models.named(values["model"], "prune")
    documents: Inputs = values["documents"]
    service.repeat(call, "query", values["query"], len(documents.texts))
    rule = prune.rule_of(served.texts, values["threshold"], keep_first=values["keep_first"])
    results = await service.run(
        call,
        served,
        lambda: prune.prepare(
            served.texts,
            documents.texts,
            values["query"],
            rule,
            truncation=_long(values),
            name=named("documents", documents.single),
            query_name=lambda _: "query",
        ),
    )
    return _results(call, served.name, results)


async def choices(service: Service, call: Call, values: Values) -> Any:
    """The choice that fits the question best, and the probability of each."""
    served = service.models.named(values["model"], "choices")
    service.repeat(call, "question", values["question"], len(values["choices"]))
    (result,) = await service.run(
        call,
        served,
        lambda: choose.prepare(
            served.texts,
            [values["question"]],
            [values["choices"]],
            truncation=_long(values),
            name=lambda _: "question",
        ),
    )
    return {"model": served.name, **asdict(result), "usage": usage(call)}


async def follows_text(service: Service, call: Call, values: Values) -> Any:
    """Whether the second text of each pair follows the first, with the probability."""
    served = service.models.named(values["model"], "follows")
    firsts, seconds, single = values["pairs"]
    if seconds is None:
        raise BadField("pairs", "pairs has a text without a second; give lists of two texts")
    pairs = await service.run(
        call,
        served,
        lambda: follows.prepare(
            served.texts,
            firsts,
            seconds,
            truncation=truncation_of(service, values),
            name=named("pairs", single),
        ),
    )
    return _results(call, served.name, pairs)


async def masked_words(service: Service, call: Call, values: Values) -> Any:
    """For each text, the most probable words at each of its mask tokens."""
    served = service.models.named(values["model"], "masked_words")
    inputs: Inputs = values["texts"]
    words, top_k = served.model.spec.embedding.vocabulary, values["top_k"]
    if top_k > words:
        raise BadField("top_k", f"top_k is {top_k}, and the vocabulary has {words}; ask for fewer")
    filled = await service.run(
        call,
        served,
        lambda: fill.prepare(
            served.texts,
            inputs.texts,
            top_k=top_k,
            truncation=truncation_of(service, values),
            name=named("texts", inputs.single),
        ),
    )
    return _results(call, served.name, filled)


@dataclass(frozen=True)
class TextAttention:
    """The attention of every head on one text."""

    tokens: tuple[str, ...]
    """The vocabulary's spelling of each token."""
    heads: tuple[HeadSummary, ...]
    """Layer by layer."""


async def attention(service: Service, call: Call, values: Values) -> Any:
    """For each text and head: entropy, distance, the token that receives most, and to what it relates."""
    served = service.models.named(values["model"], "attention")
    inputs: Inputs = values["texts"]
    name = named("texts", inputs.single)

    def prepare() -> Ready[list[TextAttention]]:
        encodings = served.texts.tokenized(inputs.texts, truncation=truncation_of(service, values), name=name)
        for index, encoding in enumerate(encodings):
            if len(encoding) > MOST_ATTENTION_TOKENS:
                raise BadField(
                    "texts",
                    f"{name(index)} has {len(encoding):,} tokens, and attention is measured over at most "
                    f"{MOST_ATTENTION_TOKENS:,}; shorten it",
                    413,
                    "context_length_exceeded",
                )
        return Ready(encodings, _attention, list, "attention", name, reads_last_states=False)

    return _results(call, served.name, await service.run(call, served, prepare))


def _attention(engine: Any, *, encodings: Sequence[Encoding], **_: Any) -> list[TextAttention]:
    from unmask.interpret import AttentionView

    return [
        TextAttention(encoding.pieces, tuple(AttentionView(engine.encoder, encoding).summaries()))
        for encoding in encodings
    ]


def _long(values: Values) -> LongTexts:
    """What to do with texts that are too long, which are read in windows otherwise."""
    return "end" if values["truncate"] else "window"


def _results(call: Call, model: str | None, results: list[Any]) -> dict[str, Any]:
    return {"model": model, "results": results, "usage": usage(call)}


def _answered(kind: Any) -> Schema:
    return record(model=TEXT, results=rows(schema_of(kind)), usage=USAGE)


def _answered_once(kind: Any) -> Schema:
    return record(model=TEXT, usage=USAGE, **schema_of(kind)["properties"])


_TAGGED = _answered(Tagging)
_TAGGED["properties"]["results"]["items"]["properties"]["entities"] = rows(
    record({"vector": VECTOR}, **schema_of(Entity)["properties"])
)


ROUTES = (
    PostRoute(
        "/v1/entities",
        "openai",
        entities,
        {
            "texts": TEXTS,
            "model": MODEL,
            "aggregation": fields.Choice(
                options=("first", "mean"), default="first", about="which tokens of a word give its label"
            ),
            "labels": TextList(about="types of entities to find, for a model of GLiNER, which needs them"),
            "threshold": Share(default=THRESHOLD, about="with labels: what probability must be exceeded"),
            "nested": Flag(default=False, about="with labels: whether entities may lie inside others"),
            "multi_label": Flag(default=False, about="with labels: whether the same words may have several"),
            "vectors": Flag(
                default=False,
                about="with labels: whether each entity has the vector of its span, of the head's width",
            ),
            "truncate": WINDOWS,
        },
        _TAGGED,
    ),
    PostRoute(
        "/v1/classify",
        "openai",
        classes,
        {
            "texts": TEXTS,
            "model": MODEL,
            "labels": TextList(
                about="labels to choose from, for a model of GLiClass, which needs them, or NLI"
            ),
            "threshold": Share(default=THRESHOLD, about="with several labels: from which one applies"),
            "multi_label": Flag(
                default=False, about="with labels: whether several of them, or none, may apply"
            ),
            "truncate": WINDOWS,
        },
        _answered(Classification),
    ),
    PostRoute(
        "/v1/redact",
        "openai",
        redactions,
        {
            "texts": TEXTS,
            "model": Text(about="finds entities, which are replaced too; identifiers alone if it is missing"),
            "labels": TextList(about="types of entities to find, for a model of GLiNER, which needs them"),
            "threshold": Share(default=THRESHOLD, about="with labels: what probability must be exceeded"),
            "only": TextList(about="labels to replace, such as EMAIL; all that are found if it is missing"),
            "keep": TextList(about="labels to leave as they are"),
            "replacement": fields.Choice(
                options=get_args(Replacement),
                default="mask",
                about="the label, or a pseudonym, the same for the same value within the request",
            ),
        },
        record(
            model=schema_of(str | None),
            results=rows(schema_of(Redaction)),
            usage=USAGE,
            note=TEXT,
        ),
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
        _answered_once(Answers),
    ),
    PostRoute(
        "/v1/check_answer",
        "openai",
        checked_answer,
        {
            "answer": Text(required=True),
            "contexts": Texts(required=True, about="one text or several on which it should be based"),
            "question": Text(about="what was asked; without it the answer is read as a summary"),
            "model": MODEL,
            "threshold": Share(default=THRESHOLD, about="what probability an unsupported token must exceed"),
            "language": fields.Choice(
                options=get_args(PromptLanguage),
                default="en",
                about="the language of the sentences around contexts and question",
            ),
            "max_tokens": Whole(
                low=1, high=1_000_000, about="tokens of a window; as many as the model was trained to read"
            ),
            "truncate": WINDOWS,
        },
        _answered_once(AnswerCheck),
    ),
    PostRoute(
        "/v1/prune",
        "openai",
        pruned,
        {
            "query": Text(required=True),
            "documents": Texts(required=True, about="one text or several; there is one result for each"),
            "model": MODEL,
            "threshold": Share(about="how much a sentence must be needed to stay; missing: the checkpoint's"),
            "keep_first": Flag(default=False, about="keep the first sentence, such as a title, if any stays"),
            "truncate": WINDOWS,
        },
        _answered(PrunedText),
    ),
    PostRoute(
        "/v1/choices",
        "openai",
        choices,
        {
            "question": Text(required=True),
            "choices": TextList(required=True, about="two texts or more"),
            "model": MODEL,
            "truncate": WINDOWS,
        },
        _answered_once(Choice),
    ),
    PostRoute(
        "/v1/follows",
        "openai",
        follows_text,
        {
            "pairs": TextsOrPairs(required=True, about="two texts, or a list of such pairs"),
            "model": MODEL,
            "truncate": TRUNCATE,
        },
        _answered(Continuation),
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
        _answered(TextAttention),
    ),
)
