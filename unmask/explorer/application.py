"""The application: the page, the API, and the guard in front of both."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from unmask.explorer import answers
from unmask.explorer.guard import Guard
from unmask.explorer.interface import ExplorableModel
from unmask.explorer.page import page_routes
from unmask.explorer.problems import Refused
from unmask.explorer.routes import api_routes
from unmask.explorer.texts import Texts


def build_app(model: ExplorableModel, token: str, port: int, held_texts: int) -> Starlette:
    """See `unmask.explorer.make_app`."""
    return Starlette(
        routes=[*api_routes(model, Texts(model, held_texts)), *page_routes()],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={Exception: _own_fault},
    )


async def _own_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: a sentence for the page; the server's log gets the traceback."""
    return answers.failure(
        Refused(500, "InternalError", "the explorer met a fault of its own; its terminal says more")
    )
