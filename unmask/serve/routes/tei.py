"""The routes of clients of Hugging Face's Text Embeddings Inference (TEI) that run a model."""

from typing import Any, cast

from unmask.engines.engine import Floats
from unmask.serve.errors import BadField
from unmask.serve.fields import (
    INTEGER,
    NUMBER,
    TEXT,
    VECTOR,
    Choice,
    Flag,
    Inner,
    Inputs,
    Text,
    TextList,
    Whole,
    record,
    rows,
)
from unmask.serve.ids import TextsOrIds, TextsOrPairs
from unmask.serve.routes.route import (
    DIMENSIONS,
    MODEL,
    MOST_NUMBERS,
    PROMPT_NAME,
    TRUNCATE,
    PostRoute,
    Values,
    named,
    truncation_of,
)
from unmask.serve.service import Call, Service
from unmask.spec import PooledVector
from unmask.tasks import classify, hidden_states
from unmask.tasks.classify import Classification
from unmask.tasks.embed import similarity
from unmask.tasks.prompts import chosen_prompt
from unmask.tasks.reader import Ready
from unmask.text import Truncation

CUT = {
    "truncate": TRUNCATE,
    "truncation_direction": Choice(
        options=("right", "left", "Right", "Left"), default="right", about="left is refused with truncate"
    ),
}
INPUTS = TextsOrIds(required=True, about="texts, or token ids as /tokenize gives them")


async def embed(service: Service, call: Call, values: Values) -> Any:
    """A row of numbers for each text, also for a single one."""
    served = service.models.named(values["model"], "embed")
    inputs, truncation = values["inputs"], _truncation(service, values)
    return await service.run(
        call,
        served,
        lambda: served.embed(
            inputs,
            truncation=truncation,
            normalize=values["normalize"],
            dimensions=values["dimensions"],
            prompt_name=values["prompt_name"],
            name=named("inputs", inputs.single),
        ),
    )


async def embed_tokens(service: Service, call: Call, values: Values) -> Any:
    """The last hidden state of each token of each text, special tokens included, not normalized."""
    served = service.models.named(values["model"], "embed_all")
    inputs, prompt_name, truncation = values["inputs"], values["prompt_name"], _truncation(service, values)
    head = served.model.checkpoint.head
    if isinstance(head, PooledVector):
        prompt = chosen_prompt(head, None, prompt_name, served.name)
    elif prompt_name is not None:
        raise BadField("prompt_name", f"{served.name} has no prompts; leave prompt_name out")
    else:
        prompt = ""
    name = named("inputs", inputs.single)

    def prepare() -> Ready[list[Floats]]:
        if inputs.ids is not None:
            encodings = served.of_ids(inputs, prompt_name, truncation=truncation, name=name)
        else:
            texts = [prompt + text if text.strip() else text for text in inputs.texts]
            encodings = served.texts.tokenized(texts, truncation=truncation, name=name)
        ready = hidden_states.of_encodings(encodings)
        most = MOST_NUMBERS // served.model.spec.state_width
        if ready.tokens > most:
            raise BadField(
                "inputs",
                f"inputs have {ready.tokens:,} tokens, and vectors of {most:,} at most are answered; "
                "send fewer texts",
                413,
                "too_many_tokens",
            )
        return ready

    return await service.run(call, served, prepare)


async def embed_sparse(service: Service, call: Call, values: Values) -> Any:
    """The words of each text that have a weight (SPLADE)."""
    served = service.models.named(values["model"], "embed_sparse")
    inputs, truncation = values["inputs"], _truncation(service, values)
    if values["prompt_name"] is not None:
        raise BadField("prompt_name", "prompt_name is for embeddings; leave it out")
    weights = await service.run(
        call,
        served,
        lambda: served.embed_sparse(inputs, truncation=truncation, name=named("inputs", inputs.single)),
    )
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(text_weights.ids.tolist(), text_weights.weights.tolist(), strict=True)
        ]
        for text_weights in weights
    ]


async def rerank(service: Service, call: Call, values: Values) -> Any:
    """The texts by their relevance for the query, best first."""
    served = service.models.named(values["model"], "rerank")
    texts, truncation = values["texts"], _truncation(service, values)
    if served.reads_pairs:
        service.repeat(call, "query", values["query"], len(texts))
    relevance = await service.run(
        call,
        served,
        lambda: served.rerank(
            values["query"],
            texts,
            truncation=truncation,
            pair_name=named("texts", False),
        ),
    )
    order = sorted(range(len(texts)), key=lambda index: -relevance.raw[index])
    scores = relevance.raw if values["raw_scores"] else relevance.shown
    return [
        {"index": index, "score": scores[index]} | ({"text": texts[index]} if values["return_text"] else {})
        for index in order
    ]


async def predict(service: Service, call: Call, values: Values) -> Any:
    """The labels of each text or pair with their probabilities, best first."""
    served = service.models.named(values["model"], "predict")
    if values["raw_scores"]:
        raise BadField("raw_scores", "raw_scores is true, and only probabilities are served; leave it out")
    parameters = values["parameters"] or {"top_k": None, "function_to_apply": None}
    if parameters["function_to_apply"] is not None:
        raise BadField(
            "function_to_apply",
            "function_to_apply is given, and the model's own function is applied; leave it out",
        )
    (texts, pairs, single), truncation = values["inputs"], _truncation(service, values)
    classifications = await service.run(
        call,
        served,
        lambda: classify.prepare(
            served.texts, texts, pairs, truncation=truncation, name=named("inputs", single)
        ),
    )
    answers = [_labels(classification)[: parameters["top_k"]] for classification in classifications]
    # huggingface_hub's client, which alone sends parameters, takes the first of a list also for one text.
    return answers[0] if single and values["parameters"] is None else answers


async def similar(service: Service, call: Call, values: Values) -> Any:
    """The cosine of a sentence with each of several."""
    served = service.models.named(values["model"], "embed")
    inputs, parameters = values["inputs"], values["parameters"]
    if parameters is None:
        parameters = {"truncate": None, "truncation_direction": "right", "prompt_name": None}
    texts = [inputs["source_sentence"], *inputs["sentences"]]
    truncation = _truncation(service, parameters)

    def name(index: int) -> str:
        return "inputs.source_sentence" if index == 0 else f"inputs.sentences[{index - 1}]"

    embeddings_SE = await service.run(
        call,
        served,
        lambda: served.embed(
            Inputs(texts, None, False),
            truncation=truncation,
            prompt_name=parameters["prompt_name"],
            name=name,
        ),
    )
    return similarity(embeddings_SE[:1], embeddings_SE[1:])[0]


def _truncation(service: Service, values: Values) -> Truncation:
    truncation = truncation_of(service, values)
    if truncation == "end" and values["truncation_direction"].lower() == "left":
        raise BadField(
            "truncation_direction",
            "truncation_direction is left, and only the end of a text can be dropped; leave it out",
        )
    return truncation


def _labels(classification: Classification) -> list[dict[str, Any]]:
    labels = [{"score": score, "label": label} for label, score in classification.scores.items()]
    return sorted(
        labels, key=lambda row: (-cast("float", row["score"]), row["label"] != classification.label)
    )


_LABELS = rows(record(score=NUMBER, label=TEXT))
_NORMALIZE = Flag(default=True, about="whether vectors have length 1")

ROUTES = (
    PostRoute(
        "/embed",
        "tei",
        embed,
        {
            "inputs": INPUTS,
            **CUT,
            "prompt_name": PROMPT_NAME,
            "normalize": _NORMALIZE,
            "dimensions": DIMENSIONS,
            "model": MODEL,
        },
        rows(VECTOR),
    ),
    PostRoute(
        "/embed_all",
        "tei",
        embed_tokens,
        {"inputs": INPUTS, **CUT, "prompt_name": PROMPT_NAME, "model": MODEL},
        rows(rows(VECTOR)),
    ),
    PostRoute(
        "/embed_sparse",
        "tei",
        embed_sparse,
        {"inputs": INPUTS, **CUT, "prompt_name": PROMPT_NAME, "model": MODEL},
        rows(rows(record(index=INTEGER, value=NUMBER))),
    ),
    PostRoute(
        "/rerank",
        "tei",
        rerank,
        {
            "query": Text(required=True),
            "texts": TextList(required=True),
            **CUT,
            "raw_scores": Flag(default=False),
            "return_text": Flag(default=False),
            "model": MODEL,
        },
        rows(record({"text": TEXT}, index=INTEGER, score=NUMBER)),
    ),
    PostRoute(
        "/predict",
        "tei",
        predict,
        {
            "inputs": TextsOrPairs(required=True),
            **CUT,
            "raw_scores": Flag(default=False, about="true is refused"),
            "parameters": Inner(
                body={"top_k": Whole(low=1), "function_to_apply": Text(about="refused, never ignored")},
                about="what huggingface_hub's InferenceClient sends",
            ),
            "model": MODEL,
        },
        {"anyOf": [_LABELS, rows(_LABELS)]},
    ),
    PostRoute(
        "/similarity",
        "tei",
        similar,
        {
            "inputs": Inner(
                required=True,
                body={"source_sentence": Text(required=True), "sentences": TextList(required=True)},
            ),
            "parameters": Inner(body={**CUT, "prompt_name": PROMPT_NAME}),
            "model": MODEL,
        },
        VECTOR,
    ),
)
