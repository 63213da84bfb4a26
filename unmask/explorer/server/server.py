"""Start the explorer: a loopback socket, a new token, and a web server.

Starlette and uvicorn are imported inside functions, because they are optional and ``unmask`` must import
without them.
"""

import os
import re
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base import optional
from unmask.errors import InvalidRequest, quoted
from unmask.explorer.page import fragment

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from unmask.explorer.api import Api
    from unmask.explorer.sessions.loading import PageLoader
    from unmask.explorer.sessions.models import AnyModel, Loader
    from unmask.interpret.corpus.texts import Corpus

_ADDRESSES = {
    "127.0.0.1": (socket.AF_INET, "127.0.0.1"),
    "localhost": (socket.AF_INET, "127.0.0.1"),
    "::1": (socket.AF_INET6, "::1"),
}


def make_app(
    models: "AnyModel | Sequence[AnyModel | tuple[str, Loader]]",
    token: str,
    *,
    port: int,
    held_texts: int | None = None,
    held_bytes: int | None = None,
    index: str | Path | None = None,
    first_text: str | None = None,
    corpus: "Corpus | str | Path | None" = None,
    corpus_cache: Path | None = None,
    loader: "PageLoader | None" = None,
) -> "Starlette":
    """The explorer as an ASGI application that answers only at ``http://127.0.0.1:port``.

    Args:
        models: one model or several; each is loaded, or a name with a function that loads it in the
            background. New texts use the first one.
        token: the token that every API request must send in the header ``X-Unmask-Token``.
        port: the port of its address.
        held_texts: maximum number of texts in memory; None for 8.
        held_bytes: maximum memory of all texts; None for 2 GiB.
        index: the folder of an index that the page can search; None offers no search.
        first_text: read by the first model as soon as it is loaded, before a page asks for it.
        corpus: a file of the texts that heads are shown on; None takes the sentences of the package.
        corpus_cache: the folder where results over the corpus are kept; None keeps them in memory alone.
        loader: loads further models that the page names; None allows none. Whoever has the token can then
            read any checkpoint folder of this machine and download models.
    """
    optional.require("explorer")
    from unmask.explorer.server.application import build_app

    def make() -> "Api":
        from unmask.explorer.api import Api

        listed: Sequence[AnyModel | tuple[str, Loader]]
        listed = models if isinstance(models, Sequence) else [models]
        limits = {"held_texts": held_texts, "held_bytes": held_bytes}
        given_limits = {name: limit for name, limit in limits.items() if limit is not None}
        return Api(
            listed,
            index=index,
            corpus=corpus,
            corpus_cache=corpus_cache,
            first_text=first_text,
            loader=loader,
            **given_limits,
        )

    return build_app(make, token, port)


def serve(
    models: "AnyModel | Sequence[AnyModel | tuple[str, Loader]]",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    text: str | None = None,
    state: str | None = None,
    open_browser: bool = False,
    on_ready: Callable[[str], None] | None = None,
    held_bytes: int | None = None,
    index: str | Path | None = None,
    corpus: "Corpus | str | Path | None" = None,
    corpus_cache: Path | None = None,
    loader: "PageLoader | None" = None,
) -> None:
    """Serve the explorer until interrupted.

    ``models``, ``held_bytes``, ``index``, ``corpus``, ``corpus_cache`` and ``loader`` are as in `make_app`;
    the page is available before models are loaded, and opens with the search of an index if there is one and
    no text, else with a question of its own.
    ``host`` must be a loopback address; ``port`` 0 uses a free one. ``on_ready`` is called with the address
    to open, which contains the token of this launch. ``text`` is read when the page opens; ``state`` is what
    an address of the page has from ``#`` on, which the page opens instead. Raises
    `InvalidRequest` for another host or a port that is in use.
    """
    optional.require("explorer")
    import uvicorn

    from unmask.http.server import configured

    listening = _listen(host, port)
    token = secrets.token_urlsafe(24)
    bound_port: int = listening.getsockname()[1]
    url = _address(host, bound_port, token, text, state, searches=index is not None)
    app = make_app(
        models,
        token,
        port=bound_port,
        held_bytes=held_bytes,
        index=index,
        corpus=corpus,
        corpus_cache=corpus_cache,
        first_text=text,
        loader=loader,
    )
    if on_ready is not None:
        on_ready(url)
    if open_browser:
        # With some browsers the call blocks until they are closed.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    try:
        uvicorn.Server(configured(app)).run(sockets=[listening])
    except KeyboardInterrupt:
        # Ctrl+C is the normal way to stop; uvicorn raises it again after a clean shutdown.
        return
    finally:
        listening.close()
        app.state.opening.close()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections queue on it before the server runs."""
    if host not in _ADDRESSES:
        raise InvalidRequest(
            f"host is {host!r}; the explorer listens only on this machine: 127.0.0.1, localhost or ::1"
        )
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"port is {port}; it must be from 0 to 65535")
    family, address = _ADDRESSES[host]
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        # The error's own message repeats the address; the system's message for its number does not.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidRequest(
            f"port {port} of {host} cannot be used ({reason.lower()}); choose another with --port"
        ) from error


def _address(
    host: str, port: int, token: str, text: str | None, state: str | None = None, *, searches: bool = False
) -> str:
    """The address to open: the token in the query, the page's state in the fragment."""
    name = "[::1]" if host == "::1" else host
    url = f"http://{name}:{port}/?token={token}"
    if state is not None:
        hash_ = state.partition("#")[2] or state
        if not re.match(r"v=\d", hash_):
            raise InvalidRequest(
                f"--open is {quoted(state)}; give an address of the page, or its part from # on, such as "
                "'#v=3&text=a+text&view=map'"
            )
        return f"{url}#{hash_}"
    if text is None and not searches:
        return url
    return url + fragment({"text": text, "view": "search" if text is None else None})
