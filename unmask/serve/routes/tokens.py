"""TEI's routes that run no model: ``/tokenize``, ``/decode``, ``/info``."""

from typing import Any

from unmask import __version__
from unmask.serve.errors import BadField
from unmask.serve.fields import BOOLEAN, INTEGER, TEXT, Flag, Inputs, Texts, record, rows
from unmask.serve.ids import Ids
from unmask.serve.models import ServedModel
from unmask.serve.routes.route import MODEL, PROMPT_NAME, GetRoute, PostRoute, Values, named
from unmask.serve.service import Call, Service
from unmask.spec import PooledVector
from unmask.tasks.prompts import chosen_prompt

_PLACE = {"anyOf": [INTEGER, {"type": "null"}]}
_TOKEN = record(id=INTEGER, text=TEXT, special=BOOLEAN, start=_PLACE, stop=_PLACE)


MOST_TOKENS = 1 << 16
"""How many tokens `/tokenize` answers with: each takes a kilobyte of memory until it is written."""
CHARACTERS_PER_TOKEN = 4
"""Texts of more characters than this for each of `MOST_TOKENS` are refused unread."""


async def tokenize(service: Service, call: Call, values: Values) -> Any:
    """The tokens of each text: id, the text's own characters, and their range, end exclusive."""
    served = service.models.named(values["model"])
    return await service.aside(
        call,
        lambda: _tokens(served, values["inputs"], values["prompt_name"], values["add_special_tokens"]),
    )


def _tokens(
    served: ServedModel, inputs: Inputs, prompt_name: str | None, add_special_tokens: bool
) -> list[list[dict[str, Any]]]:
    head = served.model.checkpoint.head
    before = ""
    if prompt_name is not None:
        if not isinstance(head, PooledVector):
            raise BadField("prompt_name", f"{served.name} has no prompts; leave prompt_name out")
        before = chosen_prompt(head, None, prompt_name, served.name)
    texts = [before + text for text in inputs.texts]
    name = named("inputs", inputs.single)
    characters = sum(map(len, texts))
    if characters > CHARACTERS_PER_TOKEN * MOST_TOKENS:
        raise _too_many("characters", characters, CHARACTERS_PER_TOKEN * MOST_TOKENS)
    encodings = served.model.tokenizer.encode_batch(texts, name=name, with_details=True)
    tokens = sum(map(len, encodings))
    if tokens > MOST_TOKENS:
        raise _too_many("tokens", tokens, MOST_TOKENS)
    tokens_of_each = []
    for encoding in encodings:
        details = encoding.details
        tokens_of_each.append(
            [
                {
                    "id": id_,
                    "text": piece if special else encoding.text[start:stop],
                    "special": special,
                    "start": None if special else start,
                    "stop": None if special else stop,
                }
                for id_, piece, special, (start, stop) in zip(
                    encoding.ids.tolist(),
                    details.pieces,
                    details.special.tolist(),
                    details.offsets.tolist(),
                    strict=True,
                )
                if add_special_tokens or not special
            ]
        )
    return tokens_of_each


def _too_many(what: str, count: int, most: int) -> BadField:
    return BadField(
        "inputs",
        f"inputs have {count:,} {what}, and /tokenize answers for {most:,} at most; send fewer texts",
        413,
        "too_many_tokens",
    )


async def decode(service: Service, call: Call, values: Values) -> Any:
    """The text of each sequence of token ids."""
    served = service.models.named(values["model"])
    return await service.aside(
        call, lambda: _texts(served, values["ids"], skip_special_tokens=values["skip_special_tokens"])
    )


def _texts(served: ServedModel, inputs: Inputs, *, skip_special_tokens: bool) -> list[str]:
    tokenizer = served.model.tokenizer
    size, sequences = tokenizer.vocabulary_size, inputs.ids or []
    for ids in sequences:
        for token_id in ids:
            if not 0 <= token_id < size:
                raise BadField("ids", f"a token id is {token_id}; {served.name} has 0 to {size - 1}")
    texts: list[str] = tokenizer.engine.decode_batch(sequences, skip_special_tokens=skip_special_tokens)
    return texts


def info(service: Service) -> dict[str, Any]:
    """The first model, the limits, and all models with their prompts."""
    limits = service.limits
    models = [served.info() for served in service.models.all]
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


ROUTES = (
    PostRoute(
        "/tokenize",
        "tei",
        tokenize,
        {
            "inputs": Texts(required=True),
            "add_special_tokens": Flag(default=True),
            "prompt_name": PROMPT_NAME,
            "model": MODEL,
        },
        rows(rows(_TOKEN)),
    ),
    PostRoute(
        "/decode",
        "tei",
        decode,
        {"ids": Ids(required=True), "skip_special_tokens": Flag(default=True), "model": MODEL},
        rows(TEXT),
    ),
)
GETS = (GetRoute("/info", "tei", info, {"type": "object"}),)
