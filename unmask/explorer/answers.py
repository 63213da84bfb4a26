"""What every route gives back: a status, a media type and bytes. No web framework is needed to read it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from unmask.errors import UnmaskError
from unmask.explorer.binary import MEDIA_TYPE, pack
from unmask.explorer.problems import Refused, problem_of, status_of
from unmask.explorer.results import Failure, to_json

JSON = "application/json"


@dataclass(frozen=True)
class Answer:
    """One answer of the API."""

    status: int
    media_type: str
    data: bytes
    etag: str | None = None
    """Of arrays: equal where the bytes are."""


def json_answer(value: Any, status: int = 200) -> Answer:
    """A typed result, or plain values, as JSON."""
    return Answer(status, JSON, to_json(value))


def array_answer(values: Mapping[str, npt.NDArray[Any]], meta: Any = None) -> Answer:
    """Named arrays in the container of `unmask.explorer.binary`."""
    data = pack(values, meta)
    return Answer(200, MEDIA_TYPE, data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def no_answer() -> Answer:
    """Done, and there is nothing to say."""
    return Answer(204, JSON, b"")


def failure(error: UnmaskError) -> Answer:
    """An error, as a typed result with its status."""
    return json_answer(Failure(problem_of(error)), status_of(error))


def accepted(answer: Answer) -> Answer:
    """The answer itself where it is a success; raises `Refused` with its sentence otherwise."""
    if answer.status >= 400:
        problem = json.loads(answer.data)["error"]
        raise Refused(answer.status, problem["kind"], problem["sentence"])
    return answer


def plain(answer: Answer) -> Any:
    """What an answer in JSON holds; raises `Refused` where it is none."""
    return json.loads(accepted(answer).data)
