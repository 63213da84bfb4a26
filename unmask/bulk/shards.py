"""Shards: which rows of which file each holds, how their rows are read, and how a result is written."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from unmask.bulk.embedder import BatchEmbedder, with_embeddings
from unmask.errors import InvalidRequest, InvalidText, OutputError, UnmaskError
from unmask.files import unwritable, whole_file
from unmask.optional import require
from unmask.stores import open_store

FORMATS = {".txt": ".jsonl", ".jsonl": ".jsonl", ".parquet": ".parquet"}
"""The extension of an input -> that of its shards."""


@dataclass(frozen=True)
class Shard:
    """A fixed range of rows of one file."""

    number: int
    source: str
    """A path, or a URL that fsspec opens."""
    first_row: int
    """Counted from 0, in its file."""
    rows: int
    begin: int = 0
    """The first byte, in files of lines."""
    end: int = 0

    @property
    def extension(self) -> str:
        """Of the input."""
        return PurePosixPath(self.source).suffix

    @property
    def file(self) -> str:
        """The name of the output."""
        return f"part-{self.number:05d}{FORMATS[self.extension]}"


@dataclass(frozen=True)
class ShardEntry:
    """A finished shard, as the manifest lists it."""

    file: str
    source: str
    first_row: int
    rows: int
    tokens: int
    truncated_texts: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFailure:
    """An error of a worker; as values, errors cross processes and engines alike."""

    kind: str
    message: str


class Folder:
    """A folder of this machine or of an object store. A file appears in it whole."""

    def __init__(self, url: str) -> None:
        local = import_module("fsspec.implementations.local").LocalFileSystem

        self.url = url
        self._files, self._path = open_store(url)
        self._local = isinstance(self._files, local)

    def create(self) -> None:
        """Make the folder and those above it."""
        try:
            self._files.makedirs(self._path, exist_ok=True)
        except OSError as error:
            raise unwritable(Path(self.url), error) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of a folder of this machine, as long as this process lives; it must exist.

        Raises:
            OutputError: another run writes to it.
        """
        if not self._local:
            yield
            return
        handle = os.open(self._path, os.O_RDONLY)
        try:
            self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"another run is writing to {self.url}; wait until it ends, or name another folder"
            ) from None

    def names(self) -> list[str]:
        """The names of what the folder holds."""
        try:
            return sorted(path.rstrip("/").rpartition("/")[2] for path in self._files.ls(self._path, False))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise OutputError(f"{self.url} is a file; name a folder") from None

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is none."""
        try:
            content: bytes = self._files.cat_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file: renamed when it is whole, or in one request to an object store."""
        if self._local:
            with whole_file(Path(self._path) / name) as partial:
                partial.write_bytes(content)
            return
        try:
            self._files.pipe_file(f"{self._path}/{name}", content)
        except OSError as error:
            raise unwritable(Path(self.url) / name, error) from None

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")


def open_input(source: str) -> BinaryIO:
    """An input, open for reading bytes."""
    files, path = open_store(source)
    try:
        found: BinaryIO = files.open(path, "rb")
    except (ValueError, OSError) as error:
        raise InvalidRequest(f"{source} cannot be read: {error}") from None
    return found


def plan(sources: Sequence[str], rows_per_shard: int) -> tuple[list[Shard], str]:
    """The shards of files, and the SHA-256 of their contents. Every file is read once.

    Raises:
        InvalidRequest: a file cannot be read, has an unknown extension, or all are empty.
    """
    digest, shards = hashlib.sha256(), list[Shard]()
    for source in sources:
        extension = PurePosixPath(source).suffix
        if extension not in FORMATS:
            raise InvalidRequest(f"{source} ends in none of {', '.join(FORMATS)}; convert it to one of them")
        with open_input(source) as file:
            ranges = _parquet_ranges if extension == ".parquet" else _line_ranges
            for first, rows, begin, end in ranges(file, source, rows_per_shard, digest):
                shards.append(Shard(len(shards), source, first, rows, begin, end))
        digest.update(b"\0")
    if not shards:
        raise InvalidRequest(f"{', '.join(sources)} holds no texts")
    return shards, digest.hexdigest()


def _line_ranges(
    file: BinaryIO, source: str, rows_per_shard: int, digest: Any
) -> Iterator[tuple[int, int, int, int]]:
    first = rows = begin = end = 0
    for line in file:
        digest.update(line)
        rows, end = rows + 1, end + len(line)
        if rows == rows_per_shard:
            yield first, rows, begin, end
            first, rows, begin = first + rows, 0, end
    if rows:
        yield first, rows, begin, end


def _parquet_ranges(
    file: BinaryIO, source: str, rows_per_shard: int, digest: Any
) -> Iterator[tuple[int, int, int, int]]:
    require("parquet")
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    while content := file.read(1 << 20):
        digest.update(content)
    file.seek(0)
    try:
        total = parquet.ParquetFile(file).metadata.num_rows
    except pyarrow.ArrowInvalid as error:
        raise InvalidRequest(f"{source} is not a Parquet file: {error}") from None
    for first in range(0, total, rows_per_shard):
        yield first, min(rows_per_shard, total - first), 0, 0


@dataclass(frozen=True)
class ShardWriter:
    """Embeds one shard and writes its file; each worker of each engine holds one."""

    embedder: BatchEmbedder
    output: str

    def __call__(self, shard: Shard) -> ShardEntry | ShardFailure:
        """The entry of the written shard. Its embeddings depend on no other shard."""
        try:
            content, tokens, truncated = self._content(shard)
            hashed = hashlib.sha256(content).hexdigest()
            entry = ShardEntry(
                shard.file, shard.source, shard.first_row, shard.rows, tokens, truncated, len(content), hashed
            )
            folder = Folder(self.output)
            folder.write(shard.file, content)
            folder.write(done_name(shard), json.dumps(asdict(entry)).encode())
        except UnmaskError as error:
            return ShardFailure(next(kind.__name__ for kind in type(error).__mro__), str(error))
        return entry

    def _content(self, shard: Shard) -> tuple[bytes, int, int]:
        column, added = self.embedder.column, self.embedder.output_column
        table = rows = None
        if shard.extension == ".parquet":
            table = _read_table(shard)
            _check_columns(table.column_names, column, added, shard.source)
            texts = table[column].to_pylist()
        else:
            rows = list(_read_rows(shard, column, added))
            texts = [row[column] for row in rows]

        def name(index: int) -> str:
            what = "row" if rows is None else "line"
            return f"{what} {shard.first_row + index + 1} of {shard.source}"

        embeddings_SE, encodings = self.embedder.embed(texts, name)
        tokens = sum(map(len, encodings))
        truncated = sum(encoding.truncated_tokens > 0 for encoding in encodings)
        if rows is None:
            return _table_bytes(with_embeddings(table, added, embeddings_SE)), tokens, truncated
        lines = (
            json.dumps({**row, added: embedding_E.tolist()}, ensure_ascii=False) + "\n"
            for row, embedding_E in zip(rows, embeddings_SE, strict=True)
        )
        return "".join(lines).encode(), tokens, truncated


def done_name(shard: Shard) -> str:
    """The file that says that a shard is written, with its digest, until the manifest says so."""
    return f".{shard.file}.done"


def finished(folder: Folder, shard: Shard) -> ShardEntry | None:
    """The entry of a shard that an earlier run wrote; None if it is missing or its bytes have changed."""
    recorded, content = folder.read(done_name(shard)), folder.read(shard.file)
    if recorded is None or content is None:
        return None
    try:
        entry = ShardEntry(**json.loads(recorded))
    except (ValueError, TypeError):
        return None
    return entry if hashlib.sha256(content).hexdigest() == entry.sha256 else None


def _check_columns(names: Sequence[str], column: str, added: str, where: str) -> None:
    if column not in names:
        raise InvalidText(
            f"{where} has no {column!r}, but {', '.join(names) or 'nothing'}; name the texts with --field"
        )
    if added in names:
        raise InvalidText(f"{where} already has {added!r}, which would be replaced; rename it")


def _read_rows(shard: Shard, column: str, added: str) -> Iterator[dict[str, Any]]:
    with open_input(shard.source) as file:
        file.seek(shard.begin)
        lines = file.read(shard.end - shard.begin).split(b"\n")[: shard.rows]
    for number, line in enumerate(lines, shard.first_row + 1):
        where = f"line {number} of {shard.source}"
        try:
            text = line.decode("utf-8").removesuffix("\r")
            row = json.loads(text) if shard.extension == ".jsonl" else {column: text}
        except ValueError as error:
            raise InvalidText(f"{where} cannot be read: {error}") from None
        if not isinstance(row, dict):
            raise InvalidText(f"{where} is not a JSON object")
        _check_columns(list(row), column, added, where)
        yield row


def _read_table(shard: Shard) -> Any:
    """The rows of a shard; only row groups that hold some of them are read."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    with open_input(shard.source) as opened:
        file = parquet.ParquetFile(opened)
        parts, start, end = [], 0, shard.first_row + shard.rows
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            first, last = max(shard.first_row, start), min(end, start + rows)
            if first < last:
                parts.append(file.read_row_group(group).slice(first - start, last - first))
            start += rows
    return pyarrow.concat_tables(parts).combine_chunks()


def _table_bytes(table: Any) -> bytes:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, row_group_size=table.num_rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content
