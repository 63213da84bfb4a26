"""Hides what only POSIX systems have, where PYTHONPATH begins with this folder, also in child processes.

Python imports a module of this name at its start. The standard library of this system needs some of the
names itself, so its modules are imported first; that of Windows does without. So do filelock, which has other
locks there, and psutil, which libraries import that tests compare with.
"""

import asyncio  # noqa: F401
import concurrent.futures.process  # noqa: F401
import contextlib
import getpass  # noqa: F401
import mmap
import multiprocessing.popen_spawn_posix
import multiprocessing.resource_tracker
import multiprocessing.synchronize  # noqa: F401
import os
import platform
import shutil  # noqa: F401
import signal
import socket
import subprocess
import sys
import tarfile  # noqa: F401
import tempfile  # noqa: F401

import filelock._unix  # noqa: F401

with contextlib.suppress(ImportError):
    import psutil  # noqa: F401

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
NAMES = {
    os: (
        "fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getgroups", "killpg", "getpgid",
        "setpgid", "setsid", "sched_getaffinity", "sched_setaffinity", "preadv", "pwritev", "pread", "pwrite",
        "posix_fadvise", "posix_fallocate", "sysconf", "getloadavg", "nice", "chown", "fchown", "fchmod",
        "mkfifo", "statvfs", "wait3", "wait4", "waitid", "WNOHANG", "O_DIRECTORY", "O_NOFOLLOW",
    ),
    signal: (
        "SIGHUP", "SIGKILL", "SIGPROF", "SIGALRM", "SIGCHLD", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE",
        "setitimer", "getitimer", "alarm", "pause", "ITIMER_PROF", "ITIMER_REAL", "ITIMER_VIRTUAL",
    ),
    socket: ("send_fds", "recv_fds"),
    mmap: ("MADV_DONTNEED",),
}  # fmt: skip


def kill(process: subprocess.Popen) -> None:
    """End a process, for which this system's library needs a name that is hidden."""
    if process.poll() is None:
        os.kill(process.pid, 9)


os.linesep = "\r\n"
platform.uname()  # which is remembered
subprocess.Popen.kill = kill
for name in MODULES:
    sys.modules[name] = None
for module, names in NAMES.items():
    for name in names:
        delattr(module, name)

import unmask.base.system  # noqa: E402

unmask.base.system.POSIX = False
