"""The routes of Cohere's clients: ``/v2/rerank`` and ``/v2/embed``, and those under ``/v1``."""

import uuid
from typing import Any

from unmask.serve.errors import BadField
from unmask.serve.fields import (
    INTEGER,
    NUMBER,
    TEXT,
    VECTOR,
    Choice,
    Choices,
    Documents,
    Flag,
    Inputs,
    Text,
    TextList,
    Whole,
    record,
    rows,
)
from unmask.serve.models import ServedModel
from unmask.serve.routes.openai import in_base64
from unmask.serve.routes.route import DIMENSIONS, MODEL, TRUNCATE, PostRoute, Values, named, truncation_of
from unmask.serve.service import Call, Service
from unmask.spec import PooledVector
from unmask.tasks.embed import quantize
from unmask.tasks.prompts import prompt_of

RERANK = {
    "model": MODEL,
    "query": Text(required=True),
    "documents": Documents(required=True),
    "top_n": Whole(low=1),
    "max_tokens_per_doc": Whole(about="refused, never ignored"),
    "priority": Whole(low=-(1 << 30), about="accepted without effect"),
    "return_documents": Flag(default=False),
    "truncate": TRUNCATE,
}

_META = {"api_version": record(version=TEXT)}
RANKED = record(
    id=TEXT,
    results=rows(record({"document": record(text=TEXT)}, index=INTEGER, relevance_score=NUMBER)),
    meta=record(**_META, billed_units=record(search_units=INTEGER)),
)

INPUT_TYPES = ("search_document", "search_query", "classification", "clustering", "image")
TYPES = ("float", "base64", "binary", "ubinary", "int8", "uint8")
EMBED = {
    "model": MODEL,
    "texts": TextList(required=True),
    "input_type": Choice(options=INPUT_TYPES, about="chooses the model's prompt of that name or kind"),
    "embedding_types": Choices(options=TYPES, about="float if missing; int8 and uint8 are refused"),
    "output_dimension": DIMENSIONS,
    "max_tokens": Whole(about="refused, never ignored"),
    "priority": Whole(low=-(1 << 30), about="accepted without effect"),
    "truncate": Choice(
        options=("NONE", "END", "START"),
        about="END drops the end of texts that are too long; missing: as the server was started",
    ),
}
BY_TYPE = record({"float": rows(VECTOR), "base64": rows(TEXT), "binary": rows(rows(INTEGER)),
                  "ubinary": rows(rows(INTEGER))})  # fmt: skip
EMBEDDED_META = record(**_META, billed_units=record(input_tokens=INTEGER))
EMBEDDED = record({"response_type": TEXT}, id=TEXT, embeddings=BY_TYPE, texts=rows(TEXT), meta=EMBEDDED_META)
EMBEDDED_V1 = record(
    id=TEXT,
    embeddings={"anyOf": [rows(VECTOR), BY_TYPE]},
    texts=rows(TEXT),
    meta=EMBEDDED_META,
    response_type=TEXT,
)


async def rerank(service: Service, call: Call, values: Values) -> Any:
    """The documents by their relevance for the query, best first."""
    served = service.models.named(values["model"], "rerank")
    texts = values["documents"]
    _refuse(values, "max_tokens_per_doc")
    if served.reads_pairs:
        service.repeat(call, "query", values["query"], len(texts))
    relevance = await service.run(
        call,
        served,
        lambda: served.rerank(
            values["query"],
            texts,
            truncation=truncation_of(service, values),
            pair_name=named("documents", False),
        ),
    )
    order = sorted(range(len(texts)), key=lambda index: -relevance.raw[index])[: values["top_n"]]
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": relevance.shown[index]} for index in order
    ]
    if values["return_documents"]:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    return {
        "id": str(uuid.uuid4()),
        "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


async def embed(service: Service, call: Call, values: Values) -> Any:
    """The embeddings of texts, in one or several number formats."""
    kinds = values["embedding_types"] or ["float"]
    answer = await _embedded(service, call, values, kinds)
    return answer | {"meta": _meta(call, "2")}


async def embed_v1(service: Service, call: Call, values: Values) -> Any:
    """The embeddings of texts, as a list of vectors unless formats are named."""
    kinds = values["embedding_types"]
    answer = await _embedded(service, call, values, kinds or ["float"])
    if kinds is None:
        answer["embeddings"] = answer["embeddings"]["float"]
    shape = "embeddings_floats" if kinds is None else "embeddings_by_type"
    return answer | {"meta": _meta(call, "1"), "response_type": shape}


async def _embedded(service: Service, call: Call, values: Values, kinds: list[str]) -> dict[str, Any]:
    served = service.models.named(values["model"], "embed")
    for kind in ("int8", "uint8"):
        if kind in kinds:
            raise BadField(
                "embedding_types",
                f"embedding_types has {kind}, whose ranges would depend on the other texts of the request; "
                "ask for float, base64, binary or ubinary",
            )
    _refuse(values, "max_tokens")
    if values["truncate"] == "START":
        raise BadField("truncate", "truncate is START, and only the end of a text can be dropped; use END")
    truncate = None if values["truncate"] is None else values["truncate"] == "END"
    prompt = _prompt(served, values["input_type"])
    vectors = await service.run(
        call,
        served,
        lambda: served.embed(
            Inputs(values["texts"], None, False),
            truncation=service.truncation(truncate),
            dimensions=values["output_dimension"],
            prompt=prompt,
            name=named("texts", False),
        ),
    )
    forms: dict[str, Any] = {
        "float": lambda: vectors,
        "base64": lambda: [in_base64(row) for row in vectors],
        "binary": lambda: quantize(vectors, "binary"),
        "ubinary": lambda: quantize(vectors, "ubinary"),
    }
    return {
        "id": str(uuid.uuid4()),
        "embeddings": {kind: forms[kind]() for kind in kinds},
        "texts": values["texts"],
    }


def _prompt(served: ServedModel, input_type: str | None) -> str | None:
    """The model's prompt for texts of a type; None for its default.

    A prompt of the type's own name goes before the one for queries or documents.
    """
    head = served.model.checkpoint.head
    assert isinstance(head, PooledVector)
    if input_type == "image":
        raise BadField("input_type", "input_type is image, and the models read texts; use search_document")
    if input_type is None:
        return None
    named_prompt = dict(head.prompts).get(input_type)
    if named_prompt is not None:
        return named_prompt
    if input_type.startswith("search_"):
        prompt = prompt_of(head.prompts, "query" if input_type == "search_query" else "document")
        return prompt or None
    return None


def _meta(call: Call, version: str) -> dict[str, Any]:
    return {"api_version": {"version": version}, "billed_units": {"input_tokens": call.tokens}}


def _refuse(values: Values, name: str) -> None:
    if values[name] is not None:
        raise BadField(name, f"{name} is not supported; set truncate")


ROUTES = (
    *(PostRoute(path, "cohere", rerank, RERANK, RANKED) for path in ("/v2/rerank", "/v1/rerank")),
    PostRoute("/v2/embed", "cohere", embed, EMBED, EMBEDDED),
    PostRoute("/v1/embed", "cohere", embed_v1, EMBED, EMBEDDED_V1),
)
