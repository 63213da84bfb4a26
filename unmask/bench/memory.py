"""Memory of a process: the peak of a call, free and held bytes, and a limit that ends that process alone."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


from unmask.base.system import KILLED, limit_data, return_freed_memory
from unmask.errors import InvalidRequest

MIB = 2**20
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")

USED_SHARE = 0.9
"""Fraction of free memory that a run uses by default; the rest keeps the machine responsive."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
CGROUP = Path("/sys/fs/cgroup")
PR_SET_PDEATHSIG = 1


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
        return_freed_memory()
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


def parse_bytes(text: str) -> int:
    """Bytes of "8GiB", "8G", "8GB", "500M" or a plain number; units are powers of 1,024.

    Raises:
        InvalidRequest: the text is none of these, or 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    value = 0 if match is None else int(float(match[1]) * UNITS[match[2].upper()])
    if value < 1:
        raise InvalidRequest(f"{text!r} is not an amount of memory; give bytes, or for example 500M or 8GiB")
    return value


def free_bytes(device: str = "cpu") -> int | None:
    """Memory available to a new process now, on the machine and in its container; None where unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = [_machine_free(), _container_free()]
    amounts = [amount for amount in free if amount is not None]
    return min(amounts) if amounts else None


def _machine_free() -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _container_free() -> int | None:
    """For this control group: the limit minus usage, not counting reclaimable file pages."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        reclaimable = re.search(r"^inactive_file (\d+)", (CGROUP / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used + (int(reclaimable[1]) if reclaimable else 0))


def held_bytes(device: str = "cpu") -> int | None:
    """Memory held by this process: resident memory, or torch's tensors on a GPU; None where unknown."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.memory_allocated(torch.device(device))
    return status_bytes("VmRSS")


def allow_more(more: int, device: str = "cpu") -> bool:
    """Make this process's allocations fail once it holds ``more`` bytes above now; return whether this
    worked.

    Uses RLIMIT_DATA on Linux: it counts writable memory but not mapped libraries, which amount to gigabytes
    for torch and which RLIMIT_AS would count.
    """
    if device.startswith("cuda"):
        import torch

        where = torch.device(device)
        total = torch.cuda.get_device_properties(where).total_memory
        share = (torch.cuda.memory_reserved(where) + more) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), where)
        return True
    current = status_bytes("VmData")
    if current is None:
        return False
    return limit_data(current + more)


def die_first() -> None:
    """Make this process the first to be killed when memory runs out, and when its parent exits. Linux
    only."""
    steps: tuple[Callable[[], object], ...] = (
        lambda: Path("/proc/self/oom_score_adj").write_text("1000"),
        lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, -(KILLED or 0)),
    )
    for step in steps:
        try:
            step()
        except (OSError, AttributeError, TypeError):  # optional: the measurement is valid without it
            continue
