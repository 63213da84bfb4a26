"""The explorer: a page on this machine that shows where a model's attention goes.

`serve` runs it; `make_app` is the same application without a socket, for tests and other servers.
Needs the ``explorer`` extra (starlette, uvicorn), imported when either is first called.
"""

from unmask.explorer.interface import ExplorableModel, ExplorableView
from unmask.explorer.server import make_app, serve

__all__ = ["ExplorableModel", "ExplorableView", "make_app", "serve"]
