"""``/v1/search``: the passages of an index that fit a query, with explanations."""

from dataclasses import asdict
from typing import Any, get_args

from unmask.search.options import Fusion, Mode, Unit
from unmask.search.values import Hit
from unmask.serve.fields import (
    BOOLEAN,
    INTEGER,
    TEXT,
    Choice,
    Flag,
    Text,
    TextList,
    Whole,
    record,
    rows,
    schema_of,
)
from unmask.serve.routes.route import TRUNCATE, PostRoute, Values, truncation_of
from unmask.serve.searching import reranker_named, search
from unmask.serve.service import Call, Service


async def passages(service: Service, call: Call, values: Values) -> Any:
    """The best passages of an index for a query, with the document and the characters of each."""
    served = service.indexes.named(values["index"])
    reranker = None if values["reranker"] is None else reranker_named(service.models, values["reranker"])
    explained = {"none": False, "shares": "shares", "attribution": True}[values["explain"]]
    (hits,) = await service.run(
        call,
        served,
        lambda: search(
            served,
            values["query"],
            values["k"],
            truncation=truncation_of(service, values),
            mode=values["mode"],
            unit=values["unit"],
            filter=values["filter"],
            reranker=reranker,
            candidates=values["candidates"],
            fusion=values["fusion"],
            approximate=values["approximate"],
            why=explained,
        ),
    )
    call.truncated += hits.truncated
    service.metrics.truncated.add(int(hits.truncated))
    return {
        "index": served.name,
        "generation": hits.generation,
        "query_truncated": hits.truncated,
        "hits": [asdict(hit) for hit in hits.hits],
    }


BODY = {
    "query": Text(required=True),
    "index": Text(about="the name of the index; the first if it is missing"),
    "k": Whole(low=1, high=100, default=10, about="how many hits"),
    "mode": Choice(options=get_args(Mode), about="rank by one view, or fuse all; hybrid if possible"),
    "unit": Choice(options=get_args(Unit), default="passage", about="what is ranked"),
    "filter": TextList(about="conditions on the metadata of documents, such as year>=2020"),
    "reranker": Text(about="a served cross-encoder, or model of vectors, that scores the best hits again"),
    "candidates": Whole(low=1, high=1000, about="hits of the first stage that are scored again"),
    "fusion": Choice(options=get_args(Fusion), default="rrf", about="how hybrid search fuses rankings"),
    "approximate": Flag(
        default=False,
        about="score only what codes (dense_bits) or centroids (vector_bits) of the index propose",
    ),
    "explain": Choice(
        options=("none", "shares", "attribution"),
        default="none",
        about="why each passage was found: shares of its score, and also gradient attribution, which is slow",
    ),
    "truncate": TRUNCATE,
}

HIT = schema_of(Hit)
ROUTES = (
    PostRoute(
        "/v1/search",
        "openai",
        passages,
        BODY,
        record(index=TEXT, generation=INTEGER, query_truncated=BOOLEAN, hits=rows(HIT)),
    ),
)
