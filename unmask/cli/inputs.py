"""Lines of files and standard input, streamed: checked in a first pass, then read in parts."""

import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from unmask.cli.streams import STANDARD_INPUT, standard_input
from unmask.errors import BeyondTraining, EmptyText, InvalidRequest, InvalidText, OutputError
from unmask.text import Encoding, Line, Truncation
from unmask.text.lines import DAMAGED, decompressed, refuse_device

if TYPE_CHECKING:
    from unmask.models.load import Model


TEXTS_PER_PART = 2048
"""Texts between two journal entries: the most that a stop can lose, and the unit sorted by length."""


CHARACTERS_PER_PART = 2_000_000
"""Character limit of a part, which bounds memory: tokenizing a character takes up to 200 bytes."""


@dataclass(frozen=True)
class _Source:
    """One input: a file that is opened for each pass, or an open stream."""

    name: str
    stream: BinaryIO | None
    start: int = 0
    """Start offset of a stream that can be read again."""

    @property
    def shown(self) -> str:
        """The name as text, also where its bytes are not UTF-8."""
        return self.name.encode("utf-8", "backslashreplace").decode()

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        if self.stream is None:
            with open(self.name, "rb") as stream:
                yield decompressed(stream, self.name)
            return
        if self.stream.seekable():
            self.stream.seek(self.start)
        yield decompressed(self.stream, self.name)


class Inputs:
    """The inputs of a run in the given order, as a context manager.

    Args:
        names: files, or `STANDARD_INPUT`.
        read: reads a stream of that name.
        reread: whether they are read more than once; if so, inputs that are not regular files are copied to
            temporary ones.
        beside: folder for the temporary files; None uses the system's.

    Raises:
        InvalidRequest: standard input is named twice.
        InvalidText: a file cannot be read.
    """

    def __init__(
        self,
        names: Sequence[str],
        read: Callable[[BinaryIO, str], Iterable[Line]],
        *,
        reread: bool,
        beside: Path | None = None,
    ) -> None:
        if names.count(STANDARD_INPUT) > 1:
            raise InvalidRequest("standard input, -, is named twice; name it once")
        self._read = read
        self._stack = ExitStack()
        self.rereadable = True
        """Whether all lines can be read again."""
        try:
            self._sources = [self._source(name, reread, beside) for name in names]
        except BaseException:
            self._stack.close()
            raise

    def _source(self, name: str, reread: bool, beside: Path | None) -> _Source:
        if name == STANDARD_INPUT:
            title, stream = "<stdin>", standard_input()
        else:
            with _readable(name):
                refuse_device(name)
                if stat.S_ISREG(os.stat(name).st_mode):
                    return _Source(name, None)
                title, stream = name, self._stack.enter_context(open(name, "rb"))  # noqa: SIM115 - closed with the stack
        if _is_regular(stream):
            return _Source(title, stream, stream.tell())
        if not reread:
            self.rereadable = False
            return _Source(title, stream)
        try:
            copy = tempfile.TemporaryFile(dir=beside)  # noqa: SIM115 - closed with the stack
            self._stack.enter_context(copy)
            shutil.copyfileobj(stream, copy)
        except OSError as error:
            raise OutputError(f"cannot copy {title} to the output folder: {error.strerror}") from None
        return _Source(title, cast(BinaryIO, copy))

    @property
    def sources(self) -> list[str]:
        """The source of each input's lines, in order."""
        return [source.shown for source in self._sources]

    def lines(self) -> Iterator[Line]:
        """Every line, from the beginning if the inputs can be read again.

        Raises:
            TextError: a line is blank or invalid.
        """
        for source in self._sources:
            with _readable(source.shown), source.open() as stream:
                yield from self._read(stream, source.shown)

    def streams(self) -> Iterator[tuple[str, BinaryIO]]:
        """The name and the decompressed bytes of each input, if the inputs can be read again."""
        for source in self._sources:
            with _readable(source.shown), source.open() as stream:
                yield source.shown, stream

    def __enter__(self) -> "Inputs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Survey:
    """Result of the first pass over all lines."""

    texts: int
    digest: str


class LineReader:
    """Lines in parts, with a digest of the lines taken so far."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self.done = 0
        """Lines taken."""
        self._lines = lines
        self._left_over: Line | None = None
        self._digest = hashlib.sha256()

    def take(self) -> list[Line]:
        """The next part; empty at the end."""
        return self._take(TEXTS_PER_PART)

    def skip_to(self, done: int) -> None:
        """Take lines until ``done`` are taken or the input ends."""
        while self.done < done and self._take(min(TEXTS_PER_PART, done - self.done)):
            pass

    def digest(self) -> str:
        """Digest of every line taken, with its position, as 64 hexadecimal digits."""
        return self._digest.hexdigest()

    def _take(self, most: int) -> list[Line]:
        part: list[Line] = []
        characters = 0
        while len(part) < most and (line := self._next()) is not None:
            characters += len(line.text)
            if part and characters > CHARACTERS_PER_PART:
                self._left_over = line
                break
            part.append(line)
            self._digest.update(repr((line.source, line.number, line.text)).encode())
        self.done += len(part)
        return part

    def _next(self) -> Line | None:
        line, self._left_over = self._left_over, None
        return next(self._lines, None) if line is None else line


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise InvalidText(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None


def _is_regular(stream: BinaryIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return stream.seekable()  # a buffer in memory


def survey(inputs: Inputs) -> Survey:
    """Check every line, as far as is possible without a tokenizer, and count them.

    Raises:
        TextError: a line is blank or invalid.
    """
    reader = LineReader(inputs.lines())
    while reader.take():
        pass
    return Survey(reader.done, reader.digest())


def require_texts(count: int) -> None:
    """Reject an input without any text.

    Raises:
        EmptyText: ``count`` is 0.
    """
    if not count:
        raise EmptyText("there is no text in the input; give at least one line")


def line_name(lines: Sequence[Line], index: int) -> str:
    """How errors name the text at an index."""
    return str(lines[index])


class LongestText:
    """Tokenizes the texts of a command, and says once that the longest is longer than any in training."""

    def __init__(self) -> None:
        self._tokens = 0
        self._trained: int | None = None

    def encode(
        self,
        loaded: "Model",
        texts: Sequence[str],
        truncation: Truncation,
        name: Callable[[int], str],
        prompt: str = "",
    ) -> list[Encoding]:
        """Tokenize texts, each after a prompt; errors call them by ``name``.

        Raises:
            TextError: a text has no words, or is too long with ``truncation="error"``.
        """
        encodings = loaded.tokenizer.encode_batch(
            [prompt + text if text.strip() else text for text in texts],
            max_tokens=loaded.max_tokens,
            truncation=truncation,
            name=name,
        )
        self._tokens = max(self._tokens, *map(len, encodings))
        self._trained = loaded.checkpoint.trained_tokens
        return encodings

    def warn(self) -> None:
        """Warn if the longest text has more tokens than any text in training."""
        if self._trained is not None and self._tokens > self._trained:
            warnings.warn(
                f"the longest text has {self._tokens} tokens and the model was trained on at most "
                f"{self._trained}; it is not truncated",
                BeyondTraining,
                stacklevel=2,
            )
