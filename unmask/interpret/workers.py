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
"""Hears how much was done since it was last called."""


AHEAD = 4
"""How often a worker may tell something before the caller has heard it; then it waits, so that a caller that
takes its time in ``tick`` has the cores to itself."""


class _Stopped(Exception):
    """Raised in a worker's ``tick`` when its results are wanted no more."""


def together(works: Sequence[Callable[[Tick], T]], tick: Tick, workers: int) -> list[T]:
    """What each of ``works`` returns, in their order.

    Args:
        works: each is given a ``tick`` to call now and then, which is where it may be stopped.
        tick: called in this thread with what all of them tell; an exception out of it stops them all. While
            it takes its time they soon stand still.
        workers: how many at once; 1 runs them in this thread, one after another.
    """
    workers = min(workers, len(works))
    if workers <= 1:
        return [work(tick) for work in works]
    threads, started = torch.get_num_threads(), threading.Barrier(workers + 1)
    reports: SimpleQueue[int | None] = SimpleQueue()
    stopping, room = threading.Event(), threading.Semaphore(AHEAD * workers)

    def begin() -> None:
        # Of this thread alone, but it is also what threads yet to come would have: see below.
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
            room.release(len(works))  # each that still waits for room finds that it is to stop
            pool.shutdown(cancel_futures=True)
    errors = (future.exception() for future in futures if not future.cancelled())
    for error in errors:
        if error is not None and not isinstance(error, _Stopped):
            raise error
    return [future.result() for future in futures]
