"""The text of files, compressed or not: whole, or line by line in UTF-8."""

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import os
import stat
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from unmask.base.files import KINDS
from unmask.base.optional import require
from unmask.errors import InvalidRequest, InvalidText

COMPRESSED = (".xz", ".gz", ".bz2", ".zst")
"""Endings of compressed files."""
LONGEST_LINE = 128 << 20
"""Maximum bytes of a line, unpacked; a longer one means a file of another kind."""
DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged or unreadable file raises."""


class FileTooLong(InvalidText):
    """A file holds more bytes than are read."""


@dataclass(frozen=True)
class Stream:
    """An open stream, and how errors call it."""

    name: str
    content: BinaryIO

    def __str__(self) -> str:
        return self.name


def decompressed(stream: BinaryIO, name: str) -> BinaryIO:
    """The content of a stream that is compressed if its name ends in one of `COMPRESSED`.

    Raises:
        MissingExtra: it ends in .zst, and the package that reads it is not installed.
    """
    match Path(name).suffix.lower():
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(stream))
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
        case ".bz2":
            return cast(BinaryIO, bz2.BZ2File(stream))
        case ".zst":
            require("parquet")
            arrow = importlib.import_module("pyarrow")
            return io.BufferedReader(arrow.input_stream(stream, compression="zstd"))
        case _:
            return stream


@contextmanager
def opened(source: Path | Stream) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file or a stream."""
    if isinstance(source, Stream):
        yield source.content
        return
    refuse_device(source)
    with source.open("rb") as stream:
        yield decompressed(stream, source.name)


@contextmanager
def readable(path: Path) -> Iterator[BinaryIO]:
    """`opened`, for files that may be damaged.

    Raises:
        InvalidText: it cannot be read or decompressed.
    """
    try:
        with opened(path) as stream:
            yield stream
    except DAMAGED as error:
        raise InvalidText(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def real(path: Path) -> Path:
    """The path without ``..``, as errors should name it; one without them stays as it is."""
    return path.resolve() if ".." in path.parts else path


def refuse_device(path: str | Path) -> None:
    """Refuse a device, such as ``/dev/zero``, which never ends; ``/dev/null`` is an empty file.

    Raises:
        InvalidText: names the path.
        OSError: there is no such path.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and Path(path).resolve() != Path(os.devnull)):
        kind = next(kind for holds, kind in KINDS if holds(mode))
        raise InvalidText(f"cannot read {path}: it is {kind}, not a file")


def content(path: Path, most: int | None = None) -> bytes:
    """All bytes of a file, decompressed; ``most`` limits their number.

    Raises:
        InvalidText: the file cannot be read, or holds more.
    """
    with readable(path) as stream:
        raw = stream.read(-1 if most is None else most + 1)
    if most is not None and len(raw) > most:
        raise FileTooLong(f"{path} holds more than {most:,} bytes{' unpacked' * is_compressed(path.name)}")
    return raw


def is_compressed(name: str) -> bool:
    """Whether a file is compressed by its name."""
    return Path(name).suffix.lower() in COMPRESSED


def plain_name(path: Path) -> str:
    """The file's name without its compression suffix."""
    return path.stem if path.suffix in COMPRESSED else path.name


def format_ending(name: str) -> str:
    """The ending of a file's name that says its format, in lower case, before that of a compressed file."""
    path = Path(name)
    return (path.with_suffix("") if is_compressed(name) else path).suffix.lower()


def lines(path: Path | Stream, *, with_ends: bool = False) -> Iterator[tuple[int, str]]:
    """The number, from 1, and the text of each line without its line ending, or with it."""
    number = 0
    try:
        with opened(path) as stream:
            for number, raw in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
                if len(raw) > LONGEST_LINE:
                    raise InvalidText(
                        f"line {number} of {path} is longer than {LONGEST_LINE:,} bytes; put one text or row "
                        "on each line"
                    )
                yield number, _decoded(raw, number, path, with_ends=with_ends)
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        after = f" after line {number}" if number else ""
        raise InvalidText(f"cannot read {path}{after}: {reason}") from None


def _decoded(raw: bytes, number: int, name: object, *, with_ends: bool = False) -> str:
    """The text of a line without its line ending, or with it."""
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidText(
            f"line {number} of {name} is not UTF-8: byte 0x{raw[error.start]:02x} at byte "
            f"{error.start + 1}; convert the file to UTF-8 first"
        ) from None
    return text if with_ends else text.removesuffix("\n").removesuffix("\r")


def text_lines(path: Path | Stream, *, with_ends: bool = False) -> Iterator[tuple[int, str]]:
    """`lines` of a file that is text: a NUL byte, as in UTF-16 without a mark or binary files, is refused."""
    for number, line in lines(path, with_ends=with_ends):
        yield number, _without_nul(line, number, path)


def line_text(raw: bytes, number: int, name: object) -> str:
    """The text of one line of `text_lines`, from its bytes."""
    return _without_nul(_decoded(raw, number, name), number, name)


def _without_nul(line: str, number: int, name: object) -> str:
    if "\0" in line:
        raise InvalidText(
            f"line {number} of {name} is not text: it holds a byte 0x00; convert the file to UTF-8 first"
        )
    return line


def blocks(numbered: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Blocks of lines separated by blank lines."""
    block: list[str] = []
    for _, line in numbered:
        if line.strip():
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def decode(raw: bytes) -> str:
    """The text, without a byte order mark.

    Raises:
        InvalidText: the bytes are not such text; the message is a clause about "it".
    """
    sixteen = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    name, codec = ("UTF-16", "utf-16") if sixteen else ("UTF-8", "utf-8-sig")
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError as error:
        # Positions count the bytes of the file, which the codec counts from after the mark.
        mark = len(codecs.BOM_UTF8) if codec == "utf-8-sig" and raw.startswith(codecs.BOM_UTF8) else 0
        at = error.start + (mark if raw[mark : mark + len(error.object)] == error.object else 0)
        if b"\0" in raw and not sixteen:
            raise _binary(raw.index(0)) from None
        raise InvalidText(
            f"it is not {name}: byte 0x{raw[at]:02x} at byte {at + 1}; convert it to UTF-8 first"
        ) from None
    if "\0" in text:
        before = text[: text.index("\0")].encode("utf-16-le" if sixteen else "utf-8")
        raise _binary(len(before) + (len(raw) - len(text.encode("utf-16-le" if sixteen else "utf-8"))))
    return text


def normalized(text: str) -> str:
    """A text without regard to case, to white space, and to the forms of characters (NFKC)."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def check_text(text: str, name: str = "text") -> None:
    """Raise `InvalidText` if a text from an escaped format (JSON) holds a lone surrogate.

    ``name`` is the name of the text in errors.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"its {name} holds a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which is not Unicode text"
        ) from None


def _binary(place: int) -> InvalidText:
    return InvalidText(f"it is not text: byte 0x00 at byte {place + 1}")


def files_in(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The files of a folder of data whose names have one of the endings, compressed or not, sorted by name.

    A path to a file is returned itself.

    Raises:
        InvalidRequest: there is no such folder or file, or no such file in the folder.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InvalidRequest(
            f"{folder} is neither a folder nor a file; name the folder with the data (--data)"
        )
    matching = sorted(path for path in folder.iterdir() if plain_name(path).endswith(tuple(endings)))
    if not matching:
        patterns = " or ".join(f"*{ending}" for ending in endings)
        raise InvalidRequest(f"{folder} has no file {patterns} (plain or compressed); name another folder")
    return matching
