"""Processes that run models, and their restarts.

The process that holds the connections never runs a model, so that a model that crashes takes no connection
with it. Workers are forked, and share the weights that were loaded once. A process with threads must not be
forked, so the first fork, made before any thread starts, is a parent of workers: it has one thread, runs no
model, and forks a worker whenever it gets the socket for one. Everything ends when the server does, because
each process then reads the end of its socket.
"""

import itertools
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

from unmask.errors import UnmaskError
from unmask.serve.errors import BackendError

START_SECONDS = 60.0
"""How long a worker may take to run every model once."""
_SIZE = struct.Struct("!Q")


class WorkerDied(Exception):
    """The process that ran a pass has ended, or was ended because the pass took too long."""


class Workers:
    """Worker processes, each used by one thread at a time.

    Args:
        count: how many processes.
        shared: what passes may refer to without a copy, such as models, by a key of each.
        warm: called in each worker before it takes passes.
        seconds: how long a pass may take; after it the worker is killed.
        prepare: called in each worker first.

    Make it before the process has threads. CUDA must not have been used.
    """

    def __init__(
        self,
        count: int,
        shared: Mapping[Hashable, object],
        *,
        warm: Callable[[], None],
        seconds: float,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._keys = {id(shared_object): key for key, shared_object in shared.items()}
        self._shared = dict(shared)
        self._seconds = seconds
        self._lock, self._asked = threading.Lock(), itertools.count()
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self._parent = os.fork()
        if not self._parent:
            _alone(theirs.fileno())
            _run_as(lambda: _fork_workers(theirs, self._shared, prepare, warm))
        theirs.close()
        ours.settimeout(START_SECONDS)
        self._control = ours
        self.all = tuple(Worker(self) for _ in range(count))
        try:
            for worker in self.all:
                worker.start()
        except BaseException:
            self.close()
            raise

    def up(self) -> int:
        """How many workers can take a pass."""
        return sum(worker.pid is not None for worker in self.all)

    def packed(self, run: Callable[..., Any], texts: Sequence[Any]) -> bytes:
        """A pass as bytes, with shared objects by their keys."""
        buffer = BytesIO()
        pickler = _Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.keys = self._keys
        pickler.dump((run, list(texts)))
        return buffer.getvalue()

    def forked(self) -> tuple[socket.socket, int]:
        """A new worker's socket and process number.

        Raises:
            WorkerDied: none can be forked.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock, theirs:
                request = _SIZE.pack(next(self._asked))
                socket.send_fds(self._control, [request], [theirs.fileno()])
                # An answer that came too late for a call before is not the answer to this one.
                while (answer := _exactly(self._control, 2 * _SIZE.size))[: _SIZE.size] != request:
                    pass
                pid = _SIZE.unpack(answer[_SIZE.size :])[0]
        except (OSError, EOFError) as error:
            ours.close()
            raise WorkerDied("no worker can be started") from error
        return ours, pid

    def renewable(self) -> bool:
        """Whether the process that forks workers runs."""
        with suppress(ChildProcessError):
            return os.waitpid(self._parent, os.WNOHANG) == (0, 0)
        return False

    def limit(self) -> float:
        """Seconds that a pass may take."""
        return self._seconds

    def close(self) -> None:
        """End all processes."""
        self._control.close()
        for worker in self.all:
            worker.stop()
        with suppress(ChildProcessError):
            os.waitpid(self._parent, 0)


class Worker:
    """One process at a time; a new one is forked when the last has ended."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._socket: socket.socket | None = None
        self.pid: int | None = None
        """Its process number; None while it starts."""

    def start(self) -> None:
        """Fork it, and wait until it has run every model once.

        Raises:
            WorkerDied: it ended before.
        """
        self.stop()
        connection, pid = self._workers.forked()
        connection.settimeout(START_SECONDS)
        self._socket = connection
        try:
            _received(connection)
        except (OSError, EOFError) as error:
            _kill_if_hanging(pid, error)
            self.stop()
            raise WorkerDied("a worker ended before it was ready") from error
        connection.settimeout(self._workers.limit())
        self.pid = pid

    def run(self, work: Callable[..., Any], texts: Sequence[Any]) -> Any:
        """The results of a pass.

        Raises:
            WorkerDied: the process ended. The next call starts another.
            UnmaskError: what the pass raised.
        """
        if self._socket is None:
            self.start()
        assert self._socket is not None
        try:
            _send(self._socket, self._workers.packed(work, texts))
            error, value = pickle.loads(_received(self._socket))
        except (OSError, EOFError) as ended:
            if self.pid is not None:
                _kill_if_hanging(self.pid, ended)
            self.stop()
            raise WorkerDied("the worker ended during a pass") from ended
        if error is not None:
            raise error
        return value

    def renew(self) -> bool:
        """Replace a process that ended while it had nothing to do; whether one was started.

        Raises:
            WorkerDied: the new one ended too.
        """
        # A worker says nothing unasked, so what can be read is the end of its socket.
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.stop()
        if self._socket is not None:
            return False
        self.start()
        return True

    def stop(self) -> None:
        """Let it end."""
        self.pid = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Pickler(pickle.Pickler):
    keys: Mapping[int, Hashable]

    def persistent_id(self, obj: Any) -> Hashable:
        return self.keys.get(id(obj))


class _Unpickler(pickle.Unpickler):
    shared: Mapping[Hashable, object]

    def persistent_load(self, pid: Any) -> object:
        return self.shared[pid]


def _fork_workers(
    control: socket.socket,
    shared: Mapping[Hashable, object],
    prepare: Callable[[], None],
    warm: Callable[[], None],
) -> None:
    """Fork a worker for each socket that comes, until the server ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    while True:
        message, handles, _, _ = socket.recv_fds(control, _SIZE.size, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            work = partial(_serve, socket.socket(fileno=handles[0]), shared, prepare, warm)
            _run_as(partial(_in_new_thread, work))
        for handle in handles:
            os.close(handle)
        control.sendall(message + _SIZE.pack(pid))


def _serve(
    ours: socket.socket,
    shared: Mapping[Hashable, object],
    prepare: Callable[[], None],
    warm: Callable[[], None],
) -> None:
    """Run passes until the server closes the socket, or has ended."""
    prepare()
    warm()
    with suppress(EOFError, OSError):
        _send(ours, b"ready")
        while True:
            answer = _answer(_received(ours), shared)
            _send(ours, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _answer(data: bytes, shared: Mapping[Hashable, object]) -> tuple[Exception | None, Any]:
    """The error and the results of a pass."""
    try:
        unpickler = _Unpickler(BytesIO(data))
        unpickler.shared = shared
        run, texts = unpickler.load()
        results = run(texts)
        return None, results if hasattr(results, "shape") else list(results)
    except Exception as error:
        return _portable(error), None


def _portable(error: Exception) -> Exception:
    """An error that the server can read; an unexpected one is printed here, where its traceback is."""
    if isinstance(error, UnmaskError | MemoryError):
        return error
    traceback.print_exception(error, file=sys.stderr)
    return BackendError("the model failed on a text of the request; see the server's log for details")


def _alone(descriptor: int) -> None:
    """Close all files of the parent but ``descriptor``: the port must be free when the server has ended."""
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, max(descriptor + 2, min(os.sysconf("SC_OPEN_MAX"), 1 << 16)))


def _run_as(work: Callable[[], None]) -> None:
    """Run the work of a forked process, and exit without the cleanup of its parent."""
    code = 1
    try:
        # A signal to the whole group stops the server, which answers first; these end with its sockets.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        work()
        code = 0
    except BaseException as error:
        traceback.print_exception(error, file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _in_new_thread(work: Callable[[], None]) -> None:
    """OpenMP's threads belong to the thread that began them, which a fork copies without them."""
    thread = threading.Thread(target=work, name="unmask serve: models")
    thread.start()
    thread.join()


def _kill_if_hanging(pid: int, why: Exception) -> None:
    """End a worker that did not answer in time. The number of one that has ended may be another process's."""
    if isinstance(why, TimeoutError):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _send(where: socket.socket, data: bytes) -> None:
    where.sendall(_SIZE.pack(len(data)) + data)


def _received(where: socket.socket) -> bytes:
    return _exactly(where, _SIZE.unpack(_exactly(where, _SIZE.size))[0])


def _exactly(where: socket.socket, count: int) -> bytes:
    """That many bytes; raises `EOFError` if the other side has ended."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        size = where.recv_into(view)
        if not size:
            raise EOFError
        view = view[size:]
    return bytes(data)
