"""Peak memory of a call above what was held before it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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
    held = _status_bytes("VmRSS")
    work()
    return max(0, _status_bytes("VmHWM") - held)


def peak_resident_bytes() -> int | None:
    """The most memory that this process has held since it started; None where unknown.

    Not from ``getrusage``, which on Linux begins with the peak of the process that started this one.
    """
    return _status_bytes("VmHWM") if STATUS.exists() else None


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


def _status_bytes(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"{STATUS} has no {key}"
    return int(found[1]) * 1024
