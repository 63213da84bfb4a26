"""Labeled records of files: tables, CoNLL and CoNLL-U sentences, and questions in SQuAD's layout."""

import glob
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from unmask.base.optional import require
from unmask.base.progress import counted
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.tasks.schemes import entities_of, split_label, written_in
from unmask.text.layouts import CONLLU_COLUMNS, columns_of, conllu_sentences, questions, sentences
from unmask.text.lines import COMPRESSED, real
from unmask.text.memory import Rows
from unmask.text.rows import Record, read_rows
from unmask.training.finetune.settings import DataSettings, Format
from unmask.training.finetune.tasks import LAYOUTS

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


@dataclass
class ReadingNotes:
    """What was done to the records of files while they were read."""

    skipped: Counter[Path] = field(default_factory=Counter)
    """Lines of each file that are left out, see `DataSettings.skip_short_lines`."""
    moved: dict[Path, list[str]] = field(default_factory=dict)
    """Of each file, the questions of which an answer was moved, see `DataSettings.answer_offsets`."""

    def sentences(self) -> list[str]:
        """One for each file and kind."""
        skipped_sentences = [skipped_sentence(file.name, lines) for file, lines in self.skipped.items()]
        return skipped_sentences + [
            f"{file.name}: {counted(len(places), 'answer')} {'is' if len(places) == 1 else 'are'} not at "
            f"answer_start, so the nearest occurrence is taken, first in {places[0]}"
            for file, places in self.moved.items()
        ]


def skipped_sentence(file: str, lines: int) -> str:
    """A sentence about lines that were left out."""
    return f"{file}: {counted(lines, 'line')} with too few columns {'is' if lines == 1 else 'are'} left out"


def read_labeled(
    names: Sequence[str],
    data: DataSettings,
    base: Path,
    notes: ReadingNotes | None = None,
    *,
    offsets: bool = True,
    labeled: bool = True,
) -> Iterator[Labeled]:
    """All records of files, in order.

    Args:
        names: paths or globs, relative to ``base``, or rows in memory.
        data: their format and columns.
        base: a folder.
        notes: receives what was left out or mended.
        offsets: whether the offsets of answers are read; scoring does not need them.
        labeled: False also reads tables without the column of labels and questions without answers, whose
            label is then None.

    Raises:
        InvalidRequest: a file does not exist, has no known format, or lacks a column.
        InvalidText: a file is damaged, or a line does not have its format.
        MissingExtra: the format needs packages that are not installed.
    """
    notes = ReadingNotes() if notes is None else notes
    for path in labeled_files(names, base):
        form = None if isinstance(path, Rows) else labeled_format(path, data.format)
        if isinstance(path, Rows) or form in ROWS:
            skip = None
            if form == "tsv" and data.skip_short_lines:
                skip = partial(notes.skipped.update, [path])
            yield from _table(table_rows(path, data, skip=skip), data, labeled)
        elif form == "conll":
            yield from _conll(path, data)
        elif form == "conllu":
            yield from _conllu(path, data)
        else:
            yield from _squad(path, data, notes) if offsets and labeled else _squad_texts(path, labeled)


def table_rows(
    source: Path | Rows, data: DataSettings, *, skip: Callable[[], None] | None = None
) -> Iterator[Record]:
    """Rows of a table in a file or in memory.

    Args:
        source: a file, or rows in memory.
        data: its format, and the names of its columns if it has no header row.
        skip: called for each line of a TSV file with too few columns, which is then left out; None refuses
            it.

    Raises:
        InvalidRequest: the file is of no known format, or of one that has no rows.
        InvalidText: the file is damaged.
        MissingExtra: the format needs packages that are not installed.
    """
    if isinstance(source, Rows):
        return iter(source.records)
    form = labeled_format(source, data.format)
    if form not in ROWS:
        raise InvalidRequest(
            f"{source} is read as {form}, which has no rows of columns; give {', '.join(ROWS)}"
        )
    if form in ("parquet", "datasets"):
        require("train")
    return read_rows(source, form, data.columns, skip)


def in_both_orders(records: Sequence[Labeled]) -> list[Labeled]:
    """All pairs, and then all of them with the second text first."""
    turned = [
        replace(record, text=record.pair, pair=record.text)
        for record in records
        if isinstance(record.pair, str) and isinstance(record.text, str)
    ]
    return [*records, *turned]


def labeled_files(names: Sequence[str], base: Path) -> list[Path | Rows]:
    """The files that paths and globs name, each once, and rows in memory.

    Raises:
        InvalidRequest: a path does not exist, or a glob matches nothing.
    """
    files: list[Path | Rows] = []
    for name in names:
        if isinstance(name, Rows):
            files.append(name)
            continue
        location = real(base / name)
        paths = [location] if location.exists() else [Path(path) for path in sorted(glob.glob(str(location)))]
        if not paths:
            raise InvalidRequest(f"data names {location}, and there is no such file")
        files += [path for path in paths if path not in files]
    return files


def labeled_format(path: Path, chosen: Format | None) -> Format:
    """The format of a file: the given one, or that of its extension.

    Raises:
        InvalidRequest: neither determines it.
    """
    if chosen is not None:
        return chosen
    if path.is_dir():
        return "datasets"
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    by_ending = FORMAT_OF.get(suffixes[-1]) if suffixes else None
    if by_ending is None:
        raise InvalidRequest(
            f"{path} ends in none of {', '.join(FORMAT_OF)}, with or without {' or '.join(COMPRESSED)} "
            "appended; set data.format"
        )
    return by_ending


ROWS = ("tsv", "csv", "jsonl", "parquet", "datasets")
"""Formats of tables."""


def _table(rows: Iterator[Record], data: DataSettings, labeled: bool) -> Iterator[Labeled]:
    for place, values in rows:
        where = str(place)
        row = values if data.layout is None else LAYOUTS[data.layout](values, where)
        text = value_under(data.text, row, where, "text")
        pair = None if data.pair is None else value_under(data.pair, row, where, "pair")
        words = isinstance(text, list) and all(isinstance(word, str) for word in text)
        if not (isinstance(text, str) or words) or not isinstance(pair, str | None):
            raise InvalidText(f"{where} has no text under {data.text!r}; give a string")
        label = value_under(data.label, row, where, "label") if labeled else row.get(data.label)
        if isinstance(label, list):
            label = _in_scheme(label, data, where)
        choices = _choices(where, row, data.choices) if data.choices else None
        yield Labeled(where, tuple(text) if words else text, pair, label, choices)


def _choices(where: str, row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    """The choices of a question: the list in one column, or the texts of several columns."""
    values = [value_under(column, row, where, "choices", many=True) for column in columns]
    choices = values[0] if len(columns) == 1 else values
    under = ", ".join(map(repr, columns))
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) for choice in choices)
    ):
        under = ", ".join(map(repr, columns))
        raise InvalidText(
            f"{where} has {quoted(choices)} under {under}; give at least two choices as strings"
        )
    return tuple(choices)


def value_under(
    column: str, row: Mapping[str, Any], where: object, option: str, *, many: bool = False
) -> Any:
    """The value in a column that ``data.option`` names, or one of ``many``.

    Raises:
        InvalidRequest: the row has no such column.
    """
    if column not in row:
        raise InvalidRequest(
            f"{where} has no column {column!r}; set data.{option} to {'some' if many else 'one'} of: "
            f"{', '.join(row)}"
        )
    return row[column]


def _conll(path: Path, data: DataSettings) -> Iterator[Labeled]:
    """Sentences of lines with a word and its labels; documents' beginnings are left out."""
    word, label = (_column(value, name) for value, name in ((data.text, "text"), (data.label, "label")))
    for sentence in sentences(path):
        rows = [columns_of(line) for line in sentence.lines]
        for option, column in (("text", word), ("label", label)):
            if not all(-len(row) <= column < len(row) for row in rows):
                raise InvalidRequest(
                    f"{sentence.where} has {counted(min(map(len, rows)), 'column')}, and data.{option} is "
                    f"column {column}; columns are counted from 0 or, with a minus sign, from the end"
                )
        words = tuple(_without(data.strip_prefix, row[word], sentence.where) for row in rows)
        labels = _in_scheme([row[label] for row in rows], data, sentence.where)
        yield Labeled(sentence.where, words, None, labels)


def _without(prefix: str, word: str, where: str) -> str:
    """The word without a prefix that every word of the file has.

    Raises:
        InvalidText: it does not have it, or nothing else.
    """
    rest = word.removeprefix(prefix)
    if prefix and (rest == word or not rest):
        raise InvalidText(
            f"{where} has the word {word!r}, which is not {prefix!r} followed by a word; mend it, or change "
            "data.strip_prefix"
        )
    return rest


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
    if not re.fullmatch(r"-?[0-9]{1,9}", value):
        raise InvalidRequest(f"data.{name} is {value!r}; in a CoNLL file it must be a column number")
    return int(value)


def _conllu(path: Path, data: DataSettings) -> Iterator[Labeled]:
    """Sentences of Universal Dependencies; ranges (1-2) and empty nodes (1.1) are left out."""
    label = "upos" if data.label == "label" else data.label
    if label not in CONLLU_COLUMNS:
        raise InvalidRequest(
            f"data.label is {label!r}; in a CoNLL-U file it can be {', '.join(CONLLU_COLUMNS)}"
        )
    for sentence in conllu_sentences(path):
        yield Labeled(sentence.where, sentence.column("form"), None, list(sentence.column(label)))


def _squad_texts(path: Path, labeled: bool = True) -> Iterator[Labeled]:
    """Questions with their contexts and answers, as in SQuAD 1.1 and 2.0."""
    for question in questions(path):
        if question.answers is None and labeled:
            raise InvalidText(f"{question.where} has no answers, which are needed here; add the key answers")
        gold = None if question.answers is None else Gold(question.id, question.answers)
        yield Labeled(question.where, question.question, question.context, gold)


def _squad(path: Path, data: DataSettings, notes: ReadingNotes) -> Iterator[Labeled]:
    """Questions whose answers are at their offsets.

    Raises:
        InvalidText: an answer is not at its offset, or, with nearest ones, nowhere in its context.
    """
    records = list(_squad_texts(path))
    wrong = [record for record in records if _misplaced(record)]
    if wrong and data.answer_offsets == "exact":
        (text, start), *_ = _misplaced(wrong[0])
        raise InvalidText(
            f"{len(wrong):,} of {counted(len(records), 'question')} of {path} "
            f"{'has' if len(wrong) == 1 else 'have'} an answer that is not at its answer_start, "
            f"the first {wrong[0].where}: {quoted(text)} at {start}; mend them, or set "
            'data.answer_offsets = "nearest" to take the nearest occurrence of each'
        )
    for record in records:
        yield _moved(record) if _misplaced(record) else record
    if wrong:
        notes.moved[path] = [record.where for record in wrong]


def _misplaced(record: Labeled) -> list[tuple[str, int]]:
    """The answers that are not at their offsets."""
    context = str(record.pair)
    return [
        (text, start) for text, start in record.label.answers if context[start : start + len(text)] != text
    ]


def _moved(record: Labeled) -> Labeled:
    """The question with the occurrence of each answer that is nearest to its offset.

    Where an answer does not occur, it is taken without the white space around it.

    Raises:
        InvalidText: the context does not contain an answer.
    """
    context, answers = str(record.pair), []
    for text, start in record.label.answers:
        places = [(text, place) for place in _occurrences(text, context)]
        places = places or [(text.strip(), place) for place in _occurrences(text.strip(), context)]
        if not places:
            raise InvalidText(
                f"{record.where} has the answer {quoted(text)}, which its context does not contain; mend it, "
                "or leave the question out"
            )
        answers.append(min(places, key=lambda answer: abs(answer[1] - start)))
    return replace(record, label=replace(record.label, answers=tuple(answers)))


def _occurrences(text: str, context: str) -> Iterator[int]:
    place = context.find(text) if text else -1
    while place >= 0:
        yield place
        place = context.find(text, place + 1)
