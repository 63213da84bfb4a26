"""The routes of OpenAI's clients: ``/v1/embeddings`` and ``/v1/models``."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.serve.fields import Choice, Text
from unmask.serve.ids import TextsOrIds
from unmask.serve.routes.route import (
    DIMENSIONS,
    MODEL,
    PROMPT_NAME,
    TRUNCATE,
    GetRoute,
    PostRoute,
    Values,
    named,
    truncation_of,
)
from unmask.serve.schemas import INTEGER, TEXT, VECTOR, record, rows
from unmask.serve.service import Call, Service

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


def usage(call: Call) -> dict[str, int]:
    """The tokens of a request, as OpenAI counts them."""
    return {"prompt_tokens": call.tokens, "total_tokens": call.tokens}


def in_base64(row_E: NDArray[np.float32]) -> str:
    """The numbers as little-endian float32, in base64."""
    return base64.b64encode(row_E.astype("<f4").tobytes()).decode("ascii")


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


ROUTES = tuple(
    PostRoute(path, "openai", embeddings, BODY, ANSWER) for path in ("/v1/embeddings", "/embeddings")
)
LISTED = record(id=TEXT, object=TEXT, created=INTEGER, owned_by=TEXT, tasks=rows(TEXT))
GETS = (GetRoute("/v1/models", "openai", listed_models, record(object=TEXT, data=rows(LISTED))),)
