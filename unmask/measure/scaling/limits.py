"""How much memory there is to use, and how a process is kept within it so that it fails and nothing else."""

import ctypes
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from unmask.errors import InvalidRequest

USED_SHARE = 0.9
"""Of the memory that is free, what a run takes for itself unless told: the rest keeps the machine alive."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
CGROUP = Path("/sys/fs/cgroup")
PR_SET_PDEATHSIG = 1


def parse_bytes(text: str) -> int:
    """Bytes of "8GiB", "8G", "8GB", "500M" or a plain number; units are powers of 1,024.

    Raises:
        InvalidRequest: it is none of these, or 0.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    value = 0 if found is None else int(float(found[1]) * UNITS[found[2].upper()])
    if value < 1:
        raise InvalidRequest(f"{text!r} is no amount of memory; give bytes, or such as 500M or 8GiB")
    return value


def free_bytes(device: str = "cpu") -> int | None:
    """Memory that a new process could take now, of the machine and of its container; None where unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = [_machine_free(), _container_free()]
    known = [one for one in free if one is not None]
    return min(known) if known else None


def _machine_free() -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _container_free() -> int | None:
    """Of this control group: the limit less what is held, files that can be dropped not counted."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        held = int((CGROUP / "memory.current").read_text())
        found = re.search(r"^inactive_file (\d+)", (CGROUP / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - held + (int(found[1]) if found else 0))


def held_bytes(device: str = "cpu") -> int | None:
    """What this process holds: resident memory, or torch's tensors on a GPU; None where unknown."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.memory_allocated(torch.device(device))
    return _status("VmRSS")


def allow_more(more: int, device: str = "cpu") -> bool:
    """Make allocations of this process fail once it holds ``more`` bytes above now; whether it worked.

    On Linux by RLIMIT_DATA: it counts what can be written, not the addresses of libraries that are only
    mapped, which torch has by the gigabyte and which RLIMIT_AS would count.
    """
    if device.startswith("cuda"):
        import torch

        where = torch.device(device)
        total = torch.cuda.get_device_properties(where).total_memory
        share = (torch.cuda.memory_reserved(where) + more) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), where)
        return True
    held = _status("VmData")
    if held is None:
        return False
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = held + more
    resource.setrlimit(
        resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )
    return True


def die_first() -> None:
    """This process is the one to go when memory runs out, and goes when its parent does. Linux alone."""
    if sys.platform != "linux":
        return
    steps: tuple[Callable[[], object], ...] = (
        lambda: Path("/proc/self/oom_score_adj").write_text("1000"),
        lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    for step in steps:
        try:
            step()
        except (OSError, AttributeError):  # a courtesy: the measurement stands without it
            continue


def _status(key: str) -> int | None:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
