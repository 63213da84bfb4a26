"""The explorer: a local page that shows the attention of a model.

`serve` runs it; `make_app` is the same application without a socket, for tests and other servers; `Api`
is the basis of both, a function from requests to answers that needs no server.
`serve` and `make_app` need the ``explorer`` extra (starlette, uvicorn), imported when either is first called.
"""

from typing import TYPE_CHECKING, Any

from unmask.explorer.server.server import make_app, serve
from unmask.http.responses import Answer

if TYPE_CHECKING:
    from unmask.explorer.api import Api

__all__ = ["Answer", "Api", "make_app", "serve"]


def __getattr__(name: str) -> Any:
    # The API imports torch; the page must be there before that has come.
    if name == "Api":
        from unmask.explorer.api import Api

        return Api
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
