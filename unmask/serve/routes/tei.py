"""The routes of clients of Hugging Face's Text Embeddings Inference (TEI)."""

from typing import Any, cast

import numpy as np

from unmask import __version__
from unmask.serve.errors import BadField
from unmask.serve.fields import Fields
from unmask.serve.routes.route import PostRoute, named
from unmask.serve.service import Call, Service
from unmask.tasks.classify import Classification
from unmask.tasks.similarity import similarity
from unmask.text import Truncation

MOST_DIMENSIONS = 1 << 20
CUT = ("truncate", "truncation_direction")


async def embed(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """A row of numbers for each text, also for a single one."""
    known = ("inputs", *CUT, "prompt_name", "normalize", "dimensions")
    fields = Fields(body, known, service.limits.texts)
    served = service.models.named(None, "embed")
    texts, single = fields.texts("inputs")
    truncation = _truncation(service, fields)
    normalize = fields.flag("normalize", True)
    dimensions = fields.number("dimensions", 1, MOST_DIMENSIONS)
    prompt_name = fields.optional_text("prompt_name")
    return await service.run(
        call,
        lambda: served.embed(
            texts,
            truncation=truncation,
            normalize=normalize,
            dimensions=dimensions,
            prompt_name=prompt_name,
            name=named("inputs", single),
        ),
    )


async def embed_sparse(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """The words of each text that have a weight."""
    fields = Fields(body, ("inputs", *CUT), service.limits.texts)
    served = service.models.named(None, "embed_sparse")
    texts, single = fields.texts("inputs")
    truncation = _truncation(service, fields)
    found = await service.run(
        call,
        lambda: served.embed_sparse(texts, truncation=truncation, name=named("inputs", single)),
    )
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(one.ids.tolist(), one.weights.tolist(), strict=True)
        ]
        for one in found
    ]


async def rerank(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """The texts by their relevance for the query, best first."""
    known = ("query", "texts", *CUT, "raw_scores", "return_text")
    fields = Fields(body, known, service.limits.texts)
    served = service.models.named(None, "rerank")
    query = fields.text("query")
    texts = fields.items("texts", str, "a list of strings")
    truncation = _truncation(service, fields)
    raw, with_text = fields.flag("raw_scores", False), fields.flag("return_text", False)
    scores = await service.run(
        call,
        lambda: served.rerank(
            query,
            texts,
            truncation=truncation,
            activation="identity" if raw else "sigmoid",
            pair_name=named("texts", False),
        ),
    )
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [
        {"index": index, "score": float(scores[index])} | ({"text": texts[index]} if with_text else {})
        for index in order
    ]


async def predict(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """The labels of each text or pair with their probabilities, best first."""
    fields = Fields(body, ("inputs", *CUT, "raw_scores"), service.limits.texts)
    served = service.models.named(None, "predict")
    if fields.flag("raw_scores", False):
        raise BadField("raw_scores", "raw_scores is true, and only probabilities are served; leave it out")
    texts, pairs, single = _texts_or_pairs(fields)
    truncation = _truncation(service, fields)
    found = await service.run(
        call, lambda: served.predict(texts, pairs, truncation=truncation, name=named("inputs", single))
    )
    answers = [_labels(one) for one in found]
    return answers[0] if single else answers


async def similar(service: Service, call: Call, body: dict[str, Any]) -> Any:
    """The cosine of a sentence with each of several."""
    fields = Fields(body, ("inputs", "parameters"), service.limits.texts)
    served = service.models.named(None, "embed")
    inputs = fields.inner("inputs", ("source_sentence", "sentences"))
    parameters = fields.inner("parameters", (*CUT, "prompt_name"), required=False)
    source = inputs.text("source_sentence")
    sentences = inputs.items("sentences", str, "a list of strings")
    truncation, prompt_name = _truncation(service, parameters), parameters.optional_text("prompt_name")

    def name(index: int) -> str:
        return "inputs.source_sentence" if index == 0 else f"inputs.sentences[{index - 1}]"

    rows = np.stack(
        await service.run(
            call,
            lambda: served.embed(
                [source, *sentences], truncation=truncation, prompt_name=prompt_name, name=name
            ),
        )
    )
    return similarity(rows[:1], rows[1:])[0]


def info(service: Service) -> dict[str, Any]:
    """The answer of ``/info``: the first model, the limits, and all models."""
    limits = service.limits
    models = [one.info() for one in service.models.all]
    return models[0] | {
        "max_concurrent_requests": limits.concurrent_requests,
        "max_batch_tokens": limits.tokens_per_pass,
        "max_batch_requests": None,
        "max_client_batch_size": limits.texts,
        "max_queued_tokens": limits.queued_tokens,
        "auto_truncate": service.truncation(None) == "end",
        "version": __version__,
        "models": models,
    }


def _truncation(service: Service, fields: Fields) -> Truncation:
    direction = fields.choice("truncation_direction", ("right", "left", "Right", "Left"))
    found = service.truncation(fields.flag("truncate", False) if "truncate" in fields else None)
    if found == "end" and direction.lower() == "left":
        raise BadField(
            "truncation_direction",
            "truncation_direction is left, and only the end of a text can be dropped; leave it out",
        )
    return found


def _texts_or_pairs(fields: Fields) -> tuple[list[str], list[str] | None, bool]:
    """TEI's four forms: a text, a pair ``[a, b]``, a batch ``[[a], [b]]`` and a batch ``[[a, b], ...]``."""
    given = fields.raw("inputs")
    said = "a string, a list of two strings (a pair), or a list of lists of one string or of two"
    if isinstance(given, str):
        return [given], None, True
    rows = fields.items("inputs", object, said)
    if all(isinstance(row, str) for row in rows):
        if len(rows) != 2:
            raise BadField("inputs", f"inputs is a list of {len(rows)} strings; it must be {said}")
        return [rows[0]], [rows[1]], True
    sizes = {len(row) if isinstance(row, list) else 0 for row in rows}
    if sizes not in ({1}, {2}) or not all(isinstance(text, str) for row in rows for text in row):
        raise BadField("inputs", f"inputs mixes forms; it must be {said}")
    pairs = [row[1] for row in rows] if sizes == {2} else None
    return [row[0] for row in rows], cast("list[str] | None", pairs), False


def _labels(one: Classification) -> list[dict[str, Any]]:
    found = [{"score": score, "label": label} for label, score in one.scores.items()]
    return sorted(found, key=lambda row: -cast("float", row["score"]))


ROUTES = tuple(
    PostRoute(path, "tei", handle)
    for path, handle in (
        ("/embed", embed),
        ("/embed_sparse", embed_sparse),
        ("/rerank", rerank),
        ("/predict", predict),
        ("/similarity", similar),
    )
)
