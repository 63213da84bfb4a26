"""Models that the page names: what they would need, and loading them."""

from collections.abc import Iterator
from contextlib import contextmanager

from unmask.errors import CheckpointError
from unmask.explorer.api.describe import model_info
from unmask.explorer.routes.route import Route
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.loading import PageLoader
from unmask.http.errors import Refused
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer


def preview(context: AppContext, request: Request) -> Answer:
    """``POST models/preview {name}``: its size and its architecture, before it is loaded."""
    loader, name = _loader(context), _name(request)
    with _refused():
        return json_answer(loader.preview(name))


def load(context: AppContext, request: Request) -> Answer:
    """``POST models {name}``: load it in the background; the session says how far it is."""
    loader, name = _loader(context), _name(request)
    with _refused():
        return json_answer(model_info(loader.add(context.models, name)), 202)


@contextmanager
def _refused() -> Iterator[None]:
    """What is wrong with a checkpoint is no fault of the server here."""
    try:
        yield
    except CheckpointError as error:
        raise Refused(409, type(error).__name__, str(error)) from None


def _loader(context: AppContext) -> PageLoader:
    if context.loader is None:
        raise Refused(
            403, "LoadingOff", "this explorer loads no other models; name them with --model when you start it"
        )
    return context.loader


def _name(request: Request) -> str:
    name = request.json().get("name")
    if not isinstance(name, str):
        raise Refused(400, "BadRequest", "the body must have a string `name`")
    return name


ROUTES = (Route("POST", "models/preview", preview), Route("POST", "models", load))
"""`GET` of the session lists them."""
