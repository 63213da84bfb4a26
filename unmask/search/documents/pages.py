"""HTML pages parsed in a process of their own: some keep the parser busy for hours, until it is ended.

The parser takes quadratic time for some pages, such as one with 300,000 attributes. Every page has its
processor time, after which the system ends the process.
"""

import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Self

from unmask.base.optional import require
from unmask.base.system import TIME_OVER, limit_processor_time
from unmask.errors import InvalidText
from unmask.search.documents.markup import html_text

PAGE_SECONDS = 20
"""Processor time for one page, in which the parser reads hundreds of megabytes of what people write."""
PARSED_HERE = 4096
"""Characters of a page that is parsed without another process: none of them takes long."""
_LENGTHS = struct.Struct("!QQ")


class PageParser:
    """Parses pages; the process is started for the first page that needs it, and ends with the block.

    Args:
        seconds: the processor time of one page.
    """

    def __init__(self, seconds: float = PAGE_SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def text(self, source: str) -> tuple[str, str]:
        """The text of a page and its title, see `html_text`.

        Raises:
            InvalidText: it is nested too deeply, or takes too long.
        """
        if len(source) <= PARSED_HERE:
            return html_text(source)
        require("search")
        stopped = threading.Event()
        try:
            stdin, stdout = self._streams()
            with self._watched(stopped):
                _send(stdin, source, "")
                text, rest = _received(stdout)
            if stopped.is_set():
                raise EOFError
        except (OSError, EOFError):
            code = self._end()
            late = stopped.is_set() or (code is not None and code == TIME_OVER)
            reason = f"takes more than {self._seconds:g} seconds" if late else f"ended its parser ({code})"
            raise InvalidText(f"parsing it {reason}; convert it to plain text first") from None
        if rest.startswith("!"):
            raise InvalidText(rest[1:])
        return text, rest[1:]

    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """Where pages are sent to and answers come from, of a process that is ready."""
        started = self._process is None
        process = self._process = self._process or _started(self._seconds)
        assert process.stdin is not None
        assert process.stdout is not None
        if started:
            _received(process.stdout)
        return process.stdin, process.stdout

    @contextmanager
    def _watched(self, stopped: threading.Event) -> Iterator[None]:
        """End the process after its time where the system does not; the event is then set.

        It is time on the clock, since what the process spends is unknown here.
        """
        process = self._process
        if TIME_OVER is not None or process is None:
            yield
            return

        def stop() -> None:
            stopped.set()
            process.kill()

        timer = threading.Timer(self._seconds, stop)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _end(self) -> int | None:
        """End the process; how it ended by itself, or None."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()  # it waits for a page, has ended, or parses one that nobody waits for
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()


def work(seconds: float) -> None:
    """What the process does: say that it is ready, and answer page after page, until there is no other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks has got it, too
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    _send(stdout, *html_text(""))
    while True:
        try:
            source, _ = _received(stdin)
        except EOFError:
            return
        limit_processor_time(seconds)
        try:
            text, title = html_text(source)
            answer = text, f"={title}"
        except InvalidText as error:
            answer = "", f"!{error}"
        limit_processor_time(0)
        _send(stdout, *answer)


def _started(seconds: float) -> "subprocess.Popen[bytes]":
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import work; work({seconds!r})"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _send(stream: IO[bytes], *texts: str) -> None:
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    stream.write(_LENGTHS.pack(*map(len, parts)) + b"".join(parts))
    stream.flush()


def _received(stream: IO[bytes]) -> tuple[str, str]:
    answer, other = (
        _exactly(stream, length).decode("utf-8", "surrogatepass")
        for length in _LENGTHS.unpack(_exactly(stream, _LENGTHS.size))
    )
    return answer, other


def _exactly(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError
    return content
