"""Peak memory of a piece of work above what was held when it began."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_extra_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """The most bytes that ``work`` held at once above what was held before it; None where unknown.

    On CUDA by torch's allocator. On Linux by the high-water mark of the process, which the system is asked
    to forget first; memory that was freed but not given back is given back first, or it would hide a part.
    What the allocator keeps of tensors freed during the work counts as held: the process does hold it.
    """
    if device.type == "cuda":
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


def _forget_peak() -> bool:
    """Whether the system let this process start its high-water mark anew."""
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
