"""Continuous batching: texts of many requests, packed into forward passes in a fair order.

A request is admitted whole or not at all, by its tokens. One thread for each worker runs passes; each pass
takes the texts that are next in the order of start-time fair queueing (Goyal, Vin & Cheng 1996), in which a
client that sends much waits behind its own texts, not before those of others. Of a few passes' worth of such
texts, those run together whose lengths are close to the first one's, since attention takes texts of equal
length at once.
"""

import heapq
import itertools
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest, UnmaskError
from unmask.http.responses import Refused
from unmask.serve.errors import BackendError, Busy, status_of
from unmask.serve.telemetry import Metrics
from unmask.serve.workers import Worker, WorkerDied, Workers
from unmask.tasks.reader import Readable


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server accepts, and how long it works on it."""

    tokens_per_pass: int = 512
    """Maximum number of tokens of one forward pass; a longer text runs alone. Texts wait longer behind a
    larger pass, and a CPU reads 512 tokens at nearly the speed of more; on a GPU, take thousands."""
    queued_tokens: int = 262_144
    """Maximum number of tokens that wait; a request that would exceed it is refused with 429."""
    concurrent_requests: int = 1024
    """Maximum number of requests that are read or wait; more are refused with 429."""
    texts: int = 2048
    """Maximum number of texts of one request."""
    body_bytes: int = 4 << 20
    """Maximum size of a request's body."""
    seconds: float = 60.0
    """Maximum time for one request; then it is answered with 504."""
    drain_seconds: float = 30.0
    """Maximum time for the requests that are unfinished when the server is told to stop."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_pass", "queued_tokens", "concurrent_requests", "texts", "body_bytes"):
            whole(name, getattr(self, name), 1)
        for name in ("seconds", "drain_seconds"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
                raise InvalidRequest(f"{name} is {seconds!r}; it must be more than 0 and less than a million")


PASSES_AHEAD = 4
"""How many passes' worth of waiting texts a pass is chosen from."""
OTHERS_SKIPPED = 1024
"""How many texts of other work a pass may look past to fill itself."""
KNOWN_CLIENTS = 1024
"""Clients whose place in the order is kept before those that are no longer ahead are forgotten."""
IDLE_SECONDS = 1.0
"""How often a worker without work is looked at."""

_NONE_REFUSED: tuple[float, int] = (math.inf, 0)
"""Bytes of the smallest request refused since the last pass began, and the tokens that waited then."""


Run = Callable[..., Iterable[Any]]
"""What a pass computes of its texts; in a pass of several works it gets an engine as well."""
Runner = Callable[[Run, Sequence[Readable]], Iterable[Any]]
"""Runs what a pass computes on its texts: here or in a worker."""
Part = tuple["SharedEncoder", Run, int]
"""In a pass of several works: who reads, what is computed, and of how many of its texts."""


class SharedEncoder(Protocol):
    """A model whose texts may be read in one pass with those of other tasks and models."""

    @property
    def encoder(self) -> Hashable:
        """Names the encoder; readers of one encoder share passes."""

    def read_together(self, parts: Sequence[Part], texts: Sequence[Any]) -> Iterable[Any]:
        """The results of one pass over the texts of all parts, in their order."""


@dataclass(frozen=True)
class Work:
    """What a pass computes: one result for each text. Texts with equal keys may share a pass."""

    key: Hashable
    run: Run = field(compare=False)
    model: SharedEncoder | None = field(default=None, compare=False)
    """Who reads, if texts may also share a pass with other work of the same encoder."""

    @property
    def shares(self) -> Hashable:
        """Texts for which this is equal may share a pass."""
        return ("work", self.key) if self.model is None else ("encoder", self.model.encoder)


@dataclass(eq=False)
class Submission:
    """The texts of one request that wait or run, and where their results go."""

    work: Work
    encodings: Sequence[Readable]
    deadline: float
    """When it is given up, on the clock of `time.monotonic`."""
    future: "Future[list[Any]]" = field(default_factory=Future)
    """The results in the order of the texts, or the error of the first text that failed."""
    admitted: float = 0.0
    started: float | None = None
    """When its first text began to run."""
    results: list[Any] = field(default_factory=list)
    missing: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.results = [None] * len(self.encodings)
        self.missing = len(self.encodings)

    def fail(self, error: BaseException) -> None:
        """Resolve it with an error, unless it is resolved or given up already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def put(self, index: int, result: Any) -> None:
        """Store the result of one text; the last one resolves the request."""
        with self._lock:  # texts of one request may run in several workers
            self.results[index] = result
            self.missing -= 1
            last = not self.missing
        if last:
            with suppress(InvalidStateError):
                self.future.set_result(self.results)


@dataclass(order=True)
class _Item:
    """One text that waits."""

    tag: float
    """Its place in the order: how many tokens its client had been given when its turn began."""
    number: int
    submission: Submission = field(compare=False)
    index: int = field(compare=False)
    tokens: int = field(compare=False)

    @property
    def work(self) -> Work:
        return self.submission.work


def check_fits(tokens: int, limit: int) -> None:
    """Raise `Refused` if a request alone has more tokens than may wait."""
    if tokens > limit:
        raise Refused(
            413,
            "too_many_tokens",
            f"the request has {tokens:,} tokens, and at most {limit:,} may wait; send fewer texts",
        )


class Scheduler:
    """Runs the texts of many requests in packed passes.

    Args:
        limits: how much may wait, and how much runs at once.
        metrics: where it counts.
        workers: the processes that run passes, each with a thread here.
        threads: how many threads run passes if there are no workers.
    """

    def __init__(
        self, limits: Limits, metrics: Metrics, *, workers: Workers | None = None, threads: int = 1
    ) -> None:
        self._limits, self._metrics, self._workers = limits, metrics, workers
        self._changed = threading.Condition()
        self._waiting: list[_Item] = []
        self._running: dict[int, list[_Item]] = {}
        self._numbers = itertools.count()
        self._finish: dict[str, float] = {}
        self._now = 0.0
        self._open = True
        self._tokens_per_second = 4096.0
        self.queued_tokens = 0
        self._refused = _NONE_REFUSED
        metrics.gauge("unmask_queue_tokens", "Tokens that wait.", lambda: self.queued_tokens)
        metrics.gauge("unmask_queue_texts", "Texts that wait.", lambda: len(self._waiting))
        if workers is not None:
            metrics.gauge("unmask_workers", "Processes that can run models.", workers.up)
        each: Sequence[Worker | None] = [None] * threads if workers is None else workers.all
        self._threads = [
            threading.Thread(target=self._supervise, args=pair, name="unmask serve: models", daemon=True)
            for pair in enumerate(each)
        ]
        for thread in self._threads:
            thread.start()

    def check_room(self, size: int) -> None:
        """Refuse a request at once, before it is tokenized, if one of no more bytes has just been refused.

        Args:
            size: bytes of its body.

        Raises:
            Busy: no pass has begun since then, so nothing has become free.
        """
        least, waited = self._refused
        if size >= least and self.queued_tokens >= waited:
            raise self._full("a request of no more bytes has just been refused")

    def _full(self, why: str) -> Busy:
        return Busy(
            429,
            "overloaded",
            f"{self.queued_tokens:,} tokens wait, {why}, and at most {self._limits.queued_tokens:,} "
            "may wait; try again later",
            self.queued_tokens / self._tokens_per_second,
        )

    def submit(
        self, work: Work, encodings: Sequence[Readable], client: str, deadline: float, size: int = 0
    ) -> Submission:
        """Admit all texts of a request, or none.

        Args:
            work: what is done with them.
            encodings: the texts.
            client: whose turn they take.
            deadline: see `Submission`.
            size: bytes of the request, for `check_room`.

        Raises:
            Busy: too many tokens wait, or the server is stopping.
            Refused: the request alone has more tokens than may wait.
        """
        submission = Submission(work, encodings, deadline, admitted=time.monotonic())
        lengths = [len(encoding) for encoding in encodings]
        tokens, limit = sum(lengths), self._limits.queued_tokens
        check_fits(tokens, limit)
        with self._changed:
            if not self._open:
                raise Busy(503, "stopping", "the server is stopping; send the request again", 1)
            if self.queued_tokens + tokens > limit:
                self._refused = min((size, self.queued_tokens), self._refused)
                raise self._full(f"the request has {tokens:,}")
            self.queued_tokens += tokens
            if not self._waiting and not any(self._running.values()):
                self._finish.clear()
                self._now = 0.0
            elif len(self._finish) > KNOWN_CLIENTS:
                self._finish = {name: at for name, at in self._finish.items() if at > self._now}
            tag = max(self._now, self._finish.get(client, 0.0))
            for index, length in enumerate(lengths):
                heapq.heappush(self._waiting, _Item(tag, next(self._numbers), submission, index, length))
                tag += length
            self._finish[client] = tag
            self._changed.notify()
        if not encodings:
            submission.future.set_result([])
        return submission

    @property
    def tokens_per_second(self) -> float:
        """The recent speed of passes, a moving average."""
        return self._tokens_per_second

    def alive(self) -> bool:
        """Whether it takes requests, its threads run, and workers that end can be replaced."""
        renewable = self._workers is None or self._workers.renewable()
        return self._open and renewable and all(thread.is_alive() for thread in self._threads)

    def ready(self) -> bool:
        """Whether a pass could run now: a worker that has ended is not ready until another has started."""
        return self.alive() and (self._workers is None or self._workers.up() > 0)

    def fail_all(self, error: UnmaskError) -> None:
        """Take nothing more, and fail what waits or runs."""
        with self._changed:
            self._open = False
            items, self._waiting = [*self._waiting, *itertools.chain(*self._running.values())], []
            self.queued_tokens = 0
            self._changed.notify_all()
        for item in items:
            item.submission.fail(error)

    def close(self, seconds: float = 2.0) -> None:
        """Stop the threads, and fail what is unfinished."""
        self.fail_all(Busy(503, "stopping", "the server is stopping; send the request again", 1))
        for thread in self._threads:
            thread.join(seconds)

    def _supervise(self, number: int, worker: Worker | None) -> None:
        """Run passes until closed, whatever happens: no request may wait for a thread that has ended."""
        while True:
            try:
                self._work(number, worker)
                return
            except BaseException as error:
                traceback.print_exception(error, file=sys.stderr)
                self._metrics.restarts.add()
                for item in self._running.pop(number, []):
                    item.submission.fail(
                        Busy(503, "restarted", "the model's thread was restarted; send the request again", 1)
                    )

    def _work(self, number: int, worker: Worker | None) -> None:
        run: Runner = _here if worker is None else worker.run
        while True:
            with self._changed:
                if self._open and not self._waiting:
                    self._changed.wait(IDLE_SECONDS)
                if not self._open:
                    return
                self._running[number] = items = self._next()
            if items:
                self._run(run, items)
            elif worker is not None:
                self._renew(worker)
            with self._changed:
                del self._running[number]

    def _renew(self, worker: Worker) -> None:
        """Replace a worker that ended without work; if the new one ends too, another is tried later."""
        with suppress(WorkerDied):
            if worker.renew():
                self._metrics.restarts.add()

    def _next(self) -> list[_Item]:
        """The texts of the next pass, removed from those that wait; nothing if all had been given up."""
        budget, self._refused = self._limits.tokens_per_pass, _NONE_REFUSED
        first: _Item | None = None
        candidates: list[_Item] = []
        others: list[_Item] = []
        tokens, now = 0, time.monotonic()
        while self._waiting and tokens < PASSES_AHEAD * budget and len(others) < OTHERS_SKIPPED:
            item = heapq.heappop(self._waiting)
            if item.submission.future.done() or item.submission.deadline <= now:
                self.queued_tokens -= item.tokens
                item.submission.fail(expired())
            elif first is None or item.work.shares == first.work.shares:
                first = first or item
                candidates.append(item)
                tokens += item.tokens
            else:
                others.append(item)
        if first is None:
            return []
        chosen, room = [], budget
        length = first.tokens
        for item in sorted(candidates, key=lambda item: (abs(item.tokens - length), item)):
            if item is first or item.tokens <= room:
                chosen.append(item)
                room -= item.tokens
            else:
                others.append(item)
        for item in others:
            heapq.heappush(self._waiting, item)
        self._now = first.tag
        for item in chosen:
            self.queued_tokens -= item.tokens
            if item.submission.started is None:
                item.submission.started = now
                self._metrics.queue_seconds.observe(now - item.submission.admitted)
        return chosen

    def _run(self, run: Runner, items: Sequence[_Item], *, again: bool = True) -> None:
        """One pass. If it fails, each half runs by itself, so that a text that fails does so alone.

        A text whose worker ended runs once more by itself: something else may have ended it.
        """
        began = time.monotonic()
        try:
            items, computed = _pass_of(items)
            results = run(computed, [item.submission.encodings[item.index] for item in items])
        except Exception as error:
            died = isinstance(error, WorkerDied)
            if status_of(error, "openai") >= 500:  # else it is the client's mistake
                self._metrics.failed_passes.add()
            if died:
                self._metrics.restarts.add()
            if len(items) == 1:
                if died and again and not items[0].submission.future.done():
                    self._run(run, items, again=False)
                else:
                    items[0].submission.fail(_reported(error))
                return
            half = len(items) // 2
            for part in (items[:half], items[half:]):
                waiting = [item for item in part if not item.submission.future.done()]
                if waiting:
                    self._run(run, waiting)
            return
        seconds = time.monotonic() - began
        tokens = sum(item.tokens for item in items)
        self._tokens_per_second += 0.2 * (tokens / max(seconds, 1e-6) - self._tokens_per_second)
        self._metrics.pass_seconds.observe(seconds)
        self._metrics.pass_tokens.observe(tokens)
        self._metrics.pass_texts.observe(len(items))
        self._metrics.tokens.add(tokens)
        self._metrics.texts.add(len(items))
        for item, result in zip(items, results, strict=True):
            item.submission.put(item.index, result)


def _pass_of(items: Sequence[_Item]) -> tuple[Sequence[_Item], Run]:
    """The texts of a pass, those of each work side by side, and what computes all of them."""
    groups: dict[Work, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.work, []).append(item)
    first = items[0].work
    if len(groups) == 1 or first.model is None:
        return items, first.run
    parts = [(work.model, work.run, len(texts)) for work, texts in groups.items() if work.model is not None]
    return [item for texts in groups.values() for item in texts], partial(first.model.read_together, parts)


def _here(run: Run, encodings: Sequence[Readable]) -> Iterable[Any]:
    """Run a pass in this process."""
    return run(encodings)


def expired() -> Refused:
    """The error of a request whose time is over."""
    return Refused(504, "timeout", "the request was not finished in time; send fewer texts, or try later")


def _reported(error: Exception) -> Exception:
    """The error for the client; one that nobody raised on purpose is printed for the server's owner."""
    if isinstance(error, UnmaskError | MemoryError):
        return error
    if isinstance(error, WorkerDied):
        return Busy(503, "restarted", "the model's process ended and is restarted; send the request again", 1)
    traceback.print_exception(error, file=sys.stderr)
    return BackendError("the model failed on a text of the request; see the server's log for details")
