"""Labeled records of files: tables, CoNLL and CoNLL-U sentences, and questions in SQuAD's layout."""

import csv
import glob
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.finetuning.settings import DataSettings, Format
from unmask.learn.data.records import Record, csv_rows, dataset_rows, json_rows, lines, parquet_rows
from unmask.optional import require

COMPRESSED = (".xz", ".gz")
FORMAT_OF: Mapping[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".conllu": "conllu",
    ".json": "squad",
}

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


@dataclass(frozen=True)
class Labeled:
    """One record."""

    where: str
    """Its file and line, for errors."""
    text: str | tuple[str, ...]
    """A text, or the words of one."""
    pair: str | None
    label: Any
    """As in the file; for a question, its `Gold`."""
    choices: tuple[str, ...] | None = None
    """Of a multiple choice, as in the file; each begins with ``pair`` when it is read, if there is one."""


@dataclass(frozen=True)
class Gold:
    """The accepted answers to a question."""

    id: str
    answers: tuple[tuple[str, int], ...]
    """Texts and offsets in the context; empty if the context does not contain the answer."""


def read_labeled(names: Sequence[str], data: DataSettings, base: Path) -> Iterator[Labeled]:
    """All records of files, in order.

    Args:
        names: paths or globs, relative to ``base``.
        data: their format and columns.
        base: a folder.

    Raises:
        InvalidRequest: a file does not exist, has no known format, or lacks a column.
        InvalidText: a file is damaged, or a line does not have its format.
        MissingExtra: the format needs packages that are not installed.
    """
    for path in labeled_files(names, base):
        form = labeled_format(path, data.format)
        if form == "conll":
            yield from _conll(path, data)
        elif form == "conllu":
            yield from _conllu(path, data)
        elif form == "squad":
            yield from _squad(path)
        else:
            if form in ("parquet", "datasets"):
                require("train")
            yield from _table(ROWS[form](path, data.columns), data)


def in_both_orders(records: Sequence[Labeled]) -> list[Labeled]:
    """All pairs, and then all of them with the second text first."""
    turned = [replace(one, text=one.pair, pair=one.text) for one in records if isinstance(one.pair, str)]
    return [*records, *turned]


def labeled_files(names: Sequence[str], base: Path) -> list[Path]:
    """The files that paths and globs name, each once.

    Raises:
        InvalidRequest: a path does not exist, or a glob matches nothing.
    """
    found: list[Path] = []
    for name in names:
        there = (base / name).exists()
        some = [base / name] if there else [Path(one) for one in sorted(glob.glob(str(base / name)))]
        if not some:
            raise InvalidRequest(f"data names {base / name}, and there is no such file")
        found += [one for one in some if one not in found]
    return found


def labeled_format(path: Path, given: Format | None) -> Format:
    """The format of a file: the given one, or that of its extension.

    Raises:
        InvalidRequest: neither determines it.
    """
    if given is not None:
        return given
    if path.is_dir():
        return "datasets"
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    found = FORMAT_OF.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise InvalidRequest(
            f"{path} ends in none of {', '.join(FORMAT_OF)}, with or without {' or '.join(COMPRESSED)} "
            "appended; set data.format"
        )
    return found


def _tsv(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """Tab-separated values without quoting, as the files of GLUE are."""
    names: Sequence[str] = columns
    for number, line in lines(path):
        values = line.split("\t")
        if not names:
            names = values
            continue
        if len(values) != len(names):
            raise InvalidText(
                f"line {number} of {path} has {len(values)} values separated by tabs, and there are "
                f"{len(names)} columns ({', '.join(names)}); mend the line, or set data.columns"
            )
        yield f"line {number} of {path}", dict(zip(names, values, strict=True))


def _csv(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    if not columns:
        yield from csv_rows(path)
        return
    rows = csv.reader((f"{text}\n" for _, text in lines(path)), strict=True)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise InvalidText(
                f"row {number} of {path} has {len(row)} values and data.columns names {len(columns)}; "
                "mend the row or data.columns"
            )
        yield f"row {number} of {path}", dict(zip(columns, row, strict=True))


ROWS: Mapping[str, Callable[[Path, Sequence[str]], Iterator[Record]]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": lambda path, _: json_rows(path),
    "parquet": lambda path, _: parquet_rows(path),
    "datasets": lambda path, _: dataset_rows(path),
}


def _table(rows: Iterator[Record], data: DataSettings) -> Iterator[Labeled]:
    for where, row in rows:
        wanted = {"text": data.text, "pair": data.pair, "label": data.label}
        for option, column in wanted.items():
            if column is not None and column not in row:
                raise InvalidRequest(
                    f"{where} has no column {column!r}; set data.{option} to one of: {', '.join(row)}"
                )
        text, pair = row[data.text], None if data.pair is None else row[data.pair]
        words = isinstance(text, list) and all(isinstance(word, str) for word in text)
        if not (isinstance(text, str) or words) or not isinstance(pair, str | None):
            raise InvalidText(f"{where} has no text under {data.text!r}; give a string")
        choices = _choices(where, row, data.choices) if data.choices else None
        yield Labeled(where, tuple(text) if words else text, pair, row[data.label], choices)


def _choices(where: str, row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    """The choices of a question: the list in one column, or the texts of several columns."""
    for column in columns:
        if column not in row:
            raise InvalidRequest(
                f"{where} has no column {column!r}; set data.choices to some of: {', '.join(row)}"
            )
    some = row[columns[0]] if len(columns) == 1 else [row[column] for column in columns]
    if not isinstance(some, list) or len(some) < 2 or not all(isinstance(one, str) for one in some):
        under = ", ".join(map(repr, columns))
        raise InvalidText(f"{where} has {quoted(some)} under {under}; give at least two choices as strings")
    return tuple(some)


def _conll(path: Path, data: DataSettings) -> Iterator[Labeled]:
    """Sentences of lines with a word and its labels, separated by blank lines; columns by white space."""
    word, label = (_column(value, name) for value, name in ((data.text, "text"), (data.label, "label")))

    def fields(line: str) -> list[str]:
        return line.split("\t") if "\t" in line else line.split()

    for where, some in _sentences(path, fields):
        if some[0][0] == "-DOCSTART-":
            continue
        yield Labeled(where, tuple(one[word] for one in some), None, [one[label] for one in some])


def _column(value: str, name: str) -> int:
    defaults = {"text": 0, "label": -1}
    if value in defaults:
        return defaults[value]
    if not value.lstrip("-").isdecimal():
        raise InvalidRequest(f"data.{name} is {value!r}; in a CoNLL file it must be a column number")
    return int(value)


def _sentences(path: Path, fields: Callable[[str], list[str]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Blocks of lines as lists of fields; every line of a file has the same number."""
    block: list[list[str]] = []
    first, width = 0, 0
    for number, line in lines(path):
        if line.strip():
            values = fields(line)
            width = width or len(values)
            if len(values) != width or width < 2:
                raise InvalidText(
                    f"line {number} of {path} has {len(values)} columns and "
                    + ("a word and a label are needed" if width < 2 else f"the lines before it {width}")
                    + "; mend the line, or set data.format"
                )
            first = first or number
            block.append(values)
        elif block:
            yield f"line {first} of {path}", block
            block, first = [], 0
    if block:
        yield f"line {first} of {path}", block


def _conllu(path: Path, data: DataSettings) -> Iterator[Labeled]:
    """Sentences of Universal Dependencies; ranges (1-2) and empty nodes (1.1) are left out."""
    label = "upos" if data.label == "label" else data.label
    if label not in CONLLU_COLUMNS:
        raise InvalidRequest(
            f"data.label is {label!r}; in a CoNLL-U file it can be {', '.join(CONLLU_COLUMNS)}"
        )
    column = CONLLU_COLUMNS.index(label)
    words: list[str] = []
    labels: list[str] = []
    first = 0
    for number, line in lines(path):
        if line.startswith("#"):
            continue
        if not line.strip():
            if words:
                yield Labeled(f"line {first} of {path}", tuple(words), None, labels)
            words, labels, first = [], [], 0
            continue
        values = line.split("\t")
        if len(values) != len(CONLLU_COLUMNS):
            raise InvalidText(
                f"line {number} of {path} has {len(values)} columns separated by tabs; CoNLL-U has "
                f"{len(CONLLU_COLUMNS)}"
            )
        first = first or number
        if values[0].isdecimal():
            words.append(values[1])
            labels.append(values[column])
    if words:
        yield Labeled(f"line {first} of {path}", tuple(words), None, labels)


def _squad(path: Path) -> Iterator[Labeled]:
    """Questions with their contexts, as in SQuAD 1.1 and 2.0."""
    try:
        content = json.loads("\n".join(text for _, text in lines(path)))
        articles = content["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for asked in paragraph["qas"]:
                    found = [(one["text"], one["answer_start"]) for one in asked["answers"]]
                    where = f"question {asked['id']} of {path}"
                    for text, start in found:
                        if context[start : start + len(text)] != text:
                            raise InvalidText(
                                f"{where} has the answer {text!r} at {start}, where its context says "
                                f"{context[start : start + len(text)]!r}; mend answer_start"
                            )
                    impossible = bool(asked.get("is_impossible"))
                    gold = Gold(str(asked["id"]), () if impossible else tuple(found))
                    yield Labeled(where, asked["question"], context, gold)
    except (ValueError, RecursionError) as error:
        raise InvalidText(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidText(
            f"{path} is not laid out as SQuAD: {error!r} is missing or of another type"
        ) from None
