"""Worker processes that each hold what they compute with, and end with the process that started them."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from unmask.errors import ProcessLost

_held: list[Callable[[Any], Any]] = []
"""What this worker process computes with."""


@contextmanager
def process_pool(workers: int, function: Callable[[Any], Any], lost: str) -> Iterator[ProcessPoolExecutor]:
    """New processes, each with a copy of ``held``, which `compute` calls with one argument.

    They are spawned, because torch's threads do not survive a fork, so ``held`` is pickled.

    Raises:
        ProcessLost: one was ended from outside; the message is ``lost``.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(function,)
    )
    try:
        yield pool
    except BrokenProcessPool:
        raise ProcessLost(lost) from None
    finally:
        pool.shutdown(cancel_futures=True)


def compute(argument: Any) -> Any:
    """What this worker process holds, called with an argument."""
    return _held[0](argument)


def _start(function: Callable[[Any], Any]) -> None:
    _held.append(function)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without this, workers of a killed run would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
