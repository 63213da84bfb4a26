"""Analyses that take long, each made once and kept: whoever asks meanwhile waits for the same one."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from unmask.http.errors import Refused
from unmask.http.worker import Job, Watch, Worker

Value = TypeVar("Value")

KEPT = 48
"""Results kept; the one unused for longest leaves first. Those still being made come on top."""


@dataclass(frozen=True)
class Underway:
    """An analysis in progress. ``name``: which one, as the server calls it; ``what``: its present stage, of
    which ``done`` of ``total`` steps are done; ``eta_s``: the seconds left of it, None until known."""

    name: str
    phase: str
    what: str
    done: int
    total: int
    seconds: float
    eta_s: float | None


@dataclass(frozen=True)
class UnderwayList:
    """The analyses in progress of a text, or of no text."""

    analyses: tuple[Underway, ...]


class Analyses:
    """Results by key, made by jobs of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._made: OrderedDict[Hashable, tuple[Job, list[Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def once(self, key: Hashable, work: Callable[[Watch], Value]) -> Value:
        """The result of ``work``, waited for; its error is raised here, and the next who asks tries again."""
        with self._lock:
            if key not in self._made:
                self._make_room()
                results: list[Any] = []
                job = Job(lambda watch: results.append(work(watch)))
                self._made[key] = job, results
                self._worker.start(job)
            self._made.move_to_end(key)
            job, results = self._made[key]
        job.ended.wait()
        if results:
            return cast(Value, results[0])
        with self._lock:
            if self._made.get(key, (None,))[0] is job:
                del self._made[key]
        raise job.error or Refused(409, "Stopped", "this analysis was stopped; ask for it again")

    def _make_room(self) -> None:
        """Drop results until one more may be kept; none still being made, which `stop` must reach."""
        ended = [key for key, (job, _) in self._made.items() if job.ended.is_set()]
        for key in ended[: max(0, len(self._made) - KEPT + 1)]:
            del self._made[key]

    def underway(self) -> list[tuple[Hashable, Job]]:
        """Those that have not ended, by key, in the order in which they were asked for."""
        with self._lock:
            return [(key, job) for key, (job, _) in self._made.items() if not job.ended.is_set()]

    def stop(self, name: str | None = None) -> None:
        """Stop those that run: all, or those whose key is ``name`` or begins with it."""
        for key, job in self.underway():
            if name is None or name_of(key) == name:
                job.stop()


def name_of(key: Hashable) -> str:
    """The name of an analysis: its key, or the first part of that."""
    return str(key[0] if isinstance(key, tuple) else key)
