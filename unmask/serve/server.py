"""Start the server: a socket, the models, and a stop that answers what has been accepted.

Starlette and uvicorn are imported inside functions, because they are optional and ``unmask`` must import
without them.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from unmask.base import optional
from unmask.base.arguments import whole_number
from unmask.errors import InvalidRequest, quoted
from unmask.serve.scheduler import Limits
from unmask.serve.telemetry import check_tracing

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from unmask.models.load import Model
    from unmask.search.index import Index
    from unmask.text.special import SpecialTokens

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LEAST_KEY = 16
"""The fewest characters of a key."""


def make_app(
    models: "Mapping[str, Model]",
    *,
    keys: Sequence[str] = (),
    limits: Limits | None = None,
    truncate: bool = False,
    any_host: bool = False,
    indexes: "Mapping[str, Index] | None" = None,
    workers: int = 0,
    log: Callable[[str], None] | None = None,
    otlp_endpoint: str | None = None,
    special_tokens: "SpecialTokens" = "text",
) -> "Starlette":
    """The server as an ASGI application; ``app.state.service.close()`` stops its threads and processes.

    Args:
        models: the models by the names that requests use. A route takes the first that can do its task
            unless the request names one.
        keys: API keys; each client sends one as ``Authorization: Bearer KEY``. None: no key is needed.
        limits: what is accepted and for how long.
        truncate: drop the end of texts that are too long, unless the request says otherwise; they are
            counted in the answer's header ``x-truncated-inputs``. By default they are refused.
        any_host: without keys, answer also to requests that name another host than this machine.
        indexes: the indexes that ``/v1/search`` searches, by the names that requests use.
        workers: processes that run the models and search the indexes, forked from this one, which must have
            no threads yet; one that ends is replaced. Models must be on the CPU. 0: a thread of this process
            does both.
        log: called with one line of JSON for each request, without its texts.
        otlp_endpoint: the address of an OpenTelemetry collector that gets a span of each request over HTTP,
            without its texts, such as ``http://localhost:4318``.
        special_tokens: what special tokens typed in a text become, such as ``[SEP]``, whatever a loaded model
            does: ``"text"``, since texts come from strangers, or their ids with ``"parse"``; see
            `unmask.load`. An index reads as it was made.

    Raises:
        InvalidRequest: there is no model, a key is too short, workers are given and a model is not on the
            CPU or the system cannot fork processes, or the collector's address is not one of HTTP.
        CheckpointError: a model of an index cannot be loaded.
        MissingExtra: what an argument needs is not installed.
    """
    optional.require("serve")
    check_tracing(otlp_endpoint)
    from unmask.serve.app import App
    from unmask.serve.service import Service

    check_keys(keys)
    whole_number("workers", workers, 0)
    service = Service(
        {name: model.reading(special_tokens) for name, model in models.items()},
        limits or Limits(),
        truncate=truncate,
        workers=workers,
        indexes=indexes,
        otlp_endpoint=otlp_endpoint,
    )
    app = App(service, keys=keys, any_host=any_host, log=log).starlette
    app.state.service = service
    return app


def serve(
    models: "Mapping[str, Model | Callable[[], Model]]",
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    keys: Sequence[str] = (),
    limits: Limits | None = None,
    truncate: bool = False,
    workers: int = 0,
    log: Callable[[str], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
    indexes: "Mapping[str, Index | Callable[[], Index]] | None" = None,
    otlp_endpoint: str | None = None,
    special_tokens: "SpecialTokens" = "text",
) -> None:
    """Serve models until the process gets SIGINT, SIGTERM or SIGHUP.

    Then it takes no new connection, answers every request that it has accepted, for at most
    ``limits.drain_seconds``, fails the rest with 503, and returns.

    Args:
        models: see `make_app`; or functions that load them, called when the address is known to be free.
        host: the address to listen on; one that other machines reach needs keys.
        port: the port; 0 picks a free one.
        keys: see `make_app`.
        limits: see `make_app`.
        truncate: see `make_app`.
        workers: see `make_app`.
        log: see `make_app`.
        on_ready: called with the server's address when every model has run once.
        indexes: see `make_app`; or functions that open them.
        otlp_endpoint: see `make_app`.
        special_tokens: see `make_app`.

    Raises:
        InvalidRequest: the address cannot be used, or it needs keys; or as `make_app`.
        MissingExtra: what an argument needs is not installed.
        UnmaskError: the process that forks workers has ended; what was accepted has been answered.
    """
    optional.require("serve")
    check_tracing(otlp_endpoint)
    limits = limits or Limits()
    from unmask.serve.stopping import run, stops

    with stops(), listen(host, port, keys) as listening:
        loaded = {name: model() if callable(model) else model for name, model in models.items()}
        opened = {name: index() if callable(index) else index for name, index in (indexes or {}).items()}
        app = make_app(
            loaded,
            keys=keys,
            limits=limits,
            truncate=truncate,
            any_host=host not in LOOPBACK,
            workers=workers,
            log=log,
            indexes=opened,
            otlp_endpoint=otlp_endpoint,
            special_tokens=special_tokens,
        )
        bound: int = listening.getsockname()[1]
        address = f"[{host}]" if ":" in host else host
        try:
            if on_ready is not None:
                on_ready(f"http://{address}:{bound}")
            run(app, listening, limits.drain_seconds)
        finally:
            app.state.service.close()


def check_keys(keys: Sequence[str]) -> None:
    """Raise `InvalidRequest` if a key could be guessed or not be sent; it is not repeated."""
    for key in keys:
        if not isinstance(key, str) or len(key) < LEAST_KEY or not key.isascii() or not key.isprintable():
            raise InvalidRequest(f"an API key must have at least {LEAST_KEY} characters, all of them ASCII")


def listen(host: str, port: int, keys: Sequence[str]) -> socket.socket:
    """A listening socket; connections queue on it before the server runs.

    Raises:
        InvalidRequest: it cannot be used, or other machines reach it and there are no keys.
    """
    check_keys(keys)
    if host not in LOOPBACK and not keys:
        raise InvalidRequest(
            f"host is {quoted(host)}, which other machines may reach, and there are no API keys; name a file "
            "of keys with --api-keys, or listen on 127.0.0.1"
        )
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"port is {port}; it must be from 0 to 65535")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise InvalidRequest(
            f"port {port} of {host} cannot be used ({reason.lower()}); choose another with --port"
        ) from error
