"""How many threads compute on a CPU, whether torch is imported or not."""

import os
import sys

from unmask.model.native.library import connected

VARIABLE = "OMP_NUM_THREADS"
"""What torch and OpenMP read when they are loaded."""


def thread_count() -> int:
    """As many as torch uses, or would use by default if it is not imported."""
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if count is not None:
        return int(count())
    asked = os.environ.get(VARIABLE, "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else len(os.sched_getaffinity(0))


def set_thread_count(count: int) -> None:
    """Set how many compute in this process, at least 1. Torch is not imported for it, if that can wait."""
    if "torch" in sys.modules or connected.cache_info().currsize:
        import torch

        torch.set_num_threads(count)
    else:
        os.environ[VARIABLE] = str(count)
