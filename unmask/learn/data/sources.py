"""Where text for training comes from: files of several formats, read as a stream of documents."""

import dataclasses
import glob
import gzip
import importlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from unmask.errors import InvalidRequest, InvalidText
from unmask.optional import require

Format = Literal["text", "lines", "jsonl", "parquet", "datasets"]
"""``text``: documents are blocks of lines with a blank line between them; ``lines``: one a line; ``jsonl``:
one JSON object a line; ``parquet``: one a row; ``datasets``: a folder that ``Dataset.save_to_disk`` wrote."""

Pieces = Literal["document", "paragraph", "sentence"]
"""What a document is cut into, before what is too long is cut further."""

COMPRESSED = (".xz", ".gz")
FORMAT_OF: Mapping[str, Format] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


@dataclasses.dataclass(frozen=True)
class SourceSpec:
    """One source of text and how it is cut into pieces.

    Raises:
        InvalidRequest: a value outside its range.
    """

    name: str
    files: tuple[str, ...]
    """Paths or globs, relative to the folder that whoever reads them names. A glob is read in the order of
    the names."""
    format: Format | None = None
    """None: by each file's ending, before ``.xz`` or ``.gz``."""
    field: str = "text"
    """Where a record of a structured format holds the text."""
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keep only records whose field has this value, or one of a list of values."""
    split_by: Pieces = "document"
    max_tokens: int = 510
    """The most tokens of a piece; special tokens are not counted."""
    min_tokens: int = 1
    """A shorter piece is joined with what follows it in its document."""
    weight: float = 1.0
    """Its share of the tokens of a mixture, relative to the weights of the other sources."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", tuple(self.files))
        object.__setattr__(self, "where", dict(self.where))
        if not self.name or not all(part.isalnum() or part in "-_." for part in self.name):
            raise InvalidRequest(
                f"a source is called {self.name!r}; letters, digits, '-', '_' and '.' can be in its name"
            )
        for value, choices, called in (
            (self.split_by, get_args(Pieces), "split_by"),
            (self.format or "text", get_args(Format), "format"),
        ):
            if value not in choices:
                raise InvalidRequest(
                    f"{called} of source {self.name} is {value!r}; it can be {', '.join(choices)}"
                )
        if not self.files:
            raise InvalidRequest(f"source {self.name} has no files; name at least one")
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise InvalidRequest(
                f"source {self.name} has min_tokens {self.min_tokens} and max_tokens {self.max_tokens}; both "
                "must be at least 1, and the second no less than the first"
            )
        if not 0 < self.weight < float("inf"):
            raise InvalidRequest(f"weight of source {self.name} is {self.weight}; it must be above 0")

    def settings(self) -> dict[str, Any]:
        """What its pieces depend on beside the contents of the files; the weight is not among it."""
        found = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "weight"
        }
        found["pieces"] = found.pop("split_by")  # so that tokens on disk stay those of the same settings
        return found


def input_files(spec: SourceSpec, base: Path) -> list[Path]:
    """The files and folders of a source, in the order in which they are read.

    Raises:
        InvalidRequest: a path is not there, or a glob finds nothing.
    """
    found: list[Path] = []
    for pattern in spec.files:
        if glob.has_magic(pattern) and not (base / pattern).exists():
            some = [Path(path) for path in sorted(glob.glob(str(base / pattern), recursive=True))]
        else:
            some = [base / pattern] if (base / pattern).exists() else []
        if not some:
            raise InvalidRequest(f"source {spec.name} names {base / pattern}, and there is no such file")
        found += [path for path in some if path not in found]
    return found


def documents(spec: SourceSpec, base: Path = Path()) -> Iterator[str]:
    """The documents of a source one after another, blank ones included; never a whole file at once.

    Args:
        spec: which files, in which format, and which records of them.
        base: the folder that its paths are relative to.

    Raises:
        InvalidRequest: a file is not there, or nothing says what format it has.
        InvalidText: a file is damaged, a line of it is not UTF-8 or not JSON, or a record has no text.
        MissingExtra: a format that needs packages which are not installed.
    """
    for path in input_files(spec, base):
        form = spec.format or _format_of(path, spec)
        if form == "text":
            yield from _blocks(_lines(path))
        elif form == "lines":
            yield from (text for _, text in _lines(path))
        elif form == "jsonl":
            yield from texts(_json_rows(path), spec.field, spec.where)
        else:
            require("train")
            rows = _parquet_rows(path) if form == "parquet" else _dataset_rows(path)
            yield from texts(rows, spec.field, spec.where)


def texts(
    rows: Iterable[tuple[str, Mapping[str, Any]]], key: str = "text", where: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """The texts of records, of which those are kept whose fields have the values in ``where``.

    Args:
        rows: what an error calls the record, and the record; of any origin, such as a streamed data set.
        key: the field that holds the text.
        where: field -> the value to keep, or a list of such values.

    Raises:
        InvalidText: a record has no such field, or no text in it.
    """
    conditions = {
        name: value if isinstance(value, list) else [value] for name, value in (where or {}).items()
    }
    for name, row in rows:
        missing = [field for field in (key, *conditions) if field not in row]
        if missing:
            raise InvalidText(
                f"{name} has no field {missing[0]!r}; it has {', '.join(map(repr, row)) or 'none'}"
            )
        if all(row[field] in values for field, values in conditions.items()):
            yield _checked(row[key], key, name)


def _checked(text: object, key: str, name: str) -> str:
    if not isinstance(text, str):
        raise InvalidText(f"{name} has a value of type {type(text).__name__} under {key!r}, and no text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"{name} holds a lone surrogate U+{ord(text[error.start]):04X}, which is not Unicode text; "
            "remove it or decode the source again"
        ) from None
    return text


def _format_of(path: Path, spec: SourceSpec) -> Format:
    if path.is_dir():
        return "datasets"
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    found = FORMAT_OF.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise InvalidRequest(
            f"{path} of source {spec.name} ends in none of {', '.join(FORMAT_OF)}, with or without "
            f"{' or '.join(COMPRESSED)} behind; say what format it has"
        )
    return found


def _open(path: Path) -> BinaryIO | lzma.LZMAFile | gzip.GzipFile:
    if path.suffix == ".xz":
        return lzma.LZMAFile(path)
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    return path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of each line without its end."""
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InvalidText(
                        f"line {number} of {path} is not UTF-8: byte 0x{raw[error.start]:02x} at byte "
                        f"{error.start + 1}; convert the file to UTF-8 first"
                    ) from None
                yield number, text.removesuffix("\n").removesuffix("\r")
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidText(f"cannot read {path} after line {number}: {reason}") from None


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    block: list[str] = []
    for _, line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        name = f"line {number} of {path}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidText(f"{name} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise InvalidText(f"{name} is no JSON object")
        yield name, row


def _arrow() -> Any:
    """The package, which has no types and need not be there."""
    return importlib.import_module("pyarrow")


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    arrow, parquet = _arrow(), importlib.import_module("pyarrow.parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number} of {path}", row
    except (OSError, arrow.ArrowException) as error:
        raise InvalidText(f"cannot read {path} after row {number}: {error}") from None


def _dataset_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A saved data set is Arrow streams, and a state.json that names them in order."""
    arrow = _arrow()
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        inner = sorted(each.parent.name for each in path.glob("*/state.json"))
        reason = f"; name one of those below it ({', '.join(inner)})" if inner else ""
        raise InvalidRequest(f"{path} is no data set that Dataset.save_to_disk wrote{reason}") from None
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
