"""How many threads compute on a CPU, whether torch is imported or not."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np

from unmask.base.system import core_count

VARIABLE = "OMP_NUM_THREADS"
"""What torch and OpenMP read when they are loaded."""
_asked: list[int] = []
"""The count that was set before torch was imported."""


def thread_count() -> int:
    """As many as torch uses, or would use by default if it is not imported."""
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if count is not None and not _asked:
        return int(count())
    asked = os.environ.get(VARIABLE, "").partition(",")[0].strip()
    if asked.isdecimal() and int(asked):
        return int(asked)
    return core_count()


def set_thread_count(count: int) -> None:
    """Set how many compute in this process, numpy's products included, at least 1.

    Torch is not imported for it.
    """
    _tell_numpy(count)
    if sys.modules.get("torch") is not None:
        import torch

        torch.set_num_threads(count)
        _asked.clear()
        return
    os.environ[VARIABLE] = str(count)
    _asked[:] = [count]


def _tell_numpy(count: int) -> None:
    """Set how many threads numpy's products use, if it brings OpenBLAS; other libraries keep theirs.

    They are never more than the cores: OpenBLAS's threads wait for each other by spinning, and three on two
    cores that other programs use as well took 200 times as long for the eigenvalues of a layer.
    """
    count = min(count, core_count())
    for file in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*"):
        set_count = getattr(ctypes.CDLL(str(file)), "scipy_openblas_set_num_threads64_", None)
        if set_count is not None:
            set_count(count)


def tell_torch() -> None:
    """Let torch use the count that was set before it was imported.

    Torch reads the environment, but OpenMP may have been loaded, with the native library, before it was set.
    """
    if _asked:
        import torch

        torch.set_num_threads(_asked.pop())
