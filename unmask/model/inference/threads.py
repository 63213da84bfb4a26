"""One thread for small calls while other programs keep the processors busy.

Every product of a call ends with all of its threads waiting for each other. Where a processor is taken by
another program, a thread that waits for its turn makes the others wait at each of some 30 products, and a call
of milliseconds takes many times as long. On a quiet machine several threads are faster.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

TOKENS_OF_A_SMALL_CALL = 32
"""Calls of fewer tokens than this are small."""

BUSY = 1.5
"""Programs that want to run for each processor, averaged over a minute, above which a machine counts as busy.
The threads of this process are among them, so on a quiet machine there is at most about 1."""

SECONDS_BETWEEN_LOOKS = 2.0


class Load:
    """Whether the machine is busy, asked of the system at most every `SECONDS_BETWEEN_LOOKS`."""

    def __init__(self) -> None:
        self._seen: tuple[float, bool] = (-SECONDS_BETWEEN_LOOKS, False)

    def is_busy(self) -> bool:
        """False where the system does not say."""
        now = time.monotonic()
        when, busy = self._seen
        if now - when >= SECONDS_BETWEEN_LOOKS:
            try:
                busy = os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
            except OSError:
                busy = False
            self._seen = now, busy
        return busy


LOAD = Load()


@cache
def _setter() -> Callable[[int], None] | None:
    """OpenMP's number of threads of the calling thread alone; None where torch runs on something else.

    `torch.set_num_threads` would change it for threads that start later, too.
    """
    if "OpenMP" not in torch.__config__.parallel_info().partition("ATen parallel backend:")[2]:
        return None
    folder = Path(torch.__file__).parent / "lib"
    for path in (folder / "libtorch_cpu.so", folder / "libtorch_cpu.dylib"):
        try:
            setter = ctypes.CDLL(str(path)).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        setter.argtypes, setter.restype = (ctypes.c_int,), None
        return setter  # type: ignore[no-any-return]
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """The calls of torch inside use the calling thread alone; those of other Python threads are as before.

    The number before is restored also after an error. Nothing happens where it cannot be set for one thread.
    """
    threads, setter = torch.get_num_threads(), _setter()
    if threads == 1 or setter is None:
        yield
        return
    setter(1)
    try:
        yield
    finally:
        setter(threads)


def is_better_alone(tokens: int) -> bool:
    """Whether a call of so many tokens is faster with `one_thread`."""
    return tokens < TOKENS_OF_A_SMALL_CALL and LOAD.is_busy()
