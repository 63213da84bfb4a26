"""Rows of a file written to another one of the same format: some of them as they stood there, or all of them
with another text in one column."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from unmask.base.files import whole_file
from unmask.base.optional import require
from unmask.errors import InvalidRequest, InvalidText
from unmask.text.lines import Stream, is_compressed, text_lines
from unmask.text.rows import FORMAT_OF, TABLES, Format, csv_rows, format_by_name, json_list, json_row

Opened = tuple[str, BinaryIO]
"""The name of an input, and its decompressed bytes."""
Chosen = Callable[[int, int], bool]
"""Whether to copy a row: the input, from 0, and the number that `unmask.text.rows.Place` gives the row."""

BOM = b"\xef\xbb\xbf"


def check_copy(output: Path, forms: Iterable[Format]) -> Format:
    """The format of a copy.

    Raises:
        InvalidRequest: the inputs have several formats or one that is not copied, or the name of the output
            is that of a file of another one.
    """
    kinds = sorted(set(forms))
    if len(kinds) != 1 or kinds[0] not in ("lines", *TABLES):
        raise InvalidRequest(
            f"the inputs have the formats {', '.join(kinds)}, and their rows cannot stand in one file; give "
            "files of one format, each of them lines or a table"
        )
    if is_compressed(output.name):
        raise InvalidRequest(
            f"{output} would be compressed, and rows are written as they are; leave {output.suffix} out"
        )
    if format_by_name(output.name) != kinds[0]:
        endings = [ending for ending, form in FORMAT_OF.items() if form == kinds[0]] or [".txt"]
        raise InvalidRequest(
            f"the inputs are {kinds[0]} and {output} names another format; let it end in "
            f"{' or '.join(endings)}"
        )
    return kinds[0]


def copy_rows(inputs: Iterable[Opened], form: Format, chosen: Chosen, output: Path) -> None:
    """Write the chosen rows of inputs to one file, which appears whole.

    Bytes of lines and of comma- and tab-separated values are copied, each row with a line end and the row of
    names once; objects of a JSON list are written again, one on each line; rows of Parquet keep their schema.

    Raises:
        InvalidText: an input is damaged, or two have other columns.
        OutputError: the file cannot be written.
    """
    with whole_file(output) as partial:
        if form == "parquet":
            _copy_parquet(inputs, chosen, partial)
            return
        with partial.open("wb") as file:
            if form == "json":
                _copy_objects(inputs, chosen, file)
            else:
                _copy_lines(inputs, form, chosen, file)


class _Recorded:
    """A stream that remembers the bytes that were read since they were last taken."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.read_since = stream, bytearray()

    def readline(self, limit: int = -1) -> bytes:
        """The next line, or ``limit`` bytes of it."""
        line = self.stream.readline(limit)
        self.read_since += line
        return line

    def take(self) -> bytes:
        """What was read since the last call, without blank lines before it."""
        return self.take_all().lstrip(b"\r\n")

    def take_all(self) -> bytes:
        """What was read since the last call."""
        taken = bytes(self.read_since)
        self.read_since.clear()
        return taken


def _raw_rows(name: str, stream: BinaryIO, form: Format) -> Iterator[tuple[int, bytes]]:
    """The number and the bytes of each row; of separated values the row of names first, with number 0.

    Readers take line after line, so that what was read when a row is given ends with that row.
    """
    recorded = _Recorded(stream)
    source = Stream(name, cast(BinaryIO, recorded))
    numbers: Iterator[int] = (number for number, _ in text_lines(source))
    if form == "csv":
        numbers = (place.number for place, _ in csv_rows(source))
    for index, number in enumerate(numbers):
        raw = recorded.take().removeprefix(BOM)
        if form == "tsv" and not index:
            yield 0, raw
            continue
        if form == "csv" and not index:
            names, raw = _names_and_row(raw)
            yield 0, names
        if raw:
            yield number, raw
    if form == "csv" and (names := recorded.take().removeprefix(BOM)):
        yield 0, names  # a file without any row


def _names_and_row(raw: bytes) -> tuple[bytes, bytes]:
    """The row of names, which in CSV may have several lines, and the first row."""
    lines = raw.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        names = b"".join(lines[:count])
        try:
            next(csv.reader([names.decode()], strict=True))
        except csv.Error:
            continue
        break
    return names, b"".join(lines[count:]).lstrip(b"\r\n")


def _copy_lines(inputs: Iterable[Opened], form: Format, chosen: Chosen, file: BinaryIO) -> None:
    columns: bytes | None = None
    for source, (name, stream) in enumerate(inputs):
        for number, raw in _raw_rows(name, stream, form):
            row = raw if raw.endswith(b"\n") else raw + b"\n"
            if number == 0:
                if columns is None:
                    columns = row
                    file.write(row)
                elif columns.rstrip() != row.rstrip():
                    raise _other_columns(name)
            elif chosen(source, number):
                file.write(row)


def _other_columns(name: str) -> InvalidText:
    """The error of an input whose rows do not fit those of the first one."""
    return InvalidText(f"{name} has other columns than the first input; give one file at a time")


def _copy_objects(inputs: Iterable[Opened], chosen: Chosen, file: BinaryIO) -> None:
    before = b"[\n"
    for source, (name, stream) in enumerate(inputs):
        for place, row in json_list(Stream(name, stream)):
            if chosen(source, place.number):
                file.write(before + json.dumps(row, ensure_ascii=False).encode())
                before = b",\n"
    file.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _copy_parquet(inputs: Iterable[Opened], chosen: Chosen, output: Path) -> None:
    require("parquet")
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    writer: Any = None
    try:
        with ExitStack() as stack:
            target = stack.enter_context(output.open("wb"))
            for source, (name, stream) in enumerate(inputs):
                file, number = parquet.ParquetFile(stream), 0
                if writer is None:
                    writer = stack.enter_context(parquet.ParquetWriter(target, file.schema_arrow))
                elif not writer.schema.equals(file.schema_arrow):
                    raise _other_columns(name)
                for batch in file.iter_batches(batch_size=4096):
                    mask = [chosen(source, number + row) for row in range(1, batch.num_rows + 1)]
                    writer.write_batch(batch.filter(arrow.array(mask, arrow.bool_())))
                    number += batch.num_rows
    except arrow.ArrowException as error:
        raise InvalidText(f"cannot copy rows of a Parquet file: {error}") from None


class _Changes:
    """The rows with another text, in the order of their numbers."""

    def __init__(self, changes: Iterable[tuple[int, str]]) -> None:
        self._rest = iter(changes)
        self._next = next(self._rest, None)

    def text_of(self, number: int) -> str | None:
        """The new text of a row; None for one that stays as it is. Numbers of calls rise."""
        if self._next is None or self._next[0] != number:
            return None
        text = self._next[1]
        self._next = next(self._rest, None)
        return text


def rewrite_rows(
    opened: Opened, form: Format, column: str, changes: Iterable[tuple[int, str]], file: BinaryIO
) -> None:
    """Write all rows of an input, some with another text.

    Bytes of rows that stay are copied, with their line ends; objects of a JSON list are written again, one on
    each line; rows of Parquet keep their schema.

    Args:
        opened: the input.
        form: its format, lines or a table.
        column: that of the text in a table.
        changes: the number that `unmask.text.rows.Place` gives a row, and its new text, in rising order. They
            are taken one at a time, as rows are written.
        file: where the rows go.

    Raises:
        InvalidText: the input is damaged.
    """
    name, stream = opened
    changed = _Changes(changes)
    match form:
        case "parquet":
            _rewrite_parquet(stream, column, changed, file)
        case "json":
            before = b"[\n"
            for place, row in json_list(Stream(name, stream)):
                text = changed.text_of(place.number)
                file.write(before + _json_bytes(row if text is None else {**row, column: text}))
                before = b",\n"
            file.write(b"[]\n" if before == b"[\n" else b"\n]\n")
        case "csv":
            _rewrite_csv(name, stream, column, changed, file)
        case _:
            _rewrite_lines(stream, form, column, changed, file)


def _json_bytes(row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair in another value, which only an escape can write
        return json.dumps(row).encode()


def _rewrite_lines(stream: BinaryIO, form: Format, column: str, changed: _Changes, file: BinaryIO) -> None:
    columns: list[str] = []
    for number, raw in enumerate(iter(stream.readline, b""), start=1):
        mark = BOM if number == 1 and raw.startswith(BOM) else b""
        body = raw.removesuffix(b"\n").removesuffix(b"\r")
        old = body.removeprefix(mark).decode()
        columns = columns or (old.split("\t") if form == "tsv" else [])
        text = changed.text_of(number)
        if text is None:
            file.write(raw)
            continue
        new = text.encode()
        if form == "jsonl":
            new = _json_bytes(json_row(old, f"line {number}") | {column: text})
        elif form == "tsv":
            values = zip(columns, old.split("\t"), strict=True)
            new = "\t".join(text if key == column else value for key, value in values).encode()
        file.write(mark + new + raw[len(body) :])


def _rewrite_csv(name: str, stream: BinaryIO, column: str, changed: _Changes, file: BinaryIO) -> None:
    recorded = _Recorded(stream)
    source = Stream(name, cast(BinaryIO, recorded))
    for index, (place, row) in enumerate(csv_rows(source)):
        raw = recorded.take_all()
        if not index:
            mark = BOM if raw.startswith(BOM) else b""
            before = len(raw) - len(raw.removeprefix(mark).lstrip(b"\r\n"))
            names, _ = _names_and_row(raw[before:])
            file.write(raw[: before + len(names)])
            raw = raw[before + len(names) :]
        text = changed.text_of(place.number)
        if text is None:
            file.write(raw)
            continue
        (values,) = csv.reader(io.StringIO(raw.decode().strip("\r\n"), newline=""))
        at = list(row).index(column)
        values[at] = text
        written = io.StringIO()
        csv.writer(written).writerow(values)
        start, end = len(raw) - len(raw.lstrip(b"\r\n")), len(raw.rstrip(b"\r\n"))
        file.write(raw[:start] + written.getvalue().removesuffix("\r\n").encode() + raw[end:])
    file.write(recorded.take_all())


def _rewrite_parquet(stream: BinaryIO, column: str, changed: _Changes, target: BinaryIO) -> None:
    require("parquet")
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        file, number = parquet.ParquetFile(stream), 0
        place = file.schema_arrow.get_field_index(column)
        field = file.schema_arrow.field(place)
        with parquet.ParquetWriter(target, file.schema_arrow) as writer:
            for batch in file.iter_batches(batch_size=4096):
                texts = batch.column(place).to_pylist()
                for row in range(len(texts)):
                    number += 1
                    new = changed.text_of(number)
                    texts[row] = texts[row] if new is None else new
                writer.write_batch(batch.set_column(place, field, arrow.array(texts, field.type)))
    except arrow.ArrowException as error:
        raise InvalidText(f"cannot copy rows of a Parquet file: {error}") from None
