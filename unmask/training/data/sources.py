"""Sources of training text: files of several formats, read as a stream of documents."""

import dataclasses
import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from unmask.base.optional import require
from unmask.base.stores import is_url, matching, open_store, reading
from unmask.errors import InvalidRequest, InvalidText, UnmaskError
from unmask.text.lines import COMPRESSED, Stream, blocks, decompressed, lines, real
from unmask.text.rows import Record, read_rows
from unmask.training.table import settings

Format = Literal["text", "paragraphs", "lines", "jsonl", "csv", "parquet", "datasets"]
"""What one document is. ``text``: a file; ``paragraphs``: a block of lines between blank lines; ``lines``: a
line; ``jsonl``: a line with a JSON object; ``csv``: a row after the header; ``parquet``: a row;
``datasets``: a row of a folder written by ``Dataset.save_to_disk``."""

InputFile = Path | str
"""A file of this machine, or the URL of one in an object store."""

SplitBy = Literal["document", "paragraph", "sentence"]
"""The units that a document is split into, before units that are too long are split further."""

FORMAT_OF: Mapping[str, Format] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


@settings
class SourceSpec:
    """One source of text and how it is split into chunks.

    Raises:
        InvalidRequest: a value outside its range.
    """

    name: str
    files: tuple[str, ...]
    """Paths or globs, relative to a folder that the reader passes, or URLs such as
    ``s3://bucket/texts/*.jsonl.gz``. Files of a glob are read in the order of their names."""
    format: Format | None = None
    """What one document is: a file (``text``), a block of lines between blank lines (``paragraphs``), a line
    (``lines``), or a record of the other formats. None: by each file's extension, before ``.xz``, ``.gz``,
    ``.bz2`` or ``.zst``: ``text`` for .txt, ``jsonl`` for .jsonl, .ndjson and .json, and so on; a folder is a
    saved dataset."""
    field: str = "text"
    """The field that holds the text in a structured format."""
    skip_null: bool = False
    """Skip records whose text is null, and report their number. Otherwise such a record is an error."""
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keep only records whose fields have these values, or one of a list of values."""
    split_by: SplitBy = "document"
    max_tokens: int = 510
    """Maximum tokens per chunk, without special tokens."""
    min_tokens: int = 1
    """A shorter chunk is merged with the following text of its document."""
    weight: float = 1.0
    """Share of the tokens in a mixture, relative to the weights of the other sources."""

    def __post_init__(self) -> None:
        if not self.name or not all(part.isalnum() or part in "-_." for part in self.name):
            raise InvalidRequest(
                f"a source is called {self.name!r}; letters, digits, '-', '_' and '.' can be in its name"
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
        """The settings that its chunks depend on, besides the contents of the files; excludes the weight."""
        settings = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "weight"
        }
        settings["pieces"] = settings.pop("split_by")  # the old name keeps existing caches valid
        return settings


def input_files(spec: SourceSpec, base: Path) -> list[InputFile]:
    """The files and folders of a source, in the order in which they are read.

    Raises:
        InvalidRequest: a path does not exist, a glob matches nothing, or a store cannot be read.
    """
    files: list[InputFile] = []
    for pattern in spec.files:
        location = pattern if is_url(pattern) else real(base / pattern)
        matching = _matching(location)
        if not matching:
            raise InvalidRequest(f"source {spec.name} names {location}, and there is no such file")
        files += [path for path in matching if path not in files]
    return files


def _matching(location: InputFile) -> Sequence[InputFile]:
    if isinstance(location, str):
        return matching(location)
    if location.exists():
        return [location]
    pattern = str(location)
    return (
        [Path(path) for path in sorted(glob.glob(pattern, recursive=True))] if glob.has_magic(pattern) else []
    )


def documents(
    spec: SourceSpec, base: Path = Path(), *, skipped: dict[str, int] | None = None
) -> Iterator[str]:
    """The documents of a source, in order, blank ones included.

    Args:
        spec: the files, their format, and which records to keep.
        base: the folder that its paths are relative to.
        skipped: counts in ``null_texts`` the records that ``spec.skip_null`` leaves out.

    Raises:
        InvalidRequest: a file does not exist, or its format is unknown.
        InvalidText: a file is damaged, a line of it is not UTF-8 or not JSON, or a record has no text.
        MissingExtra: the format needs packages that are not installed.
    """
    for path in input_files(spec, base):
        form = format_of(path, spec)
        if form in ("parquet", "datasets"):
            require("train")
        if isinstance(path, str):
            with stored_stream(path) as stream:
                yield from _documents_of(stream, form, spec, skipped)
        else:
            yield from _documents_of(path, form, spec, skipped)


def _documents_of(
    file: Path | Stream, form: Format, spec: SourceSpec, skipped: dict[str, int] | None
) -> Iterator[str]:
    if form == "text":
        yield "\n".join(text for _, text in lines(file))
    elif form == "paragraphs":
        yield from blocks(lines(file))
    elif form == "lines":
        yield from (text for _, text in lines(file))
    else:
        rows = read_rows(file, form)
        if spec.skip_null:
            rows = _with_text(rows, spec.field, {} if skipped is None else skipped)
        yield from texts(rows, spec.field, spec.where)


@contextmanager
def stored_stream(url: str) -> Iterator[Stream]:
    """The decompressed content of a file in an object store.

    Raises:
        InvalidRequest: the store cannot be read.
    """
    files, path = open_store(url)
    opened = reading(url, lambda: files.open(path, "rb"))
    try:
        with opened:
            yield Stream(url, decompressed(opened, url))
    except (UnmaskError, GeneratorExit):
        raise
    except Exception as error:  # each store has error classes of its own
        raise InvalidRequest(f"cannot read {url}: {error}") from None


def _with_text(rows: Iterable[Record], key: str, skipped: dict[str, int]) -> Iterator[Record]:
    """Records whose text is not null; the others are counted."""
    for name, row in rows:
        if key in row and row[key] is None:
            skipped["null_texts"] = skipped.get("null_texts", 0) + 1
        else:
            yield name, row


def texts(rows: Iterable[Record], key: str = "text", where: Mapping[str, Any] | None = None) -> Iterator[str]:
    """The texts of the records whose fields have the values in ``where``.

    Args:
        rows: records with the names that errors use for them; from any origin, such as a streamed dataset.
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
            option = "field" if missing[0] == key else "where"
            raise InvalidText(
                f"{name} has no field {missing[0]!r}; set {option} to one that it has: "
                f"{', '.join(map(repr, row)) or 'none'}"
            )
        if all(row[field] in values for field, values in conditions.items()):
            yield _checked(row[key], key, name)


def _checked(text: object, key: str, name: object) -> str:
    if text is None:
        raise InvalidText(f"{name} has null under {key!r}; set skip_null to leave such records out")
    if not isinstance(text, str):
        raise InvalidText(f"{name} has a value of type {type(text).__name__} under {key!r} instead of text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"{name} holds a lone surrogate U+{ord(text[error.start]):04X}, which is not Unicode text; "
            "remove it or decode the source again"
        ) from None
    return text


def format_of(path: InputFile, spec: SourceSpec) -> Format:
    """The format in which a file of a source is read.

    Raises:
        InvalidRequest: neither the source nor the file's extension determines it, or it cannot be read from
        a URL.
    """
    if spec.format == "datasets" and isinstance(path, str):
        raise InvalidRequest(
            f"{path} of source {spec.name} is a URL, and a saved data set is read from a folder on local "
            "disk; download it, or name Parquet files"
        )
    if spec.format is not None:
        return spec.format
    if isinstance(path, Path) and path.is_dir():
        return "datasets"
    suffixes = [suffix for suffix in PurePosixPath(path).suffixes if suffix not in COMPRESSED]
    by_ending = FORMAT_OF.get(suffixes[-1]) if suffixes else None
    if by_ending is None:
        raise InvalidRequest(
            f"{path} of source {spec.name} ends in none of {', '.join(FORMAT_OF)}, with or without "
            f"{', '.join(COMPRESSED)} appended; set format"
        )
    return by_ending
