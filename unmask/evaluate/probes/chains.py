"""Coreference chains from files in the form of CoNLL-2012."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.probes.files import files_in
from unmask.text.lines import lines

ENDINGS = ("conll",)
"""Of the names of files in a folder, such as ``.conll`` and ``.v4_gold_conll``."""

LEAST_COLUMNS = 5
"""Document, part, word number, word, part of speech; the chains are in the last column."""

PRONOUNS = ("PRP", "PRON", "WP")
NOUNS = ("NN", "NOUN", "PROPN", *PRONOUNS)
AFTER_HEAD = (
    "IN",
    "ADP",
    "WDT",
    "WP",
    "WRB",
    "TO",
    "VBG",
    "VBN",
    "VB",
    "POS",
    "PART",
    "CC",
    ",",
    ":",
    "-LRB-",
    "PUNCT",
)
"""Beginnings of parts of speech (Penn Treebank or universal) that follow a mention's head."""


@dataclass(frozen=True)
class Mention:
    """A mention, in words of its document from 0; `end` is not included."""

    chain: int
    start: int
    end: int
    head: int


@dataclass(frozen=True, eq=False)
class Document:
    """A part of a document, as CoNLL-2012 divides them."""

    name: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    sentences: tuple[tuple[int, int], ...]
    """The first word of each sentence, and the word after its last."""
    mentions: tuple[Mention, ...]
    """In the order of their heads."""


def read_coreference(path: Path, limit: int | None = None) -> list[Document]:
    """The documents of a file in the form of CoNLL-2012, or of a folder of such files.

    A line has at least `LEAST_COLUMNS` columns separated by white space; the last one marks where mentions of
    chains begin and end: ``(3``, ``3)``, ``(3)``, several joined by ``|``, or ``-``. A mention's head is the
    last noun or pronoun before what follows the head (a preposition, a relative clause, a comma ...) by the
    parts of speech, or the last word without such a noun; trees are not read.

    Raises:
        InvalidRequest: there is no file or document, or ``limit`` is below 1.
        InvalidText: a file cannot be read, a line has too few columns, or brackets do not match.
    """
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1 (--limit)")
    found = []
    for file in files_in(path, ENDINGS):
        for one in _documents(file):
            found.append(one)
            if len(found) == limit:
                return found
    if not found:
        raise InvalidRequest(f"{path} holds no document with words; name another file (--data)")
    return found


def _documents(path: Path) -> Iterator[Document]:
    reading = _Reading(str(path))
    for number, line in lines(path):
        if line.startswith("#"):
            if reading.words:
                yield reading.document()
            reading = _Reading(line.removeprefix("#begin document").strip() or str(path))
        elif not line.strip():
            reading.end_sentence()
        else:
            reading.add(line.split(), f"line {number} of {path}")
    if reading.words:
        yield reading.document()


class _Reading:
    """A document while its lines are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.words: list[str] = []
        self.tags: list[str] = []
        self.borders = [0]
        self.open: dict[int, list[int]] = {}
        self.spans: list[tuple[int, int, int]] = []

    def add(self, columns: list[str], where: str) -> None:
        if len(columns) < LEAST_COLUMNS:
            raise InvalidText(
                f"{where} has {len(columns)} columns; CoNLL-2012 has the word in the fourth, the part of "
                "speech in the fifth and the chains in the last"
            )
        word = len(self.words)
        self.words.append(columns[3])
        self.tags.append(columns[4])
        for mark in columns[-1].split("|"):
            shape = re.fullmatch(r"(\()?(\d+)(\))?", mark)
            if shape is None and mark not in ("-", "_", "*"):
                raise InvalidText(
                    f"{where} has {mark!r} in its last column; chains are written (3, 3), (3) or -"
                )
            if shape is None:
                continue
            opens, chain, closes = shape[1], int(shape[2]), shape[3]
            if opens:
                self.open.setdefault(chain, []).append(word)
            if closes:
                if not self.open.get(chain):
                    raise InvalidText(f"{where} closes a mention of chain {chain}, and none is open")
                self.spans.append((chain, self.open[chain].pop(), word + 1))

    def end_sentence(self) -> None:
        if len(self.words) > self.borders[-1]:
            self.borders.append(len(self.words))

    def document(self) -> Document:
        self.end_sentence()
        left = [chain for chain, starts in self.open.items() if starts]
        if left:
            raise InvalidText(f"a mention of chain {left[0]} is never closed in {self.name}")
        tags = tuple(self.tags)
        made = [Mention(chain, start, end, head_of(tags, start, end)) for chain, start, end in self.spans]
        return Document(
            self.name,
            tuple(self.words),
            tags,
            tuple(zip(self.borders, self.borders[1:], strict=False)),
            tuple(sorted(made, key=lambda one: (one.head, one.start, one.chain))),
        )


def head_of(tags: Sequence[str], start: int, end: int) -> int:
    """The head word of a mention by its parts of speech, see `read_coreference`."""
    noun = None
    for word in range(start, end):
        if noun is not None and tags[word].startswith(AFTER_HEAD):
            break
        if tags[word].startswith(NOUNS):
            noun = word
    return end - 1 if noun is None else noun
