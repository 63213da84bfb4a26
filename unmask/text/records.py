"""Lines and records of text files, compressed or not, and of tables."""

import csv
import gzip
import importlib
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from unmask.errors import InvalidRequest, InvalidText

Record = tuple[str, Mapping[str, Any]]
"""The name of a record in errors, and its values by field."""


COMPRESSED = (".xz", ".gz")
"""Endings of compressed files."""
DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged or unreadable file raises."""


@dataclass(frozen=True)
class Stream:
    """An open stream, and how errors call it."""

    name: str
    content: BinaryIO

    def __str__(self) -> str:
        return self.name


def decompressed(stream: BinaryIO, name: str) -> BinaryIO:
    """The content of a stream that is compressed if its name ends in .xz or .gz."""
    if name.endswith(".xz"):
        return cast(BinaryIO, lzma.LZMAFile(stream))
    return cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if name.endswith(".gz") else stream


def opened(source: Path | Stream) -> AbstractContextManager[BinaryIO]:
    """The decompressed bytes of a file or a stream."""
    if isinstance(source, Stream):
        return nullcontext(source.content)
    match source.suffix:
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(source))
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(source))
    return source.open("rb")


def content(path: Path) -> bytes:
    """All bytes of a file, decompressed."""
    try:
        with opened(path) as stream:
            return stream.read()
    except DAMAGED as error:
        raise InvalidText(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def lines(path: Path | Stream) -> Iterator[tuple[int, str]]:
    """The number, from 1, and the text of each line without its line ending."""
    number = 0
    try:
        with opened(path) as stream:
            for number, raw in enumerate(stream, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InvalidText(
                        f"line {number} of {path} is not UTF-8: byte 0x{raw[error.start]:02x} at byte "
                        f"{error.start + 1}; convert the file to UTF-8 first"
                    ) from None
                yield number, text.removesuffix("\n").removesuffix("\r")
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidText(f"cannot read {path} after line {number}: {reason}") from None


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


def json_row(line: str, name: str) -> Mapping[str, Any]:
    """The JSON object of one line, which errors call ``name``."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidText(f"{name} is not JSON, of which each line must hold one object: {error}") from None
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
        for number, row in enumerate(csv.reader((f"{text}\n" for _, text in lines(path)), strict=True), 1):
            if not names:
                names = row
            elif row and len(row) != len(names):
                raise InvalidText(
                    f"row {number} of {path} has {len(row)} values and {first} names {len(names)}; "
                    "put values that hold a comma or a line break in quotes"
                )
            elif row:
                yield f"row {number} of {path}", dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None


def tsv_rows(
    path: Path | Stream, columns: Sequence[str] = (), skip: Callable[[], None] | None = None
) -> Iterator[Record]:
    """Tab-separated values without quoting, as the files of GLUE are.

    ``skip`` is called for each line with too few values, which is then left out; None refuses such lines.
    """
    names: Sequence[str] = columns
    for number, line in lines(path):
        values = line.split("\t")
        if not names:
            names = values
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
        with parquet.ParquetFile(path.content if isinstance(path, Stream) else path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number} of {path}", row
    except (OSError, arrow.ArrowException) as error:
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
    number = 0
    try:
        for name in names:
            with arrow.memory_map(str(path / name)) as file, arrow.ipc.open_stream(file) as batches:
                for batch in batches:
                    for row in batch.to_pylist():
                        number += 1
                        yield f"row {number} of {path}", row
    except (OSError, arrow.ArrowException) as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None
