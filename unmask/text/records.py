"""Lines and records of text files, compressed or not, and of tables: the one reader of rows."""

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from unmask.base.files import KINDS
from unmask.base.optional import require
from unmask.errors import InvalidRequest, InvalidText
from unmask.text.class_labels import class_names, with_class_names

Record = tuple[str, Mapping[str, Any]]
"""The name of a record in errors, and its values by field."""


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
            return io.BufferedReader(_arrow().input_stream(stream, compression="zstd"))
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
    try:
        with opened(path) as stream:
            found = stream.read(-1 if most is None else most + 1)
    except DAMAGED as error:
        raise InvalidText(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if most is not None and len(found) > most:
        raise FileTooLong(f"{path} holds more than {most:,} bytes{' unpacked' * is_compressed(path.name)}")
    return found


def is_compressed(name: str) -> bool:
    """Whether a file is compressed by its name."""
    return Path(name).suffix.lower() in COMPRESSED


def format_ending(name: str) -> str:
    """The ending of a file's name that says its format, in lower case, before that of a compressed file."""
    path = Path(name)
    return (path.with_suffix("") if is_compressed(name) else path).suffix.lower()


def lines(path: Path | Stream) -> Iterator[tuple[int, str]]:
    """The number, from 1, and the text of each line without its line ending."""
    number = 0
    try:
        with opened(path) as stream:
            for number, raw in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
                if len(raw) > LONGEST_LINE:
                    raise InvalidText(
                        f"line {number} of {path} is longer than {LONGEST_LINE:,} bytes; put one text or row "
                        "on each line"
                    )
                yield number, _decoded(raw, number, path)
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        after = f" after line {number}" if number else ""
        raise InvalidText(f"cannot read {path}{after}: {reason}") from None


def _decoded(raw: bytes, number: int, name: object) -> str:
    """The text of a line without its line ending."""
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidText(
            f"line {number} of {name} is not UTF-8: byte 0x{raw[error.start]:02x} at byte "
            f"{error.start + 1}; convert the file to UTF-8 first"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def text_lines(path: Path | Stream) -> Iterator[tuple[int, str]]:
    """`lines` of a file that is text: a NUL byte, as in UTF-16 without a mark or binary files, is refused."""
    for number, line in lines(path):
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


def json_rows(path: Path | Stream) -> Iterator[Record]:
    """One JSON object per line; blank lines are skipped."""
    for number, line in lines(path):
        if line.strip():
            name = f"line {number} of {path}"
            yield name, json_row(line, name)


def json_row(line: str, name: str) -> dict[str, Any]:
    """The JSON object of one line, which errors call ``name``."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(" for integer string")[0]  # without the advice for programs
        raise InvalidText(f"{name} is not JSON, of which each line must hold one object: {reason}") from None
    if not isinstance(row, dict):
        raise InvalidText(f"{name} is not a JSON object; give one object per line")
    return row


def _arrow() -> Any:
    """Import the package, which has no type hints and is optional."""
    return importlib.import_module("pyarrow")


def csv_rows(path: Path | Stream, columns: Sequence[str] = ()) -> Iterator[Record]:
    """Rows of comma-separated values; ``columns`` names the values of a file without a header row."""
    csv.field_size_limit(sys.maxsize)
    number, first = 0, "data.columns" if columns else "the first row"
    names = list(columns)
    try:
        for number, row in enumerate(
            csv.reader((f"{text}\n" for _, text in text_lines(path)), strict=True), 1
        ):
            if not names:
                names = row
                _check_names(names, f"row {number} of {path}", ",")
            elif row and len(row) != len(names):
                raise InvalidText(
                    f"row {number} of {path} has {len(row)} values and {first} names {len(names)}; "
                    "put values that hold a comma or a line break in quotes"
                )
            elif row:
                yield f"row {number} of {path}", dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None


def _check_names(names: Sequence[str], where: str, mark: Literal[",", "\t"]) -> None:
    """Refuse names of columns that stand twice, or that are separated otherwise than by ``mark``."""
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise InvalidText(f"{where} names two columns {twice!r}; give each its own name")
    others = [other for other in (",", ";", "\t", "|") if other != mark]
    separator = next((other for other in others if len(names) == 1 and other in names[0]), None)
    if separator is not None:
        raise InvalidText(
            f"{where} has the single column {names[0]!r}, so its values are separated by {separator!r}; "
            "a .csv file needs commas and a .tsv file needs tabs"
        )


def tsv_rows(
    path: Path | Stream, columns: Sequence[str] = (), skip: Callable[[], None] | None = None
) -> Iterator[Record]:
    """Tab-separated values without quoting, as the files of GLUE are.

    ``skip`` is called for each line with too few values, which is then left out; None refuses such lines.
    """
    names: Sequence[str] = columns
    for number, line in text_lines(path):
        values = line.split("\t")
        if not names:
            names = values
            _check_names(names, f"line {number} of {path}", "\t")
            continue
        if skip is not None and len(values) < len(names):
            skip()
            continue
        if len(values) != len(names):
            raise InvalidText(
                f"line {number} of {path} has {len(values)} values separated by tabs, and there are "
                f"{len(names)} columns ({', '.join(names)}); mend the line, or name the "
                "columns (data.columns) if the file has no row of names"
            )
        yield f"line {number} of {path}", dict(zip(names, values, strict=True))


def parquet_rows(path: Path | Stream) -> Iterator[Record]:
    """Rows of a Parquet file, of which a part is in memory at a time."""
    if isinstance(path, Stream) and not path.content.seekable():
        raise InvalidText(f"cannot read {path} as Parquet, which is read from its end; name the file instead")
    arrow, parquet = _arrow(), importlib.import_module("pyarrow.parquet")
    number = 0
    try:
        with opened(path) as stream, parquet.ParquetFile(stream) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number} of {path}", row
    except (*DAMAGED, arrow.ArrowException) as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None


def dataset_rows(path: Path) -> Iterator[Record]:
    """Rows of a saved dataset: Arrow streams, listed in order by a state.json."""
    arrow = _arrow()
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        inner = sorted(each.parent.name for each in path.glob("*/state.json"))
        ending = next((each.suffix for each in sorted(path.glob("*")) if each.suffix), ".txt")
        way_out = (
            f"one of those below it ({', '.join(inner)})"
            if inner
            else f"its files, such as {path.name}/*{ending}"
        )
        raise InvalidRequest(
            f"{path} is a folder but not a dataset written by Dataset.save_to_disk; name {way_out}"
        ) from None
    number, classes = 0, class_names(_features(path))
    try:
        for name in names:
            with arrow.memory_map(str(path / name)) as file, arrow.ipc.open_stream(file) as batches:
                for batch in batches:
                    for row in batch.to_pylist():
                        number += 1
                        yield f"row {number} of {path}", with_class_names(row, classes)
    except (OSError, arrow.ArrowException) as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None


def _features(folder: Path) -> Any:
    """The types of a saved dataset's columns; None if it does not say."""
    try:
        return json.loads((folder / "dataset_info.json").read_bytes())["features"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
