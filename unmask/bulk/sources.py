"""Inputs of bulk runs: which rows of which file each shard holds, and how they are read."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from unmask.base.optional import require
from unmask.bulk.folder import matching, opened_input, unreadable
from unmask.bulk.task import BatchTask
from unmask.errors import EmptyText, InvalidRequest, InvalidText
from unmask.text.lines import Stream, line_text
from unmask.text.rows import Record, csv_rows, json_row, tsv_rows

FORMATS = {
    ".txt": ".jsonl",
    ".jsonl": ".jsonl",
    ".ndjson": ".jsonl",
    ".csv": ".jsonl",
    ".tsv": ".jsonl",
    ".parquet": ".parquet",
    ".lance": ".parquet",
}
"""The extension of an input -> that of its shards."""

NAMED: Mapping[str, Callable[[Stream], Iterator[Record]]] = {".csv": csv_rows, ".tsv": tsv_rows}
"""Readers of files whose first row names the columns."""


@dataclass(frozen=True)
class Shard:
    """A fixed range of rows of one input."""

    number: int
    source: str
    """A path, or a URL that fsspec opens."""
    first_row: int
    """Counted from 0, in its input."""
    rows: int
    begin: int = 0
    """The first byte, in files of lines, 0 with the row of names; the version, of a Lance dataset."""
    end: int = 0

    @property
    def extension(self) -> str:
        """Of the input."""
        return PurePosixPath(self.source).suffix

    @property
    def file(self) -> str:
        """The name of the output."""
        return f"part-{self.number:05d}{FORMATS[self.extension]}"

    def row_name(self, index: int) -> str:
        """How errors name a row."""
        what = "line" if FORMATS[self.extension] == ".jsonl" and self.extension != ".csv" else "row"
        number = self.first_row + index + (2 if self.extension in NAMED else 1)  # after the row of names
        return f"{what} {number} of {self.source}"


Ranges = Iterator[tuple[int, int, int, int]]
"""The first row, rows, ``begin`` and ``end`` of each shard of an input."""


def plan(sources: Sequence[str], rows_per_shard: int) -> tuple[list[Shard], str]:
    """The shards of inputs, and the SHA-256 of their contents. Every file is read once.

    Raises:
        InvalidRequest: an input cannot be read, has an unknown extension, or all are empty.
    """
    digest, shards = hashlib.sha256(), list[Shard]()
    for source in [match for pattern in sources for match in matching(pattern)]:
        extension = PurePosixPath(source).suffix
        if extension not in FORMATS:
            raise InvalidRequest(f"{source} ends in none of {', '.join(FORMATS)}; convert it to one of them")
        for first, rows, begin, end in _RANGES.get(extension, _line_ranges)(source, rows_per_shard, digest):
            shards.append(Shard(len(shards), source, first, rows, begin, end))
        digest.update(b"\0")
    if not shards:
        raise InvalidRequest(f"{', '.join(sources)} holds no texts")
    return shards, digest.hexdigest()


def _line_ranges(source: str, rows_per_shard: int, digest: Any) -> Ranges:
    first = rows = begin = end = 0
    with opened_input(source) as file:
        for line in file:
            digest.update(line)
            rows, end = rows + 1, end + len(line)
            if rows == rows_per_shard:
                yield first, rows, begin, end
                first, rows, begin = first + rows, 0, end
    if rows:
        yield first, rows, begin, end


class _Watched:
    """The lines of a file, counted in bytes and added to a digest as they are read."""

    def __init__(self, file: BinaryIO, digest: Any) -> None:
        self.file, self.digest, self.end = file, digest, 0

    def readline(self, limit: int = -1) -> bytes:
        """The next line, or ``limit`` bytes of it."""
        line = self.file.readline(limit)
        self.digest.update(line)
        self.end += len(line)
        return line


def _named_ranges(source: str, rows_per_shard: int, digest: Any) -> Ranges:
    """Readers take line after line, so what was read when a row is given ends with that row."""
    first = rows = begin = 0
    with opened_input(source) as file:
        watched = _Watched(file, digest)
        for _ in NAMED[PurePosixPath(source).suffix](Stream(source, cast(BinaryIO, watched))):
            rows += 1
            if rows == rows_per_shard:
                yield first, rows, begin, watched.end
                first, rows, begin = first + rows, 0, watched.end
    if rows:
        yield first, rows, begin, watched.end


def _parquet_ranges(source: str, rows_per_shard: int, digest: Any) -> Ranges:
    require("parquet")
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    with opened_input(source) as file:
        while content := file.read(1 << 20):
            digest.update(content)
        file.seek(0)
        try:
            total = parquet.ParquetFile(file).metadata.num_rows
        except pyarrow.ArrowInvalid as error:
            raise InvalidRequest(f"{source} is not a Parquet file: {error}") from None
    for first in range(0, total, rows_per_shard):
        yield first, min(rows_per_shard, total - first), 0, 0


def _lance_ranges(source: str, rows_per_shard: int, digest: Any) -> Ranges:
    require("lance")
    dataset = _lance_dataset(source, None)
    # The files of a dataset are never changed: their names, and which rows were deleted, are its content.
    for fragment in dataset.get_fragments():
        digest.update(json.dumps(fragment.metadata.to_json()).encode())
    total = dataset.count_rows()
    for first in range(0, total, rows_per_shard):
        yield first, min(rows_per_shard, total - first), dataset.version, 0


_RANGES: Mapping[str, Callable[[str, int, Any], Ranges]] = {
    ".csv": _named_ranges,
    ".tsv": _named_ranges,
    ".parquet": _parquet_ranges,
    ".lance": _lance_ranges,
}


def _lance_dataset(source: str, version: int | None) -> Any:
    try:
        return import_module("lance").dataset(source, version=version)
    except (OSError, ValueError) as error:
        reason = str(error).partition(", /")[0]  # without the places in Lance's own source
        raise unreadable(source, reason) from None


def check_columns(names: Sequence[str], task: BatchTask, where: str) -> None:
    """See that a row or a table has the columns that are read and not those that are added.

    Raises:
        InvalidText: names the column.
    """
    for name in task.inputs:
        if name not in names:
            option = "--field" if name == task.column else "--pair-field"
            raise InvalidText(
                f"{where} has no {name!r}, but {', '.join(names) or 'nothing'}; name the texts with {option}"
            )
    for name in task.outputs:
        if name in names:
            raise InvalidText(f"{where} already has {name!r}, which would be replaced; rename it")


def read_rows(shard: Shard, task: BatchTask) -> Iterator[dict[str, Any]]:
    """The rows of a shard of lines, or of comma- or tab-separated values."""
    with opened_input(shard.source) as file:
        names = _names(file, shard.extension) if shard.extension in NAMED and shard.begin else b""
        file.seek(shard.begin)
        content = file.read(shard.end - shard.begin)
    if shard.extension in NAMED:
        rows = NAMED[shard.extension](Stream(shard.source, io.BytesIO(names + content)))
        for index, (_, values) in enumerate(rows):
            check_columns(list(values), task, shard.row_name(index))
            yield dict(values)
        return
    for index, line in enumerate(content.split(b"\n")[: shard.rows]):
        where = shard.row_name(index)
        text = line_text(line, shard.first_row + index + 1, shard.source)
        if not text.strip():
            raise EmptyText(f"{where} holds no text; remove it, which would shift the rows of a shard")
        row = {task.column: text} if shard.extension == ".txt" else json_row(text, where)
        check_columns(list(row), task, where)
        yield row


def _names(file: BinaryIO, extension: str) -> bytes:
    """The bytes of the row of names, which in CSV may have several lines."""
    names = file.readline()
    while extension == ".csv":
        try:
            next(csv.reader([names.decode("utf-8-sig")], strict=True))
        except csv.Error:
            names += file.readline()
        else:
            break
    return names


def read_table(shard: Shard, task: BatchTask) -> Any:
    """The rows of a shard of a table, as an Arrow table."""
    table = _lance_table(shard) if shard.extension == ".lance" else _parquet_table(shard)
    check_columns(table.column_names, task, shard.source)
    return table


def _lance_table(shard: Shard) -> Any:
    dataset = _lance_dataset(shard.source, shard.begin)
    return dataset.to_table(offset=shard.first_row, limit=shard.rows).combine_chunks()


def _parquet_table(shard: Shard) -> Any:
    """Only row groups that hold some of the rows are read."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    with opened_input(shard.source) as opened:
        file = parquet.ParquetFile(opened)
        parts, start, end = [], 0, shard.first_row + shard.rows
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            first, last = max(shard.first_row, start), min(end, start + rows)
            if first < last:
                parts.append(file.read_row_group(group).slice(first - start, last - first))
            start += rows
    return pyarrow.concat_tables(parts).combine_chunks()
