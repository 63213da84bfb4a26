"""Text to terms: what BM25 counts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, get_args

from unmask.arguments import check_choice
from unmask.optional import require
from unmask.search.options import Stemmer

WORD = re.compile(r"\w+")
PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\da-zA-Z_]+")
"""The parts of an identifier: ``writeBoolean`` has two, and so has ``HTTPServer``."""

_ENGLISH = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they
this to was will with
"""
STOP_WORDS = frozenset(_ENGLISH.split())
"""English words that are in nearly every passage; the list of Lucene's ``EnglishAnalyzer``."""


class Term(NamedTuple):
    """One term and where it stands."""

    term: str
    start: int
    end: int


@dataclass(frozen=True)
class Analyzer:
    """How text becomes terms: words in lower case, identifiers also in parts, stop words left out, stems.

    A word is a run of letters, digits and underscores. A word such as ``readFile`` or ``read_file`` counts
    once as a whole and once for each of its parts.
    """

    stemmer: Stemmer = "english"
    identifiers: bool = True
    """Whether the parts of an identifier count, too."""

    def __post_init__(self) -> None:
        check_choice("stemmer", self.stemmer, get_args(Stemmer))

    def terms(self, text: str) -> Iterator[Term]:
        """The terms of a text in order, with the range of characters of each."""
        for found in WORD.finditer(text):
            start, end = found.span()
            for begin, until in self._spans(found.group(), start, end):
                term = self._stem(text[begin:until].lower())
                if term:
                    yield Term(term, begin, until)

    def counted(self, text: str) -> list[str]:
        """The terms of a text without their places."""
        return [found.term for found in self.terms(text)]

    def _spans(self, word: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        yield start, end
        if self.identifiers and ("_" in word or not (word.islower() or word[1:].islower() or word.isdigit())):
            parts = [part.span() for part in PART.finditer(word)]
            if len(parts) > 1:
                yield from ((start + a, start + b) for a, b in parts if b - a > 1)

    def _stem(self, word: str) -> str:
        stem = self._stems.get(word)
        if stem is None:
            english = self.stemmer == "english"
            stem = "" if english and word in STOP_WORDS else word
            if stem and self._snowball is not None:
                stem = self._snowball.stemWord(stem)
            self._stems[word] = stem
        return stem

    @cached_property
    def _stems(self) -> dict[str, str]:
        """Words that were stemmed before; a text repeats most of its words."""
        return {}

    @cached_property
    def _snowball(self) -> Any:
        if self.stemmer == "none":
            return None
        require("search")
        return import_module("Stemmer").Stemmer(self.stemmer)
