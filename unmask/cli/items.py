"""What the commands that predict read: texts, pairs, words and questions, from files of several formats."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from unmask.base.arguments import comma_separated
from unmask.base.optional import require
from unmask.errors import EmptyText, InvalidRequest, InvalidText, quoted
from unmask.text import Blank, Line, read_lines
from unmask.text.layouts import (
    CONLLU_COLUMNS,
    Sentence,
    columns_of,
    conllu_sentences,
    questions,
    sentences,
)
from unmask.text.lines import Stream, check_text
from unmask.text.rows import TABLES, Format, Record, format_by_name, read_rows


@dataclass(frozen=True)
class Item(Line):
    """One input; ``text`` is everything about it that the output depends on, for the digest of the input."""

    where: str = ""
    """How errors name it."""
    place: Mapping[str, object] | None = None
    """Where it was read, for JSON; None for a text that was given on the command line."""
    value: str | tuple[str, ...] = ""
    """A text, the words of one, or a question."""
    second: str | None = None
    """The second text of a pair, the context of a question, or the question of an answer."""
    id: str = ""
    """The id of a question."""
    choices: tuple[str, ...] = ()
    """The choices of a question, or the contexts of an answer."""
    probabilities: Mapping[str, float] | None = None
    """The probability of each label."""
    sentence: Sentence | None = None
    """The lines of a CoNLL file that its words are from."""

    @property
    def shown(self) -> str:
        """The text, or its words with spaces between them."""
        return self.value if isinstance(self.value, str) else " ".join(self.value)

    def __str__(self) -> str:
        return self.where


Read = Callable[[BinaryIO, str], Iterator[Line]]
"""Reads the items of a stream, which the second argument names."""


@dataclass(frozen=True)
class Columns:
    """Where in a record the texts are."""

    text: str | None
    """None for the default: ``text``, the whole line, or the first column of CoNLL."""
    pair: str | None = None
    tabs: bool = False
    """Lines are two texts with a tab between them."""
    id: str | None = None
    choices: str | None = None
    """A column of lists, or the names of several columns, separated by commas."""
    numbers: bool = False
    """Whether ``pair`` is a label, which may be a whole number."""
    probabilities: str | None = None
    """A column of objects with a probability for each label."""
    of_answers: bool = False
    """Whether rows are answers to check: ``pair``, the question, may be missing, and ``choices``, the
    contexts, may be one text."""
    options: tuple[str, str] = ("--field", "--pair-field")
    """What names the columns of the two texts, or of a question and its choices, on the command line."""

    def option(self, column: str) -> str:
        """How to name another column instead of this one."""
        return self.options[column not in (self.text, "text")]


def format_of(name: str, requested: Format | None, allowed: tuple[Format, ...]) -> Format:
    """The format of a file: the given one, or that of its ending.

    Raises:
        InvalidRequest: the command does not read it.
    """
    form = requested or format_by_name(name)
    if form == "json" and requested is None and "squad" in allowed:
        form = "squad"
    if form not in allowed:
        read = name or "standard input"
        reason = f"--format is {form}" if requested else f"{read} is taken for a file of format {form}"
        raise InvalidRequest(f"{reason}, and this command reads {', '.join(allowed)}; set --format to one")
    return form


def item_reader(form: Format, columns: Columns, blank: Blank) -> Read:
    """Reads items of a format.

    Raises:
        InvalidRequest: the columns do not fit the format.
        MissingExtra: the format needs a package that is not installed.
    """
    if columns.pair is not None and form not in TABLES:
        raise InvalidRequest(f"--pair-field is for columns of a table and the format is {form}; leave it out")
    if columns.tabs and form != "lines":
        raise InvalidRequest(
            f"--pairs is for lines with a tab and the format is {form}; name the second column with "
            "--pair-field, or set --format to lines"
        )
    if form == "parquet":
        require("parquet")
    if form == "lines":
        return lambda stream, name: _lines(stream, name, columns, blank)
    if form == "conll":
        return lambda stream, name: _sentences(stream, name, columns)
    if form == "conllu":
        return lambda stream, name: _conllu(stream, name, columns)
    if form == "squad":
        return _questions
    return lambda stream, name: _records(read_rows(Stream(name, stream), form), name, columns, blank)


def text_of(item: Item) -> str:
    """The text of an input.

    Raises:
        InvalidText: it is a list of words.
    """
    if not isinstance(item.value, str):
        raise InvalidText(f"{item} has a list of words, which only `unmask tag` reads; give a string")
    return item.value


def text_reader(requested: Format | None, field: str | None, blank: Blank) -> Read:
    """Reads one text for each line or row of streams, whose names tell their formats unless one is given.

    Raises:
        InvalidRequest: there is no such format.
    """

    def read(stream: BinaryIO, name: str) -> Iterator[Line]:
        form = format_of(name, requested, ("lines", *TABLES))
        for item in item_reader(form, Columns(field), blank)(stream, name):
            assert isinstance(item, Item)
            yield replace(item, text=text_of(item))

    return read


def _lines(stream: BinaryIO, name: str, columns: Columns, blank: Blank) -> Iterator[Item]:
    for line in read_lines(stream, name, field=columns.text, blank=blank):
        place = {"source": name, "line": line.number}
        value, second = pair_of(line.text, str(line), columns) if columns.tabs else (line.text, None)
        yield Item(line.text, name, line.number, str(line), place, value, second)


def pair_of(text: str, where: str, columns: Columns) -> tuple[str, str]:
    """The two texts of a line.

    Raises:
        InvalidText: it does not have exactly one tab.
    """
    parts = text.split("\t")
    if len(parts) != 2:
        raise InvalidText(
            f"{where} has {len(parts) - 1} tabs; write two texts with one tab between them, or name the "
            f"columns of a table with {columns.options[1]}"
        )
    return parts[0], parts[1]


def _records(rows: Iterator[Record], name: str, columns: Columns, blank: Blank) -> Iterator[Item]:
    ids = _Ids()
    for place, row in rows:
        where = str(place)
        value = _text(row, columns.text or "text", where, columns)
        pair = columns.pair
        if columns.of_answers and pair is not None and row.get(pair) is None:
            pair = None
        second = None if pair is None else _text(row, pair, where, columns, columns.numbers)
        if isinstance(second, tuple):
            raise InvalidText(f"{where} has a list under {pair!r}; give a string")
        choices = () if columns.choices is None else _choices(row, columns.choices, where, columns)
        if not "".join(value).strip():
            if blank == "skip":
                continue
            raise EmptyText(f"{where} holds no text; remove it, or leave such rows out (--blank skip)")
        identity = str(row.get(columns.id, place.number)) if columns.id else ""
        if columns.id:
            check_text(identity, f"id at {where}")
            ids.add(identity, where)
        whole = json.dumps([value, second, identity, *([choices] if choices else [])])
        shown = {"source": name, place.unit: place.number}
        p = None if columns.probabilities is None else _value(row, columns.probabilities, where, columns)
        yield Item(whole, name, place.number, where, shown, value, second, identity, choices, p)


def _value(row: Mapping[str, Any], column: str, where: str, columns: Columns) -> Any:
    if column not in row:
        option = columns.option(column)
        way_out = f"set {option} to one of" if option else "name a column so; it has"
        raise InvalidRequest(f"{where} has no {column!r}; {way_out}: {', '.join(row)}")
    return row[column]


def _text(
    row: Mapping[str, Any], column: str, where: str, columns: Columns, numbers: bool = False
) -> str | tuple[str, ...]:
    value = _value(row, column, where, columns)
    if isinstance(value, str) or (numbers and isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise InvalidText(f"{where} has no text under {column!r}; give a string, or a list of words")


def _choices(row: Mapping[str, Any], names: str, where: str, columns: Columns) -> tuple[str, ...]:
    """The list in a column, or the texts of several columns."""
    several = names not in row and "," in names
    value = [_value(row, name, where, columns) for name in comma_separated(names)] if several else None
    choices = _value(row, names, where, columns) if value is None else value
    if columns.of_answers and isinstance(choices, str):
        choices = [choices]
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise InvalidText(f"{where} has {quoted(choices)} under {quoted(names)}; give a list of strings")
    return tuple(choices)


def _sentences(stream: BinaryIO, name: str, columns: Columns) -> Iterator[Item]:
    column = columns.text or "0"
    if not column.isdecimal():
        raise InvalidRequest(f"--field is {column!r}; in a CoNLL file it is the number of a column, from 0")
    for sentence in sentences(Stream(name, stream), least=1):
        rows = [columns_of(line) for line in sentence.lines]
        if len(rows[0]) <= int(column):
            raise InvalidRequest(
                f"--field is {column} and {sentence.where} has {len(rows[0])} columns; name one from 0"
            )
        words = tuple(row[int(column)] for row in rows)
        whole = "\n".join((*sentence.before, *sentence.lines))
        place = {"source": name, "line": sentence.number}
        yield Item(whole, name, sentence.number, sentence.where, place, words, sentence=sentence)


def _conllu(stream: BinaryIO, name: str, columns: Columns) -> Iterator[Item]:
    column = columns.text or "form"
    if column not in CONLLU_COLUMNS:
        raise InvalidRequest(
            f"--field is {column!r}; in a CoNLL-U file it can be {', '.join(CONLLU_COLUMNS)}"
        )
    for sentence in conllu_sentences(Stream(name, stream)):
        words = sentence.column(column)
        place = {"source": name, "line": sentence.number}
        yield Item(json.dumps(words), name, sentence.number, sentence.where, place, words)


class _Ids:
    """The ids of questions so far, by which their answers are told apart."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, identity: str, where: str) -> None:
        """Refuse an id that was there before.

        Raises:
            InvalidText: it was.
        """
        if identity in self._seen:
            raise InvalidText(f"{where} has the id {identity!r} of an earlier question; give each its own")
        self._seen.add(identity)


def _questions(stream: BinaryIO, name: str) -> Iterator[Item]:
    ids = _Ids()
    for number, question in enumerate(questions(Stream(name, stream)), start=1):
        ids.add(question.id, question.where)
        whole = json.dumps([question.id, question.question, question.context])
        place = {"source": name, "id": question.id}
        yield Item(
            whole, name, number, question.where, place, question.question, question.context, question.id
        )
