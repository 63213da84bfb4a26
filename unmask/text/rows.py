"""Rows of tables, and lines with a text each: the one reader of every format that is not a layout.

Formats: lines, JSON lines and lists, CSV, TSV, Parquet and saved datasets; see `layouts` for CoNLL and SQuAD.
"""

import csv
import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from unmask.base.optional import require
from unmask.errors import EmptyText, InvalidRequest, InvalidText
from unmask.text.lines import DAMAGED, LONGEST_LINE, Stream, format_ending, lines, opened, text_lines

Format = Literal["lines", "jsonl", "json", "csv", "tsv", "parquet", "conll", "conllu", "squad"]
FORMAT_OF: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".conllu": "conllu",
    ".json": "json",
}
"""Formats by the ending of a file's name, before that of a compressed file."""
TABLES: tuple[Format, ...] = ("jsonl", "json", "csv", "tsv", "parquet")
"""Formats whose rows have named values."""

CHUNK = 1 << 16
"""Characters of a JSON list that are read at a time; for a longer object, as many again as are held."""
LONGEST_FIELD = 2**31 - 1
"""Characters of a value in CSV: the most that can be allowed on every system."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row was read. As a string, the name of the row in errors."""

    unit: Literal["line", "row"]
    number: int
    """Counted from 1; in CSV the row of names is number 1."""
    source: object

    def __str__(self) -> str:
        return f"{self.unit} {self.number} of {self.source}"


Record = tuple[Place, Mapping[str, Any]]
"""A row: its place, and its values by column."""


def format_by_name(name: str) -> Format:
    """The format of a file by its name; a file of an unknown ending is one of lines."""
    return FORMAT_OF.get(format_ending(name), "lines")


def read_rows(
    source: Path | Stream,
    form: str,
    columns: Sequence[str] = (),
    skip: Callable[[], None] | None = None,
) -> Iterator[Record]:
    """The rows of a table, one at a time.

    Args:
        source: a file, or an open stream with its name.
        form: one of `TABLES`, or "datasets": a folder written by ``Dataset.save_to_disk``.
        columns: the names of the columns of a CSV or TSV file without a row of names.
        skip: see `tsv_rows`.

    Raises:
        InvalidRequest: a folder is no saved dataset.
        InvalidText: the file cannot be read or is damaged, or a row does not fit the format.
        MissingExtra: the format needs a package that is not installed.
    """
    if form in ("parquet", "datasets"):
        require("parquet")
    match form:
        case "jsonl":
            return json_rows(source)
        case "json":
            return json_list(source)
        case "csv":
            return csv_rows(source, columns)
        case "tsv":
            return tsv_rows(source, columns, skip)
        case "parquet":
            return parquet_rows(source)
        case _:
            assert isinstance(source, Path)
            return dataset_rows(source)


def json_rows(source: Path | Stream) -> Iterator[Record]:
    """One JSON object per line; blank lines are skipped."""
    for number, line in lines(source):
        if line.strip():
            place = Place("line", number, source)
            yield place, json_row(line, place)


def json_row(line: str, name: object) -> dict[str, Any]:
    """The JSON object of one line, which errors call ``name``."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise not_json(name, error, ", of which each line must hold one object") from None
    if not isinstance(row, dict):
        raise InvalidText(f"{name} is not a JSON object; give one object per line")
    return row


def not_json(name: object, error: Exception, needed: str = "") -> InvalidText:
    """The error of a value that cannot be read as JSON; ``needed`` says what should stand there."""
    if isinstance(error, RecursionError):
        return InvalidText(f"{name} is not JSON that can be read: it is nested too deeply; give it flatter")
    if not isinstance(error, json.JSONDecodeError):  # from int(), which bounds the digits of a number
        digits = sys.get_int_max_str_digits()
        return InvalidText(f"{name} holds a whole number of more than {digits:,} digits; give it as text")
    return InvalidText(f"{name} is not JSON{needed}: {error}")


_SPACE = re.compile(r"[ \t\n\r]*")
_LIST_OF_OBJECTS = re.compile(r"[ \t\n\r]*\[[ \t\n\r]*\{")


def is_object_list(beginning: str) -> bool:
    """Whether a JSON text begins as a list of objects does."""
    return _LIST_OF_OBJECTS.match(beginning) is not None


def json_list(source: Path | Stream) -> Iterator[Record]:
    """The objects of a file that holds one JSON list, of which little more than one is in memory.

    Raises:
        InvalidText: the file is not UTF-8, not a list of objects, or damaged.
    """
    number = 0
    try:
        with opened(source) as raw, ExitStack() as ended:
            stream = io.TextIOWrapper(raw, "utf-8-sig")
            ended.callback(stream.detach)  # else the stream would be closed, which may be read again
            values = _JsonValues(stream)
            if values.next_character() != "[":
                raise InvalidText(f"{source} is not a JSON list of objects, one for each row")
            values.at += 1
            while values.next_character() != "]":
                number += 1
                place = Place("row", number, source)
                row = values.value(place)
                if not isinstance(row, dict):
                    raise InvalidText(f"{place} is not a JSON object")
                yield place, row
                following = values.next_character()
                if following not in (",", "]"):
                    rest = repr(following) if following else "the end of the file"
                    raise InvalidText(f"{place} is followed by {rest}, not by a comma")
                values.at += following == ","
            values.at += 1
            if values.next_character():
                raise InvalidText(f"{source} continues after its JSON list ends; put one list in a file")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InvalidText(
            f"{source} is not UTF-8: byte 0x{byte:02x}; convert the file to UTF-8 first"
        ) from None
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidText(f"cannot read {source} after row {number}: {reason}") from None


class _JsonValues:
    """JSON values of a stream, of which little more than one value is in memory."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.text, self.at = stream, "", 0
        self.decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """The character after white space, which becomes the position; empty at the end."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def value(self, name: object) -> Any:
        """The value at the position, which moves to its end."""
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                if len(self.text) - self.at > LONGEST_LINE:
                    raise InvalidText(f"{name} is longer than {LONGEST_LINE:,} characters") from None
                if not self._more():
                    raise not_json(name, error) from None
            else:
                self.at = end
                return value

    def _more(self) -> bool:
        """Read on; whether there was more."""
        rest = self.text[self.at :]
        chunk = self.stream.read(max(CHUNK, len(rest)))
        self.text, self.at = rest + chunk, 0
        return bool(chunk)


def csv_rows(source: Path | Stream, columns: Sequence[str] = ()) -> Iterator[Record]:
    """Rows of comma-separated values; ``columns`` names the values of a file without a row of names.

    A line break inside quotes is the one of the file, such as CR LF.
    """
    csv.field_size_limit(LONGEST_FIELD)
    number, first = 0, "data.columns" if columns else "the first row"
    names = list(columns)
    try:
        for number, row in enumerate(
            csv.reader((text for _, text in text_lines(source, with_ends=True)), strict=True), 1
        ):
            place = Place("row", number, source)
            if not names:
                names = row
                _check_names(names, place, ",")
            elif row and len(row) != len(names):
                raise InvalidText(
                    f"{place} has {len(row)} values and {first} names {len(names)}; "
                    "put values that hold a comma or a line break in quotes"
                )
            elif row:
                yield place, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InvalidText(f"cannot read {source} after row {number}: {error}") from None


def tsv_rows(
    source: Path | Stream, columns: Sequence[str] = (), skip: Callable[[], None] | None = None
) -> Iterator[Record]:
    """Tab-separated values without quoting, as the files of GLUE are.

    ``skip`` is called for each line with too few values, which is then left out; None refuses such lines.
    """
    names: Sequence[str] = columns
    for number, line in text_lines(source):
        values = line.split("\t")
        place = Place("line", number, source)
        if not names:
            names = values
            _check_names(names, place, "\t")
            continue
        if skip is not None and len(values) < len(names):
            skip()
            continue
        if len(values) != len(names):
            raise InvalidText(
                f"{place} has {len(values)} values separated by tabs, and there are {len(names)} columns "
                f"({', '.join(names)}); mend the line, or name the columns (data.columns) if the file has no "
                "row of names"
            )
        yield place, dict(zip(names, values, strict=True))


def _check_names(names: Sequence[str], where: object, mark: Literal[",", "\t"] | None = None) -> None:
    """Refuse names of columns that stand twice, or that are separated otherwise than by ``mark``."""
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise InvalidText(f"{where} names two columns {twice!r}; give each its own name")
    others = [other for other in (",", ";", "\t", "|") if other != mark]
    separator = next((other for other in others if len(names) == 1 and other in names[0]), None)
    if mark is not None and separator is not None:
        raise InvalidText(
            f"{where} has the single column {names[0]!r}, so its values are separated by {separator!r}; "
            "a .csv file needs commas and a .tsv file needs tabs"
        )


def parquet_rows(source: Path | Stream) -> Iterator[Record]:
    """Rows of a Parquet file, of which a part is in memory at a time."""
    if isinstance(source, Stream) and not source.content.seekable():
        raise InvalidText(
            f"cannot read {source} as Parquet, which is read from its end; name the file instead"
        )
    arrow, parquet = _arrow(), importlib.import_module("pyarrow.parquet")
    number = 0
    try:
        with opened(source) as stream, parquet.ParquetFile(stream) as file:
            _check_names(file.schema_arrow.names, source)
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield Place("row", number, source), row
    except (*DAMAGED, arrow.ArrowException) as error:
        raise InvalidText(f"cannot read {source} after row {number}: {error}") from None


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
                        yield Place("row", number, path), with_class_names(row, classes)
    except (OSError, arrow.ArrowException) as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None


def _arrow() -> Any:
    """Import the package, which has no type hints and is optional."""
    return importlib.import_module("pyarrow")


def _features(folder: Path) -> Any:
    """The types of a saved dataset's columns; None if it does not say."""
    try:
        return json.loads((folder / "dataset_info.json").read_bytes())["features"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def class_names(features: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes in columns of the type ClassLabel, or of lists of it.

    Args:
        features: those of a dataset, as an object of `datasets` or as its dataset_info.json has them, or
            None.
    """
    plain = features.to_dict() if hasattr(features, "to_dict") else features
    names = {}
    for column, kind in plain.items() if isinstance(plain, Mapping) else ():
        while isinstance(kind, Mapping) and isinstance(kind.get("feature"), Mapping):
            kind = kind["feature"]  # noqa: PLW2901 - down to what a list holds
        if isinstance(kind, Mapping) and kind.get("_type") == "ClassLabel":
            names[column] = tuple(map(str, kind.get("names", ())))
    return names


def with_class_names(row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """A row with the names of its classes in place of their numbers; -1, which means none, is None."""
    return {
        column: _named(value, names[column]) if column in names else value for column, value in row.items()
    }


def _named(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if isinstance(value, int) and -1 <= value < len(names):
        return None if value < 0 else names[value]
    return value


Blank = Literal["error", "skip"]
"""What to do with a line that holds no text: refuse the file, or skip the line."""


@dataclass(frozen=True)
class Line:
    """One text and its source line."""

    text: str
    source: str
    """The file name; ``<stdin>`` for standard input."""
    number: int
    """Counted from 1."""

    def __str__(self) -> str:
        return f"line {self.number} of {self.source}"


def read_lines(
    stream: BinaryIO, source: str, *, field: str | None = None, blank: Blank = "error"
) -> Iterable[Line]:
    """The texts of a stream in order, without their line ends.

    Args:
        stream: bytes; a byte order mark at the beginning is skipped.
        source: its name in error messages.
        field: read each line as a JSON object and take the text under this key; None takes the line.
        blank: what to do with a line without text.

    Raises:
        InvalidText: a line is not UTF-8, is not a JSON object with such a string, or is too long.
        EmptyText: a line contains no text, with ``blank="error"``.
    """
    for number, text in text_lines(Stream(source, stream)):
        where = f"line {number} of {source}"
        content = text if field is None or not text.strip() else _field(text, field, where)
        if content.strip():
            yield Line(content, source, number)
        elif blank == "error":
            raise EmptyText(
                f"{where} holds no text; remove it, or leave such lines out (blank='skip', or --blank skip)"
            )


def _field(text: str, field: str, where: str) -> str:
    value = json_row(text, where).get(field)
    if not isinstance(value, str):
        raise InvalidText(f"{where} has no string under {field!r}; name another key (field=, or --field)")
    return value
