"""Routes of the built page."""

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from unmask.explorer.server.static_files import STATIC


class HashedAssets(StaticFiles):
    """Files with a content hash in their names, which browsers may cache forever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file with its cache header."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def page_routes() -> list[BaseRoute]:
    """The routes ``/`` and ``/assets``."""

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    return [
        Route("/", index, methods=["GET"]),
        Mount("/assets", HashedAssets(directory=STATIC / "assets")),
    ]
