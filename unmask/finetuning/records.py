"""Labeled records of files: tables, CoNLL and CoNLL-U sentences, and questions in SQuAD's layout."""

import glob
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.finetuning.data_settings import DataSettings, Format
from unmask.optional import require
from unmask.tasks.schemes import entities_of, split_label, written_in
from unmask.text.layouts import CONLLU_COLUMNS, columns_of, conllu_sentences, questions, sentences
from unmask.text.records import (
    COMPRESSED,
    Record,
    csv_rows,
    dataset_rows,
    json_rows,
    parquet_rows,
    tsv_rows,
)

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


def read_labeled(
    names: Sequence[str],
    data: DataSettings,
    base: Path,
    skipped: Counter[Path] | None = None,
    *,
    labeled: bool = True,
) -> Iterator[Labeled]:
    """All records of files, in order.

    Args:
        names: paths or globs, relative to ``base``.
        data: their format and columns.
        base: a folder.
        skipped: counts the lines of each file that are left out, see `DataSettings.skip_short_lines`.
        labeled: False also reads tables without the column of labels and questions without answers, whose
            label is then None.

    Raises:
        InvalidRequest: a file does not exist, has no known format, or lacks a column.
        InvalidText: a file is damaged, or a line does not have its format.
        MissingExtra: the format needs packages that are not installed.
    """
    skipped = Counter() if skipped is None else skipped
    for path in labeled_files(names, base):
        form = labeled_format(path, data.format)
        if form == "conll":
            yield from _conll(path, data)
        elif form == "conllu":
            yield from _conllu(path, data)
        elif form == "squad":
            yield from _squad(path, labeled)
        else:
            if form in ("parquet", "datasets"):
                require("train")
            rows = ROWS[form](path, data.columns)
            if form == "tsv" and data.skip_short_lines:
                rows = tsv_rows(path, data.columns, lambda path=path: skipped.update([path]))  # type: ignore[misc]
            yield from _table(rows, data, labeled)


def in_both_orders(records: Sequence[Labeled]) -> list[Labeled]:
    """All pairs, and then all of them with the second text first."""
    turned = [
        replace(one, text=one.pair, pair=one.text)
        for one in records
        if isinstance(one.pair, str) and isinstance(one.text, str)
    ]
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


ROWS: Mapping[str, Callable[[Path, Sequence[str]], Iterator[Record]]] = {
    "tsv": tsv_rows,
    "csv": csv_rows,
    "jsonl": lambda path, _: json_rows(path),
    "parquet": lambda path, _: parquet_rows(path),
    "datasets": lambda path, _: dataset_rows(path),
}


def _table(rows: Iterator[Record], data: DataSettings, labeled: bool) -> Iterator[Labeled]:
    for where, row in rows:
        wanted = {"text": data.text, "pair": data.pair, "label": data.label if labeled else None}
        for option, column in wanted.items():
            if column is not None and column not in row:
                raise InvalidRequest(
                    f"{where} has no column {column!r}; set data.{option} to one of: {', '.join(row)}"
                )
        text, pair = row[data.text], None if data.pair is None else row[data.pair]
        words = isinstance(text, list) and all(isinstance(word, str) for word in text)
        if not (isinstance(text, str) or words) or not isinstance(pair, str | None):
            raise InvalidText(f"{where} has no text under {data.text!r}; give a string")
        label = row.get(data.label)
        if isinstance(label, list):
            label = _in_scheme(label, data, where)
        choices = _choices(where, row, data.choices) if data.choices else None
        yield Labeled(where, tuple(text) if words else text, pair, label, choices)


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
    """Sentences of lines with a word and its labels; documents' beginnings are left out."""
    word, label = (_column(value, name) for value, name in ((data.text, "text"), (data.label, "label")))
    for sentence in sentences(path):
        rows = [columns_of(line) for line in sentence.lines]
        words = tuple(_without(data.strip_prefix, row[word], sentence.where) for row in rows)
        labels = _in_scheme([row[label] for row in rows], data, sentence.where)
        yield Labeled(sentence.where, words, None, labels)


def _without(prefix: str, word: str, where: str) -> str:
    """The word without a prefix that every word of the file has.

    Raises:
        InvalidText: it does not have it, or nothing else.
    """
    found = word.removeprefix(prefix)
    if prefix and (found == word or not found):
        raise InvalidText(
            f"{where} has the word {word!r}, which is not {prefix!r} followed by a word; mend it, or change "
            "data.strip_prefix"
        )
    return found


def _in_scheme(labels: Sequence[Any], data: DataSettings, where: str) -> Sequence[Any]:
    """The labels of a text's words in the scheme that the settings name, if they do.

    Raises:
        InvalidText: a label is of no scheme.
    """
    if data.scheme is None:
        return labels
    names = [data.rename_labels.get(str(label), str(label)) for label in labels]
    for name in names:
        if name != "O" and not split_label(name)[0]:
            raise InvalidText(
                f"{where} has the label {name!r}, which is of no tagging scheme; mend it, or leave "
                "data.scheme out"
            )
    return written_in(data.scheme, entities_of(names), len(names))


def _column(value: str, name: str) -> int:
    defaults = {"text": 0, "label": -1}
    if value in defaults:
        return defaults[value]
    if not value.lstrip("-").isdecimal():
        raise InvalidRequest(f"data.{name} is {value!r}; in a CoNLL file it must be a column number")
    return int(value)


def _conllu(path: Path, data: DataSettings) -> Iterator[Labeled]:
    """Sentences of Universal Dependencies; ranges (1-2) and empty nodes (1.1) are left out."""
    label = "upos" if data.label == "label" else data.label
    if label not in CONLLU_COLUMNS:
        raise InvalidRequest(
            f"data.label is {label!r}; in a CoNLL-U file it can be {', '.join(CONLLU_COLUMNS)}"
        )
    for one in conllu_sentences(path):
        yield Labeled(one.where, one.column("form"), None, list(one.column(label)))


def _squad(path: Path, labeled: bool) -> Iterator[Labeled]:
    """Questions with their contexts and answers, as in SQuAD 1.1 and 2.0."""
    for one in questions(path):
        if one.answers is None and labeled:
            raise InvalidText(f"{one.where} has no answers, which training needs; add the key answers")
        gold = None if one.answers is None else Gold(one.id, one.answers)
        yield Labeled(one.where, one.question, one.context, gold)
