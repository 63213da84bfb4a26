"""What every route uses: tokenization off the event loop, the scheduler, and one request's circumstances."""

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from unmask.errors import InvalidRequest
from unmask.loaded import Model
from unmask.model.native.threads import set_thread_count, thread_count
from unmask.search.index import Index
from unmask.serve.errors import Busy
from unmask.serve.metrics import Metrics
from unmask.serve.models import Models, Ready
from unmask.serve.scheduler import Scheduler, expired
from unmask.serve.searching import Indexes
from unmask.serve.settings import Limits
from unmask.serve.tracing import Traces, otlp_exporter
from unmask.serve.workers import Workers
from unmask.text import Truncation

SHORT_BODY = 2048
"""Bytes of a request up to which its texts are tokenized on the event loop."""


class Gone(Exception):
    """The client has left; nobody reads an answer."""


@dataclass
class Call:
    """One request: who asks, until when, and what is counted for its answer."""

    client: str
    deadline: float
    gone: Callable[[], "asyncio.Future[None]"]
    """A future that is done when the client has left."""
    began: float
    size: int = 0
    """Bytes of its body."""
    tokens: int = 0
    truncated: int = 0
    queue_seconds: float = 0.0
    pass_seconds: float = 0.0

    def headers(self) -> dict[str, str]:
        """What an answer says of the work, in milliseconds where it is a time (the names are TEI's)."""
        found = {
            "x-compute-tokens": str(self.tokens),
            "x-total-time": f"{(time.monotonic() - self.began) * 1000:.0f}",
            "x-queue-time": f"{self.queue_seconds * 1000:.0f}",
            "x-inference-time": f"{self.pass_seconds * 1000:.0f}",
        }
        return found | ({"x-truncated-inputs": str(self.truncated)} if self.truncated else {})


class Service:
    """Models, indexes, their scheduler and the limits."""

    def __init__(
        self,
        models: Mapping[str, Model],
        limits: Limits,
        *,
        truncate: bool,
        indexes: Mapping[str, Index] | None = None,
        workers: int = 0,
        otlp_endpoint: str | None = None,
    ) -> None:
        self.limits, self._truncate = limits, truncate
        self.models = Models(models, limits.tokens_per_pass)
        self.indexes = Indexes(indexes or {}, [one.model for one in self.models.all])
        self.metrics = Metrics()
        # Workers are forked, so nothing above may have started a thread.
        self._workers = _workers(self.models, self.indexes, workers, limits) if workers else None
        self.scheduler = Scheduler(limits, self.metrics, workers=self._workers)
        self.traces = None if otlp_endpoint is None else Traces(otlp_exporter(otlp_endpoint))
        self.draining = False
        self.requests = 0
        self.metrics.gauge("unmask_requests_open", "Requests that are read or wait.", lambda: self.requests)
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="unmask serve: tokens")
        if self._workers is None:
            _warm(self.models, self.indexes)

    def truncation(self, asked: bool | None) -> Truncation:
        """What to do with a text that is too long: what the request says, else what the server was told."""
        return "end" if (self._truncate if asked is None else asked) else "error"

    def ready(self) -> bool:
        """Whether it takes new requests."""
        return not self.draining and self.scheduler.ready()

    def enter(self) -> None:
        """Count a request in.

        Raises:
            Busy: too many are open.
        """
        if self.requests >= self.limits.concurrent_requests:
            raise Busy(
                429,
                "overloaded",
                f"{self.requests:,} requests are open, the most that may be; try again later",
                1,
            )
        self.requests += 1

    def leave(self) -> None:
        """Count a request out."""
        self.requests -= 1

    async def run(self, call: Call, prepare: Callable[[], Ready]) -> list[Any]:
        """The results of the texts that ``prepare`` tokenizes, in their order.

        Raises:
            UnmaskError: a text is refused, the server is full, a model failed, or the time is over.
            Gone: the client has left.
        """
        self.scheduler.check_room(call.size)
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        # To hand a short text to a thread and back takes longer than to tokenize it.
        short = 0 < call.size <= SHORT_BODY
        ready = prepare() if short else await loop.run_in_executor(self._threads, prepare)
        self.metrics.tokenize_seconds.observe(time.monotonic() - began)
        submission = self.scheduler.submit(ready.work, ready.encodings, call.client, call.deadline, call.size)
        results = asyncio.wrap_future(submission.future)
        gone = call.gone()
        either: set[asyncio.Future[Any]] = {results, gone}
        try:
            left = max(0.0, call.deadline - time.monotonic())
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if results.done():
                found = results.result()
            elif gone.done():
                raise Gone
            else:
                raise expired()
        finally:
            results.cancel()  # what still waits is not computed
            gone.cancel()
        started = submission.started or submission.admitted
        call.queue_seconds += started - submission.admitted
        call.pass_seconds += time.monotonic() - started
        call.tokens += sum(map(len, ready.encodings))
        call.truncated += ready.truncated
        self.metrics.truncated.add(ready.truncated)
        if ready.finish is not None:
            found = await loop.run_in_executor(self._threads, ready.finish, found)
        return found

    async def aside(self, compute: Callable[[], Any]) -> Any:
        """The result of a function without a model, computed off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, compute)

    def close(self) -> None:
        """Stop the scheduler's threads and the workers, and send the last traces."""
        self.scheduler.close()
        if self._workers is not None:
            self._workers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.traces is not None:
            self.traces.close()


def _warm(models: Models, indexes: Indexes) -> None:
    models.warm()
    indexes.warm()


def _workers(models: Models, indexes: Indexes, count: int, limits: Limits) -> Workers:
    """Processes that run these models and search these indexes."""
    loaded = [*(one.model for one in models.all), *indexes.models()]
    if any(model.device != "cpu" for model in loaded):
        raise InvalidRequest(
            f"workers is {count} and a model is not on the CPU; only models on the CPU run in processes of "
            "their own, so set workers to 0"
        )
    for one in models.all:
        one.share()
    shared: dict[Hashable, object] = {("model", one.name): one for one in models.all}
    shared |= {("index", one.name): one for one in indexes.all}
    prepare = partial(set_thread_count, thread_count())
    warm = partial(_warm, models, indexes)
    return Workers(count, shared, warm=warm, seconds=limits.seconds, prepare=prepare)
