"""The two shapes of an HTTP answer of the API: a typed result as JSON, or bytes of attention."""

from starlette.responses import Response

from unmask.errors import UnmaskError
from unmask.explorer.problems import problem_of, status_of
from unmask.explorer.results import Failure, Result, to_json


def result(value: Result, status: int = 200) -> Response:
    """A typed result."""
    return Response(to_json(value), status_code=status, media_type="application/json")


def failure(error: UnmaskError) -> Response:
    """An error, as a typed result with its status."""
    return result(Failure(problem_of(error)), status_of(error))


def attention(data: bytes, etag: str) -> Response:
    """Bytes of `unmask.explorer.binary`."""
    return Response(data, media_type="application/octet-stream", headers={"ETag": etag})
