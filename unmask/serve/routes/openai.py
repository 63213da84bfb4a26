"""The routes of OpenAI's clients: ``/v1/embeddings`` and ``/v1/models``."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.serve.errors import BadField
from unmask.serve.fields import Fields
from unmask.serve.routes.route import PostRoute, named
from unmask.serve.service import Call, Service

MOST_DIMENSIONS = 1 << 20

FIELDS = ("input", "model", "encoding_format", "dimensions", "user", "prompt_name", "truncate")
"""Those of OpenAI, then ours."""


async def embeddings(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """One embedding for each text of ``input``."""
    fields = Fields(body, FIELDS, service.limits.texts)
    served = service.models.named(fields.optional_text("model"), "embed")
    if _are_ids(fields.raw("input")):
        raise BadField(
            "input",
            "input is a list of token ids, which only the tokenizer that made them understands; send texts "
            "(in LangChain: check_embedding_ctx_length=False)",
        )
    texts, single = fields.texts("input")
    form = fields.choice("encoding_format", ("float", "base64"))
    dimensions = fields.number("dimensions", 1, MOST_DIMENSIONS)
    prompt_name = fields.optional_text("prompt_name")
    truncation = service.truncation(fields.flag("truncate", False) if "truncate" in fields else None)
    rows = await service.run(
        call,
        lambda: served.embed(
            texts,
            truncation=truncation,
            dimensions=dimensions,
            prompt_name=prompt_name,
            name=named("input", single),
        ),
    )
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": in_base64(row) if form == "base64" else row}
            for index, row in enumerate(rows)
        ],
        "model": served.name,
        "usage": {"prompt_tokens": call.tokens, "total_tokens": call.tokens},
    }


def in_base64(row_E: NDArray[np.float32]) -> str:
    """The numbers as little-endian float32, in base64."""
    return base64.b64encode(row_E.astype("<f4").tobytes()).decode("ascii")


def listed_models(service: Service) -> dict[str, Any]:
    """The answer of ``/v1/models``."""
    return {
        "object": "list",
        "data": [
            {"id": one.name, "object": "model", "created": 0, "owned_by": "unmask", "tasks": list(one.tasks)}
            for one in service.models.all
        ],
    }


def _are_ids(given: Any) -> bool:
    first = given[0] if isinstance(given, list) and given else None
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, int) and not isinstance(first, bool)


ROUTES = tuple(PostRoute(path, "openai", embeddings) for path in ("/v1/embeddings", "/embeddings"))
