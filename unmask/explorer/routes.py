"""The API, one function per route."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unmask.errors import UnmaskError
from unmask.explorer import answers
from unmask.explorer.binary import Kind, head_statistics, pack
from unmask.explorer.body import read_request
from unmask.explorer.interface import ExplorableModel
from unmask.explorer.problems import Refused
from unmask.explorer.rectangle import parse_rectangle
from unmask.explorer.results import model_info, text_read
from unmask.explorer.texts import Texts

Handler = Callable[[Request], Awaitable[Response]]


def api_routes(model: ExplorableModel, texts: Texts) -> list[Route]:
    """The routes under ``/api``."""

    async def describe(request: Request) -> Response:
        return answers.result(model_info(model))

    async def read(request: Request) -> Response:
        wanted = await read_request(request)
        text_id, view = await texts.read(wanted.text, wanted.too_long)
        return answers.result(text_read(text_id, model, view))

    async def tile(request: Request) -> Response:
        view = texts.get(request.path_params["id"])
        rectangle = parse_rectangle(
            layer=request.path_params["layer"],
            head=request.path_params["head"],
            rows=request.query_params.get("rows"),
            columns=request.query_params.get("columns"),
            layers=view.layer_count,
            heads=view.head_count,
            tokens=len(view),
        )
        name = "-".join(
            str(part)
            for part in (
                request.path_params["id"],
                rectangle.layer,
                rectangle.head,
                rectangle.rows.start,
                rectangle.rows.stop,
                rectangle.columns.start,
                rectangle.columns.stop,
            )
        )
        return await _bytes(
            request,
            name,
            lambda: pack(Kind.PROBABILITIES, view.probabilities(*rectangle)),
        )

    async def heads(request: Request) -> Response:
        view = texts.get(request.path_params["id"])
        return await _bytes(
            request,
            request.path_params["id"] + "-heads",
            lambda: pack(Kind.HEADS, head_statistics(view)),
        )

    async def forget(request: Request) -> Response:
        texts.forget(request.path_params["id"])
        return Response(status_code=204)

    async def _bytes(request: Request, name: str, task: Callable[[], bytes]) -> Response:
        # The id in the name already stands for model and text, so equal names mean equal bytes.
        etag = f'"{name}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        return answers.attention(await texts.work(task), etag)

    async def unknown(request: Request) -> Response:
        raise Refused(404, "UnknownRoute", "the explorer has no such route")

    return [
        Route("/api/model", _answering(describe), methods=["GET"]),
        Route("/api/texts", _answering(read), methods=["POST"]),
        Route("/api/texts/{id}", _answering(forget), methods=["DELETE"]),
        Route("/api/texts/{id}/heads", _answering(heads), methods=["GET"]),
        Route("/api/texts/{id}/tiles/{layer}/{head}", _answering(tile), methods=["GET"]),
        Route("/api/{path:path}", _answering(unknown), methods=["GET", "POST", "PUT", "DELETE"]),
    ]


def _answering(handler: Handler) -> Handler:
    """The handler, with every error on purpose turned into an answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except UnmaskError as error:
            return answers.failure(error)

    return answer
