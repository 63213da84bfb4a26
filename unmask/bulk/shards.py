"""A shard computed and written: its file, and the entry that the manifest has of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np

from unmask.bulk.folder import Folder
from unmask.bulk.sources import FORMATS, Shard, read_rows, read_table
from unmask.bulk.task import BatchTask
from unmask.errors import UnmaskError


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


@dataclass(frozen=True)
class ShardWriter:
    """Computes one shard and writes its file; each worker of each engine holds one."""

    task: BatchTask
    output: str

    def __call__(self, shard: Shard) -> ShardEntry | ShardFailure:
        """The entry of the written shard. What is computed of it depends on no other shard."""
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
        except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
            rows = f"{shard.row_name(0)} to {shard.row_name(shard.rows - 1)}"
            reason = f"{type(error).__name__}: {error}"
            return ShardFailure("OutputError", f"{rows} cannot be computed and written: {reason}")
        return entry

    def _content(self, shard: Shard) -> tuple[bytes, int, int]:
        if FORMATS[shard.extension] == ".parquet":
            table = read_table(shard, self.task)
            columns = {name: table[name].to_pylist() for name in self.task.inputs}
            output = self.task.compute(columns, shard.row_name)
            content = _table_bytes(self.task.with_columns(table, output.columns))
            return content, output.tokens, output.truncated_texts
        rows = list(read_rows(shard, self.task))
        columns = {name: [row[name] for row in rows] for name in self.task.inputs}
        output = self.task.compute(columns, shard.row_name)
        for name, values in output.columns.items():
            for row, value in zip(rows, values, strict=True):
                row[name] = value.tolist() if isinstance(value, np.ndarray) else value
        return b"".join(map(_line, rows)), output.tokens, output.truncated_texts


def _line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON; half a surrogate pair, which UTF-8 cannot write, stays an escape."""
    try:
        return (json.dumps(row, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(row) + "\n").encode()


def done_name(shard: Shard) -> str:
    """The file that says that a shard is written, with its digest, until the manifest says so."""
    return f".{shard.file}.done"


def finished(folder: Folder, shard: Shard) -> ShardEntry | None:
    """The entry of a shard that an earlier run wrote; None if it is missing or its bytes have changed."""
    recorded = folder.read(done_name(shard))
    if recorded is None:
        return None
    try:
        entry = ShardEntry(**json.loads(recorded))
    except (ValueError, TypeError):
        return None
    content = folder.read(shard.file)
    return entry if content is not None and hashlib.sha256(content).hexdigest() == entry.sha256 else None


def _table_bytes(table: Any) -> bytes:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, row_group_size=table.num_rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content
