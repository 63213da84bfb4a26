"""Layouts of files that are not tables: CoNLL sentences and SQuAD questions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InvalidText
from unmask.text.lines import Stream, lines
from unmask.text.rows import not_json

DOCUMENT = "-DOCSTART-"
"""The word of the line that begins a document in the files of CoNLL-2003."""


@dataclass(frozen=True)
class Sentence:
    """A block of lines with a word each."""

    where: str
    """Its first line and its file, for errors."""
    number: int
    """The number of its first line."""
    lines: tuple[str, ...]
    """Its lines as they are in the file; `columns_of` splits them."""
    before: tuple[str, ...] = ()
    """Lines before it that begin a document."""


def columns_of(line: str) -> list[str]:
    """The columns of a line of CoNLL: separated by tabs if it has any, else by white space."""
    return line.split("\t") if "\t" in line else line.split()


def sentences(path: Path | Stream, least: int = 2) -> Iterator[Sentence]:
    """Sentences of a CoNLL file, separated by blank lines.

    Args:
        path: the file.
        least: the fewest columns; 2 for a word and a label.

    Raises:
        InvalidText: a line has another number of columns than those before it, or too few.
    """
    block: list[str] = []
    before: list[str] = []
    first, width = 0, 0
    for number, line in _and_a_blank_line(path):
        if line.strip():
            width_of_line = len(columns_of(line))
            width = width or width_of_line
            if width_of_line != width or width < least:
                raise InvalidText(
                    f"line {number} of {path} has {width_of_line} columns and "
                    + ("a word and a label are needed" if width < least else f"the lines before it {width}")
                    + "; mend the line, or set another format"
                )
            first = first or number
            block.append(line)
        elif block:
            if columns_of(block[0])[0] == DOCUMENT:
                before += block
            else:
                yield Sentence(f"line {first} of {path}", first, tuple(block), tuple(before))
                before = []
            block, first = [], 0


CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


@dataclass(frozen=True)
class ConlluSentence:
    """A sentence of Universal Dependencies."""

    where: str
    """Its first word's line and its file, for errors."""
    number: int
    """The number of that line."""
    rows: tuple[tuple[str, ...], ...]
    """For each word the values of `CONLLU_COLUMNS`."""

    def column(self, name: str) -> tuple[str, ...]:
        """The value of each word in one of `CONLLU_COLUMNS`."""
        place = CONLLU_COLUMNS.index(name)
        return tuple(row[place] for row in self.rows)


def conllu_sentences(path: Path | Stream) -> Iterator[ConlluSentence]:
    """Sentences of a CoNLL-U file, the format of Universal Dependencies.

    Comments are left out; so are multiword tokens (``3-4``, "don't"), because their words follow ("do",
    "n't"), and empty nodes (``8.1``), because they have no text.

    Raises:
        InvalidText: a line has another number of columns than ten, or is not the next word.
    """
    rows: list[tuple[str, ...]] = []
    first = 0
    for number, line in _and_a_blank_line(path):
        if line.startswith("#"):
            continue
        if not line.strip():
            if rows:
                yield ConlluSentence(f"line {first} of {path}", first, tuple(rows))
            rows, first = [], 0
            continue
        values = tuple(line.split("\t"))
        if len(values) != len(CONLLU_COLUMNS):
            raise InvalidText(
                f"line {number} of {path} has {len(values)} columns separated by tabs; CoNLL-U has "
                f"{len(CONLLU_COLUMNS)}"
            )
        first = first or number
        if "-" in values[0] or "." in values[0]:
            continue
        if values[0] != str(len(rows) + 1):
            raise InvalidText(
                f"line {number} of {path} is word {values[0]!r} where word {len(rows) + 1} should be"
            )
        rows.append(values)


def _and_a_blank_line(path: Path | Stream) -> Iterator[tuple[int, str]]:
    yield from lines(path)
    yield 0, ""


@dataclass(frozen=True)
class Question:
    """A question about a context."""

    where: str
    """Its id and its file, for errors."""
    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None
    """Texts and offsets in the context, as the file has them, so an offset may be wrong; empty if the context
    does not contain the answer, and None if the file does not say."""


def questions(path: Path | Stream) -> Iterator[Question]:
    """Questions of a file in the layout of SQuAD 1.1 and 2.0. It is one JSON value, so it is read whole.

    Raises:
        InvalidText: the file is not JSON or not laid out so.
    """
    try:
        content = json.loads("\n".join(text for _, text in lines(path)))
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield _question(question, paragraph["context"], path)
    except (ValueError, RecursionError) as error:
        raise not_json(path, error) from None
    except KeyError as error:
        raise InvalidText(f"{path} is not laid out as SQuAD: the key {error} is missing") from None
    except (TypeError, AttributeError):
        raise InvalidText(
            f"{path} is not laid out as SQuAD: a value is of another type; give data as a list "
            "of articles with paragraphs, each with a context and a list qas"
        ) from None


def _question(entry: Any, context: Any, path: Path | Stream) -> Question:
    where = f"question {entry['id']} of {path}"
    if not isinstance(entry["question"], str) or not isinstance(context, str):
        raise TypeError("a text that is no string")
    if "answers" not in entry:
        return Question(where, str(entry["id"]), entry["question"], context, None)
    answers = tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in answers):
        raise TypeError("an answer that is no string with a whole number")
    impossible = bool(entry.get("is_impossible"))
    return Question(where, str(entry["id"]), entry["question"], context, () if impossible else answers)
