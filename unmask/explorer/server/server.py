"""Starting the explorer: a loopback socket, a fresh token, and a web server on them.

Starlette and uvicorn are imported inside the functions: they are optional, and ``unmask`` must
import without them.
"""

import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from unmask import optional
from unmask.errors import InvalidRequest
from unmask.explorer.server.address import fragment

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from unmask.explorer.api.api import Api
    from unmask.explorer.sessions.models import Loader
    from unmask.loaded import Model

_ADDRESSES = {
    "127.0.0.1": (socket.AF_INET, "127.0.0.1"),
    "localhost": (socket.AF_INET, "127.0.0.1"),
    "::1": (socket.AF_INET6, "::1"),
}


def make_app(
    models: "Model | Sequence[Model | tuple[str, Loader]]",
    token: str,
    *,
    port: int,
    held_texts: int | None = None,
    held_bytes: int | None = None,
) -> "Starlette":
    """The explorer as an ASGI application that answers under ``http://127.0.0.1:port`` only.

    Args:
        models: one, or several: loaded, or each a name and a function that loads it in the background. The
            first is that of a new text.
        token: must be sent with every request to the API, in the header ``X-Unmask-Token``.
        port: as in its address.
        held_texts: how many texts stay in memory; None is 8.
        held_bytes: how much they may hold together; None is 2 GiB.
    """
    optional.require("explorer")
    from unmask.explorer.server.application import build_app

    def make() -> "Api":
        from unmask.explorer.api.api import Api

        given: Sequence[Model | tuple[str, Loader]]
        given = models if isinstance(models, Sequence) else [models]
        limits = {"held_texts": held_texts, "held_bytes": held_bytes}
        return Api(given, **{name: limit for name, limit in limits.items() if limit is not None})

    return build_app(make, token, port)


def serve(
    models: "Model | Sequence[Model | tuple[str, Loader]]",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    text: str | None = None,
    open_browser: bool = False,
    on_ready: Callable[[str], None] | None = None,
    held_bytes: int | None = None,
) -> None:
    """Serve the explorer until interrupted.

    ``models`` and ``held_bytes`` are as in `make_app`; the page is there before models are loaded. ``host``
    must be a loopback address; ``port`` 0 takes a free one. ``on_ready`` gets the address to open once it
    answers; it holds the token of this launch. ``text`` is read when the page opens. Raises `InvalidRequest`
    for another host or a port that is taken.
    """
    optional.require("explorer")
    import uvicorn

    from unmask.http.server import configured

    listening = _listen(host, port)
    token = secrets.token_urlsafe(24)
    bound_port: int = listening.getsockname()[1]
    url = _address(host, bound_port, token, text)
    app = make_app(models, token, port=bound_port, held_bytes=held_bytes)
    if on_ready is not None:
        on_ready(url)
    if open_browser:
        # Some browsers hold the call until they are closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    try:
        uvicorn.Server(configured(app)).run(sockets=[listening])
    except KeyboardInterrupt:
        # Ctrl+C is how one leaves; uvicorn raises it again after a clean shutdown.
        return
    finally:
        listening.close()
        app.state.opening.close()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections queue on it before the server runs."""
    if host not in _ADDRESSES:
        raise InvalidRequest(
            f"the explorer listens on this machine only (127.0.0.1, localhost or ::1), not {host!r}"
        )
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"a port is a number from 0 to 65535, not {port}")
    family, address = _ADDRESSES[host]
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        # The error's own text repeats the address; the system's words for its number do not.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidRequest(
            f"port {port} of {host} cannot be used ({reason.lower()}); choose another with --port"
        ) from error


def _address(host: str, port: int, token: str, text: str | None) -> str:
    """The address to open: token in the query, the page's state behind ``#``."""
    name = "[::1]" if host == "::1" else host
    url = f"http://{name}:{port}/?token={token}"
    return url if text is None else url + fragment({"text": text})
