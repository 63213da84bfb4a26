"""The routes of OpenAI's clients, ``/v1/embeddings`` and ``/v1/models``, and ``/v1/multi_vectors``."""

import base64
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.serve.errors import BadField
from unmask.serve.fields import INTEGER, TEXT, VECTOR, Choice, Inputs, Text, Texts, record, rows
from unmask.serve.ids import TextsOrIds
from unmask.serve.routes.route import (
    DIMENSIONS,
    MODEL,
    MOST_NUMBERS,
    PROMPT_NAME,
    TRUNCATE,
    GetRoute,
    PostRoute,
    Values,
    named,
    truncation_of,
)
from unmask.serve.service import Call, Service
from unmask.spec import MultiVector, TextKind
from unmask.tasks.multi_vectors import TokenVectors
from unmask.tasks.reader import Ready

BODY = {
    "input": TextsOrIds(required=True, about="texts, or token ids as /tokenize gives them"),
    "model": MODEL,
    "encoding_format": Choice(options=("float", "base64"), default="float"),
    "dimensions": DIMENSIONS,
    "user": Text(about="accepted without effect"),
    "prompt_name": PROMPT_NAME,
    "truncate": TRUNCATE,
}
"""Those of OpenAI, then ours."""

USAGE = record(prompt_tokens=INTEGER, total_tokens=INTEGER)

ANSWER = record(
    object=TEXT,
    data=rows(record(object=TEXT, index=INTEGER, embedding={"anyOf": [VECTOR, TEXT]})),
    model=TEXT,
    usage=USAGE,
)


async def embeddings(service: Service, call: Call, values: Values) -> Any:
    """One embedding for each text of ``input``."""
    served = service.models.named(values["model"], "embed")
    inputs = values["input"]
    vectors = await service.run(
        call,
        served,
        lambda: served.embed(
            inputs,
            truncation=truncation_of(service, values),
            dimensions=values["dimensions"],
            prompt_name=values["prompt_name"],
            name=named("input", inputs.single),
        ),
    )
    packed = values["encoding_format"] == "base64"
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": in_base64(row) if packed else row}
            for index, row in enumerate(vectors)
        ],
        "model": served.name,
        "usage": usage(call),
    }


async def token_vectors(service: Service, call: Call, values: Values) -> Any:
    """One vector for each token of each text of ``input``, for late interaction (ColBERT)."""
    served = service.models.named(values["model"], "multi_vectors")
    inputs: Inputs = values["input"]

    def prepare() -> Ready[list[TokenVectors]]:
        ready = served.multi_vectors(
            inputs.texts,
            values["kind"],
            truncation=truncation_of(service, values),
            name=named("input", inputs.single),
        )
        head = served.model.checkpoint.head
        assert isinstance(head, MultiVector)
        most = MOST_NUMBERS // head.width(served.model.spec)
        if ready.tokens > most:
            raise BadField(
                "input",
                f"input has {ready.tokens:,} tokens, and vectors of {most:,} at most are answered; send "
                "fewer texts",
                413,
                "too_many_tokens",
            )
        return ready

    results = await service.run(call, served, prepare)
    write = VECTOR_FORMS[values["encoding_format"]]
    return {
        "object": "list",
        "data": [
            {
                "object": "multi_vector",
                "index": index,
                "count": len(result),
                "width": result.vectors_NE.shape[1],
                "vectors": write(result.vectors_NE),
                "spans": result.spans_N2.tolist(),
            }
            for index, result in enumerate(results)
        ],
        "model": served.name,
        "usage": usage(call),
    }


def usage(call: Call) -> dict[str, int]:
    """The tokens of a request, as OpenAI counts them."""
    return {"prompt_tokens": call.tokens, "total_tokens": call.tokens}


def in_base64(row_E: NDArray[np.float32]) -> str:
    """The numbers as little-endian float32, in base64."""
    return base64.b64encode(row_E.astype("<f4").tobytes()).decode("ascii")


def in_half_base64(vectors_NE: NDArray[np.float32]) -> str:
    """The numbers as little-endian float16, in base64: half the bytes, and what an index stores."""
    return base64.b64encode(vectors_NE.astype("<f2").tobytes()).decode("ascii")


VECTOR_FORMS: Mapping[str, Callable[[NDArray[np.float32]], Any]] = {
    "float": lambda vectors_NE: vectors_NE.tolist(),
    "base64": in_base64,
    "base64_float16": in_half_base64,
}
"""How `token_vectors` writes the vectors of a text."""

VECTORS_BODY = {
    "input": Texts(required=True),
    "kind": Choice(options=get_args(TextKind), default="document", about="which prompt of the model to use"),
    "model": MODEL,
    "encoding_format": Choice(
        options=tuple(VECTOR_FORMS),
        default="float",
        about="base64 of little-endian float32 or float16, count rows of width numbers",
    ),
    "user": Text(about="accepted without effect"),
    "truncate": TRUNCATE,
}
VECTORS_ANSWER = record(
    object=TEXT,
    data=rows(
        record(
            object=TEXT,
            index=INTEGER,
            count=INTEGER,
            width=INTEGER,
            vectors={"anyOf": [rows(VECTOR), TEXT]},
            spans=rows(rows(INTEGER)),
        )
    ),
    model=TEXT,
    usage=USAGE,
)


def listed_models(service: Service) -> dict[str, Any]:
    """The models and their tasks."""
    return {
        "object": "list",
        "data": [
            {
                "id": served.name,
                "object": "model",
                "created": 0,
                "owned_by": "unmask",
                "tasks": list(served.tasks),
            }
            for served in service.models.all
        ],
    }


ROUTES = (
    *(PostRoute(path, "openai", embeddings, BODY, ANSWER) for path in ("/v1/embeddings", "/embeddings")),
    PostRoute("/v1/multi_vectors", "openai", token_vectors, VECTORS_BODY, VECTORS_ANSWER),
)
LISTED = record(id=TEXT, object=TEXT, created=INTEGER, owned_by=TEXT, tasks=rows(TEXT))
GETS = (GetRoute("/v1/models", "openai", listed_models, record(object=TEXT, data=rows(LISTED))),)
