"""What differs between operating systems: locks, names in folders, processors, memory, signals, processes.

No other file names what only POSIX systems have, but the workers of `unmask serve`, which are forked. Where
a name is missing, as on Windows, each function here does without it or says so.
"""

import ctypes
import importlib
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import OutputError, ProcessLost

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

POSIX = os.name == "posix"
"""Whether folders can be opened, and open files be renamed and removed."""
_READING = threading.Lock()


@contextmanager
def locked(path: Path, refusal: str | None = None, *, temporary: bool = False) -> Iterator[None]:
    """Hold a lock that all processes of the machine respect; a process that is killed releases it.

    Args:
        path: an empty file that stands for the lock; made if it is missing.
        refusal: what is said if another process holds the lock. None: wait for it.
        temporary: remove the file at the end.

    Raises:
        OutputError: another process holds the lock; the message is ``refusal``.
        OSError: the file cannot be made or locked.
    """
    from filelock import unlock_descriptor

    file = _lock(path, refusal, temporary=temporary)
    try:
        yield
    finally:
        # Removed while it is locked, or it could be the file of the next process.
        removed = temporary and _removed(path)
        # Closing is not enough where a process that was forked in the meantime has the file open too.
        unlock_descriptor(file.fileno())
        file.close()
        if temporary and not removed:  # Windows removes no open file, and so none of the next process
            _removed(path)


def _lock(path: Path, refusal: str | None, *, temporary: bool) -> FileIO:
    """The file, opened and locked."""
    from filelock import lock_descriptor

    while True:
        file = FileIO(path, "ab")
        try:
            if not lock_descriptor(file.fileno(), blocking=refusal is None):
                raise OutputError(refusal or "")
            # Between opening and locking another process may have removed a temporary file.
            if not temporary or _is_still(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _is_still(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    if not POSIX and path.is_dir():  # Windows opens no folder, and logs changes of names by itself
        return
    handle = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def forget_pages(file: FileIO) -> None:
    """Let a file that was flushed be read back from the disk and not from memory, where that is possible."""
    unneeded = getattr(os, "POSIX_FADV_DONTNEED", None)
    if unneeded is not None and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, unneeded)


def forget_mapped(mapped: mmap.mmap) -> None:
    """Give the memory of what was read of a mapped file back to the system, where that is possible."""
    unneeded, advise = getattr(mmap, "MADV_DONTNEED", None), getattr(mapped, "madvise", None)
    if unneeded is not None and advise is not None:
        advise(unneeded)


def rename(source: Path, target: Path) -> None:
    """Give a file or a folder another name, at once and in place of a file or an empty folder that has it."""
    if not POSIX and target.is_dir():
        target.rmdir()
    os.replace(source, target)


def read_at(file: FileIO, buffer: memoryview, start: int) -> int:
    """Read into a buffer from that byte of a file, in any thread; the count of bytes, 0 at the file's end."""
    if hasattr(os, "preadv"):
        count: int = os.preadv(file.fileno(), [buffer], start)
        return count
    with _READING:  # all threads share the place in the file
        file.seek(start)
        return file.readinto(buffer) or 0


def core_count() -> int:
    """How many logical processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_bytes() -> int | None:
    """The memory of the machine; None if the system does not report it."""
    try:
        return int(_sysconf("SC_PAGE_SIZE") * _sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return None


def resident_bytes() -> int | None:
    """The resident memory of this process; None if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * _sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_bytes() -> int | None:
    """The most resident memory that this process has had; None if the system does not report it."""
    resource = _resource()
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def limit_data(size: int) -> bool:
    """Make allocations of this process fail beyond ``size`` bytes of data; whether the system can."""
    resource = _resource()
    if resource is None:
        return False
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return True


def _sysconf(name: str) -> int:
    """A number that the system is configured with.

    Raises:
        OSError: it has none.
    """
    known = getattr(os, "sysconf", None)
    if known is None:
        raise OSError(f"the system does not report {name}")
    return int(known(name))


def _resource() -> Any:
    """The module `resource`; None where there is none."""
    try:
        return importlib.import_module("resource")
    except ImportError:
        return None


def return_freed_memory() -> None:
    """Give the memory that was freed back to the system, where the C library keeps it and can (glibc)."""
    try:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # Windows has no library without a name
        return
    if trim is not None:
        trim(0)


HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""What a terminal that is closed sends; None where the system ends the process instead."""
_KILL = getattr(signal, "SIGKILL", None)
KILLED = None if _KILL is None else -_KILL
"""The exit code of a process that was ended at once, as where memory runs out; None if it says nothing."""
_TIMER, _OVER = (getattr(signal, name, None) for name in ("ITIMER_PROF", "SIGPROF"))
TIME_OVER = None if _OVER is None else -_OVER
"""The exit code of a process that `limit_processor_time` ended; None where it cannot."""


def limit_processor_time(seconds: float) -> None:
    """Let the system end this process after so many seconds of processor time; 0 ends the limit."""
    if _TIMER is not None and hasattr(signal, "setitimer"):
        signal.setitimer(_TIMER, seconds)


def end_with_children(process: "subprocess.Popen[bytes]") -> None:
    """End a process, and what it started if it began a session and the system has them."""
    with suppress(ProcessLookupError, PermissionError):
        if _KILL is not None and hasattr(os, "killpg"):
            os.killpg(process.pid, _KILL)
        else:
            process.kill()
    process.wait()


def can_fork() -> bool:
    """Whether a process can copy itself, with what it has loaded, and hand its sockets to the copy."""
    return hasattr(os, "fork")


_held: list[Callable[[Any], Any]] = []
"""What this worker process computes with."""


@contextmanager
def process_pool(workers: int, function: Callable[[Any], Any], lost: str) -> Iterator["ProcessPoolExecutor"]:
    """New processes, each with a copy of ``held``, which `compute` calls with one argument.

    They are spawned, because torch's threads do not survive a fork, so ``held`` is pickled.

    Raises:
        ProcessLost: one was ended from outside; the message is ``lost``.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

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
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
