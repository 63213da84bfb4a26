"""Several tasks in parallel, each on one core.

The tasks consist of very many small operations. If each operation were split over the cores, all cores would
wait for the slowest one after each operation, which on a busy machine takes most of the time.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

T = TypeVar("T")
Tick = Callable[[int], None]
"""Called with the amount of work done since the last call."""


AHEAD = 4
"""Reports of a worker that may wait for the caller; then the worker waits too, so that a caller that
takes its time in ``tick`` has the cores to itself."""


class _Stopped(Exception):
    """Raised in the ``tick`` of a worker whose results are no longer needed."""


def together(works: Sequence[Callable[[Tick], T]], tick: Tick, workers: int) -> list[T]:
    """The results of ``works``, in their order.

    Args:
        works: each is given a ``tick`` to call now and then, which is where it may be stopped.
        tick: called in this thread with the reports of all; an exception from it stops them all. While
            it runs for long, they soon wait.
        workers: how many at once; 1 runs them in this thread, one after another.
    """
    workers = min(workers, len(works))
    if workers <= 1:
        return [work(tick) for work in works]
    threads, started = torch.get_num_threads(), threading.Barrier(workers + 1)
    reports: SimpleQueue[int | None] = SimpleQueue()
    stopping, room = threading.Event(), threading.Semaphore(AHEAD * workers)

    def begin() -> None:
        # For this thread alone, but new threads would inherit it too: see below.
        torch.set_num_threads(1)
        started.wait()

    def report(amount: int) -> None:
        room.acquire()
        if stopping.is_set():
            raise _Stopped
        reports.put(amount)

    def run(work: Callable[[Tick], T]) -> T:
        try:
            with torch.no_grad():
                return work(report)
        finally:
            reports.put(None)

    with ThreadPoolExecutor(workers, initializer=begin) as pool:
        futures = [pool.submit(run, work) for work in works]
        started.wait()
        torch.set_num_threads(threads)
        try:
            running = len(works)
            while running:
                amount = reports.get()
                if amount is None:
                    running -= 1
                    if any(future.done() and future.exception() for future in futures):
                        break
                else:
                    tick(amount)
                    room.release()
        finally:
            stopping.set()
            room.release(len(works))  # workers that still wait for room then stop
            pool.shutdown(cancel_futures=True)
    errors = (future.exception() for future in futures if not future.cancelled())
    for error in errors:
        if error is not None and not isinstance(error, _Stopped):
            raise error
    return [future.result() for future in futures]
