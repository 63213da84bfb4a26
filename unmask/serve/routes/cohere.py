"""The route of Cohere's clients: ``/v2/rerank``, with ``/v1/rerank`` of the same body."""

import uuid
from typing import Any

from unmask.serve.errors import BadField
from unmask.serve.fields import Fields
from unmask.serve.routes.route import PostRoute, named
from unmask.serve.service import Call, Service

FIELDS = (
    "model",
    "query",
    "documents",
    "top_n",
    "max_tokens_per_doc",
    "priority",
    "return_documents",
    "truncate",
)


async def rerank(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """The documents by their relevance for the query, best first."""
    fields = Fields(body, FIELDS, service.limits.texts)
    served = service.models.named(fields.optional_text("model"), "rerank")
    query = fields.text("query")
    documents = fields.items("documents", object, "a list of strings")
    texts = [_text(document, index) for index, document in enumerate(documents)]
    top_n = fields.number("top_n", 1, 1 << 30)
    with_documents = fields.flag("return_documents", False)
    if "max_tokens_per_doc" in fields:
        raise BadField("max_tokens_per_doc", "max_tokens_per_doc is not supported; set truncate to true")
    truncation = service.truncation(fields.flag("truncate", False) if "truncate" in fields else None)
    scores = await service.run(
        call,
        lambda: served.rerank(
            query, texts, truncation=truncation, activation="sigmoid", pair_name=named("documents", False)
        ),
    )
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": float(scores[index])} for index in order
    ]
    if with_documents:
        for one in results:
            one["document"] = {"text": texts[one["index"]]}
    return {
        "id": str(uuid.uuid4()),
        "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


def _text(document: Any, index: int) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise BadField("documents", f"documents[{index}] must be a string, or an object with a text")
    return text


ROUTES = tuple(PostRoute(path, "cohere", rerank) for path in ("/v2/rerank", "/v1/rerank"))
