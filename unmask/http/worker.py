"""Schedule model work: one task at a time, short requests first, without starving long jobs.

A long job (reading a text, measuring it) calls ``watch`` between blocks of rows, where it may be stopped or
yield its turn. Short requests (a rectangle, a prediction) run one after another in their own thread and take
precedence, but a long job that has waited `PATIENCE` runs next. Two texts measured at the same time therefore
take turns block by block.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

from unmask.base.system import resident_bytes
from unmask.errors import Cancelled, UnmaskError
from unmask.http.responses import Problem, Refused, problem_of, unexpected

Value = TypeVar("Value")
Watch = Callable[[str, int, int], None]

PATIENCE = 0.5
"""Seconds that a long job waits for short requests before it takes a turn."""
LANES = 4
"""Number of long jobs that take turns; further jobs wait until one has ended."""


class Turns:
    """The lock that model work needs, with priorities."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._questions = 0
        # Waiting long jobs: since when, and on which thread.
        self._waiting: deque[tuple[float, int]] = deque()

    def announce(self) -> None:
        """Announce a short request: long work yields at its next opportunity."""
        with self._changed:
            self._questions += 1

    @contextmanager
    def short(self) -> Iterator[None]:
        """Hold the turn for an announced short request."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken and not self._overdue())
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._questions -= 1
                self._taken = False
                self._changed.notify_all()

    @contextmanager
    def long(self) -> Iterator[None]:
        """Hold the turn for long work, which yields with `give_way`."""
        self._take()
        try:
            yield
        finally:
            self._leave()

    def give_way(self) -> None:
        """Yield the turn to others that wait, and take it back afterwards."""
        if self._questions or self._waiting:
            self._leave()
            self._take()

    def _take(self) -> None:
        me = (time.monotonic(), threading.get_ident())
        with self._changed:
            self._waiting.append(me)
            try:
                while self._taken or self._waiting[0] != me or (self._questions and not self._overdue()):
                    self._changed.wait(PATIENCE / 5)
                self._taken = True
            finally:
                self._waiting.remove(me)

    def _leave(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    def _overdue(self) -> bool:
        return bool(self._waiting) and time.monotonic() - self._waiting[0][0] >= PATIENCE


class Job:
    """A long job: its progress, and a way to stop it between two blocks."""

    def __init__(self, work: Callable[[Watch], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._turns: Turns | None = None
        self._began = self._stage_began = time.monotonic()
        self._held_bytes = resident_bytes()
        self.ended = threading.Event()
        self.phase = "waiting"
        """waiting, running, done, stopped or failed."""
        self.what = ""
        self.done = 0
        self.total = 0
        self.seconds = 0.0
        self.peak_bytes: int | None = None
        self.problem: Problem | None = None
        self.error: UnmaskError | None = None

    @property
    def eta_seconds(self) -> float | None:
        """The remaining seconds of this stage at its current pace; None until the pace is known."""
        if self.phase != "running" or not 0 < self.done <= self.total:
            return None
        spent = time.monotonic() - self._stage_began
        return spent / self.done * (self.total - self.done)

    def stop(self) -> None:
        """Request that it stop at its next block."""
        self._stop.set()

    def watch(self, what: str, done: int, total: int) -> None:
        """Called by the work between blocks; raises `Cancelled` after a stop was requested."""
        self.note(what, done, total)
        if self._turns is not None:
            self._turns.give_way()
        self._check()

    def note(self, what: str, done: int, total: int) -> None:
        """Like `watch`, but keeps the turn: for work that must not run concurrently with other work."""
        now = time.monotonic()
        if what != self.what:
            self._stage_began = now
        self.what, self.done, self.total, self.seconds = what, done, total, now - self._began
        self._weigh()
        self._check()

    def run(self, turns: Turns) -> None:
        """Run the work in this thread and record its outcome."""
        self._turns = turns
        try:
            with turns.long():
                self._check()
                self.phase = "running"
                self._began = self._stage_began = time.monotonic()
                self._held_bytes = resident_bytes()
                self._work(self.watch)
                self._weigh()
            self.phase = "done"
        except Cancelled:
            self.phase = "stopped"
        except UnmaskError as error:
            self._fail(error)
        except Exception as error:
            self._fail(unexpected(error))
        finally:
            self.seconds = time.monotonic() - self._began
            self.ended.set()

    def _fail(self, error: UnmaskError) -> None:
        self.error, self.problem, self.phase = error, problem_of(error), "failed"

    def never(self) -> None:
        """Mark the job as never run, and release its waiters."""
        self.phase = "stopped"
        self.ended.set()

    def _check(self) -> None:
        if self._stop.is_set():
            raise Cancelled("this work was stopped")

    def _weigh(self) -> None:
        resident = resident_bytes()
        if resident is not None and self._held_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, resident - self._held_bytes)


class Worker:
    """The threads that run models: one for short requests, `LANES` for long jobs, all taking turns."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._closed = False
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started: list[Job] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def ask(self, question: Callable[[], Value]) -> Value:
        """The result of a short request, run when its turn comes; its error is raised here."""
        self._check_open()
        future: Future[Value] = Future()

        def answer() -> None:
            with self.turns.short():
                try:
                    self._check_open()
                    future.set_result(question())
                except BaseException as error:
                    future.set_exception(error)

        self._run_threads()
        self.turns.announce()
        self._questions.put(answer)
        return future.result()

    def start(self, job: Job) -> None:
        """Start a long job, or queue it behind the running ones."""
        if self._closed:
            job.never()
            return
        self._run_threads()
        with self._lock:
            self._started = [job for job in self._started if not job.ended.is_set()]
            self._started.append(job)
        self._jobs.put(job)

    def close(self, seconds: float = 2.0) -> None:
        """Stop all work and wait up to ``seconds`` for it to end."""
        self._closed = True
        with self._lock:
            started, threads, self._threads = self._started, self._threads, []
        for job in started:
            job.stop()
        self._questions.put(None)
        for _ in range(LANES):
            self._jobs.put(None)
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for job in started:
            if job.phase == "waiting":
                job.never()

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(503, "Closing", "the server is shutting down; start it again to continue")

    def _run_threads(self) -> None:
        with self._lock:
            if self._threads:
                return
            roles = [("questions", self._answer), *((f"lane {lane}", self._work) for lane in range(LANES))]
            self._threads = [
                threading.Thread(target=run, name=f"unmask worker: {name}", daemon=True)
                for name, run in roles
            ]
            for thread in self._threads:
                thread.start()

    def _answer(self) -> None:
        while (question := self._questions.get()) is not None:
            question()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run(self.turns)
