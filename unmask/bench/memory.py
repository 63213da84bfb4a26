"""Peak memory of a call above what was held before it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MIB = 2**20
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_extra_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """Peak memory of ``work`` in bytes above what was held before it; None where unknown.

    On CUDA this is measured by torch's allocator, on Linux by the process's high-water mark, which is reset
    first; freed memory is first returned to the system, because it would hide a part. What the allocator
    keeps of tensors freed during the work counts, because the process does hold it.
    """
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if not _forget_peak():
        return None
    resident = status_bytes("VmRSS")
    work()
    peak = status_bytes("VmHWM")
    return None if peak is None or resident is None else max(0, peak - resident)


def _forget_peak() -> bool:
    """Reset this process's high-water mark; return whether the system allowed it."""
    try:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        RESET.write_text("5")
    except OSError:
        return False
    return True


def status_bytes(key: str) -> int | None:
    """A number of this process in ``/proc``, such as ``VmRSS``, in bytes; None where the system has none."""
    try:
        line = re.search(rf"^{key}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(line[1]) * 1024 if line else None
