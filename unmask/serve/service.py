"""What every route uses: tokenization off the event loop, the scheduler, and one request's circumstances."""

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from unmask.base.system import can_fork
from unmask.engines.native.threads import set_thread_count, thread_count
from unmask.errors import InvalidRequest, UnmaskError
from unmask.models.load import Model
from unmask.search.index import Index
from unmask.serve.errors import BadField, Busy
from unmask.serve.models import Models, ServedModel
from unmask.serve.scheduler import Limits, Scheduler, Submission, Work, expired
from unmask.serve.searching import Indexes, ServedIndex
from unmask.serve.telemetry import Metrics, Traces, otlp_exporter
from unmask.serve.workers import Workers
from unmask.tasks.reader import Ready
from unmask.text import Truncation

SHORT_BODY = 2048
"""Bytes of a request up to which its texts are tokenized on the event loop."""
SMALL_BODY = 1 << 16
"""Bytes of a request up to which its texts are tokenized in a thread that larger ones cannot hold up."""
BYTES_PER_TOKEN = 4
"""By which the tokens of a request are estimated before its texts are tokenized."""
CHARACTERS_PER_TOKEN = 16
"""Texts of more characters than this for each token that may wait are not tokenized."""
LARGEST_SHARE = 8
"""A request that is not tokenized yet counts at most for this part of the tokens that may wait."""

AT_ONCE = (list, np.asarray)
"""Ways to finish a task that take no time."""

Value = TypeVar("Value")
Result = TypeVar("Result")


class Gone(Exception):
    """The client has left; nobody reads an answer."""


@dataclass(frozen=True)
class _Body:
    """A request whose texts are to be tokenized, by its price in tokens."""

    tokens: int
    truncated_tokens = 0  # it is known when they are tokenized

    def __len__(self) -> int:
        return self.tokens


@dataclass
class Call:
    """One request: who asks, until when, and what is counted for its answer."""

    client: str
    deadline: float
    gone: Callable[[], "asyncio.Future[None]"]
    """A future that is done when the client has left."""
    began: float
    size: int = 0
    """Bytes of its body, with those that are read several times."""
    tokens: int = 0
    truncated: int = 0
    queue_seconds: float = 0.0
    pass_seconds: float = 0.0

    def headers(self) -> dict[str, str]:
        """What an answer says of the work, in milliseconds where it is a time (the names are TEI's)."""
        headers = {
            "x-compute-tokens": str(self.tokens),
            "x-total-time": f"{(time.monotonic() - self.began) * 1000:.0f}",
            "x-queue-time": f"{self.queue_seconds * 1000:.0f}",
            "x-inference-time": f"{self.pass_seconds * 1000:.0f}",
        }
        return headers | ({"x-truncated-inputs": str(self.truncated)} if self.truncated else {})


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
        self.models = Models(models, limits)
        self.indexes = Indexes(indexes or {}, [served.model for served in self.models.all])
        self.metrics = Metrics()
        # Workers are forked, so nothing above may have started a thread.
        self._workers = _workers(self.models, self.indexes, workers, limits) if workers else None
        self.scheduler = Scheduler(limits, self.metrics, workers=self._workers)
        self.traces = None if otlp_endpoint is None else Traces(otlp_exporter(otlp_endpoint))
        self.draining = False
        self.requests = 0
        self.metrics.gauge("unmask_requests_open", "Requests that are read or wait.", lambda: self.requests)
        # Tokenization is work too: it is admitted, takes turns, and ends with its client or its time.
        self._small = Scheduler(limits, Metrics())
        self._large = Scheduler(limits, Metrics(), threads=os.cpu_count() or 1)
        self.metrics.gauge(
            "unmask_tokenize_queue_tokens",
            "Tokens, as estimated from bytes, that wait to be tokenized.",
            lambda: self._small.queued_tokens + self._large.queued_tokens,
        )
        if self._workers is None:
            _warm(self.models, self.indexes)

    def truncation(self, truncate: bool | None) -> Truncation:
        """The truncation of texts that are too long: that of the request, else that of the server."""
        return "end" if (self._truncate if truncate is None else truncate) else "error"

    def ready(self) -> bool:
        """Whether it takes new requests."""
        return not self.draining and self.scheduler.ready()

    def renewable(self) -> bool:
        """Whether a worker that ends can be replaced."""
        return self._workers is None or self._workers.renewable()

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

    def repeat(self, call: Call, field: str, text: str, count: int) -> None:
        """Count a text that is tokenized with each of several others as if it had been sent as often.

        Raises:
            BadField: it would take longer than any request whose texts are sent.
        """
        characters = len(text) * count
        most = max(self.limits.body_bytes, CHARACTERS_PER_TOKEN * self.limits.queued_tokens)
        if characters > most:
            raise BadField(
                field,
                f"{field} has {len(text):,} characters and is read with each of {count:,} texts, and "
                f"{most:,} characters may be read so; shorten it, or send fewer texts",
                413,
                "too_many_tokens",
            )
        call.size += characters - len(text)

    async def run(
        self, call: Call, served: ServedModel | ServedIndex, prepare: Callable[[], Ready[Result]]
    ) -> Result:
        """The results of the task that ``prepare`` makes of a request's texts.

        Raises:
            UnmaskError: a text is refused, the server is full, a model failed, or the time is over.
            Gone: the client has left.
        """
        self.scheduler.check_room(call.size)
        began = time.monotonic()
        # To hand a short text to a thread and back takes longer than to tokenize it.
        ready = prepare() if 0 < call.size <= SHORT_BODY else await self.aside(call, prepare)
        self.metrics.tokenize_seconds.observe(time.monotonic() - began)
        submission = self.scheduler.submit(
            served.work(ready), ready.encodings, call.client, call.deadline, call.size
        )
        results = await _result(call, submission)
        started = submission.started or submission.admitted
        call.queue_seconds += started - submission.admitted
        call.pass_seconds += time.monotonic() - started
        call.tokens += ready.tokens
        call.truncated += ready.truncated
        self.metrics.truncated.add(ready.truncated)
        finish = partial(ready.finish, results)
        at_once = ready.finish in AT_ONCE or 0 < call.size <= SHORT_BODY
        return finish() if at_once else await self.aside(call, finish)

    async def aside(self, call: Call, compute: Callable[[], Value]) -> Value:
        """The result of a function without a model, computed off the event loop when its client's turn comes.

        Raises:
            UnmaskError: too much waits, or the time is over; or what it raises.
            Gone: the client has left.
        """
        most = self.limits.queued_tokens // LARGEST_SHARE
        price = _Body(1 + min(call.size // BYTES_PER_TOKEN, most))
        work = Work(object(), lambda _: [compute()])  # no two share a turn
        lane = self._small if call.size <= SMALL_BODY else self._large
        results: list[Value] = await _result(
            call, lane.submit(work, [price], call.client, call.deadline, call.size)
        )
        return results[0]

    def stop(self, error: UnmaskError) -> None:
        """Take nothing more, and fail what waits or runs."""
        for scheduler in (self.scheduler, self._small, self._large):
            scheduler.fail_all(error)

    def close(self) -> None:
        """Stop the scheduler's threads and the workers, and send the last traces."""
        for scheduler in (self.scheduler, self._small, self._large):
            scheduler.close()
        if self._workers is not None:
            self._workers.close()
        if self.traces is not None:
            self.traces.close()


async def _result(call: Call, submission: Submission) -> list[Any]:
    """What was submitted for a request, until its time is over or its client has left."""
    results = asyncio.wrap_future(submission.future)
    gone = call.gone()
    either: set[asyncio.Future[Any]] = {results, gone}
    try:
        seconds = max(0.0, call.deadline - time.monotonic())
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if results.done():
            return results.result()
        if gone.done():
            raise Gone
        raise expired()
    finally:
        results.cancel()  # what still waits is not computed
        gone.cancel()


def _warm(models: Models, indexes: Indexes) -> None:
    models.warm()
    indexes.warm()


def _workers(models: Models, indexes: Indexes, count: int, limits: Limits) -> Workers:
    """Processes that run these models and search these indexes."""
    if not can_fork():
        raise InvalidRequest(
            f"workers is {count} and this system cannot fork processes; set workers to 0, and the process "
            "that listens runs the models"
        )
    loaded = [*(served.model for served in models.all), *indexes.models()]
    if any(model.device != "cpu" for model in loaded):
        raise InvalidRequest(
            f"workers is {count} and a model is not on the CPU; only models on the CPU run in processes of "
            "their own, so set workers to 0"
        )
    for served in models.all:
        served.share()
    shared: dict[Hashable, object] = {("model", served.name): served for served in models.all}
    shared |= {("index", index.name): index for index in indexes.all}
    prepare = partial(set_thread_count, thread_count())
    warm = partial(_warm, models, indexes)
    return Workers(count, shared, warm=warm, seconds=limits.seconds, prepare=prepare)
