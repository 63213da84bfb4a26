"""An HTTP server for models: packed batching of many clients' texts, on routes that existing clients speak.

`serve` runs it; `make_app` is the same application without a socket, for tests and other servers. Both need
the ``serve`` extra (orjson, starlette, uvicorn), imported when they are first called.
"""

from unmask.serve.scheduler import Limits
from unmask.serve.server import make_app, serve

__all__ = ["Limits", "make_app", "serve"]
