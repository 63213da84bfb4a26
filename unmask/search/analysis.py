"""Text to terms: what BM25 counts."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from unmask.base.arguments import check_choice
from unmask.base.optional import require
from unmask.search.options import Rules, Stemmer
from unmask.search.scripts import CHUNK, Folded, Word, cased, shape, units

WORD = re.compile(r"\w+")
PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\da-zA-Z_]+")
"""The parts of an identifier: ``writeBoolean`` has two, and so has ``HTTPServer``."""

_ENGLISH = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they
this to was will with
"""
STOP_WORDS = frozenset(_ENGLISH.split())
"""English words that are in nearly every passage; the list of Lucene's ``EnglishAnalyzer``."""


REMEMBERED, REMEMBERED_LENGTH = 50_000, 40
"""How many words are remembered with their terms, and how long they may be: together at most some 30 MB."""

SNOWBALL_CACHE = 0
"""Snowball's own memory of stems, which would keep words of any length."""

Span = tuple[int, int]
Analyzed = tuple[tuple[str, ...], tuple[Span, ...]]
"""Terms, and the range of characters of each."""


class Term(NamedTuple):
    """One term and where it stands."""

    term: str
    start: int
    end: int


@dataclass(frozen=True)
class Analyzer:
    """How text becomes terms: words without case, identifiers also in parts, stop words left out, stems.

    A word is a run of letters, marks, digits and underscores. A word such as ``readFile`` or
    ``read_file`` counts once as a whole and once for each of its parts. In scripts without spaces between
    words every character counts, and so does every pair of neighbors; a query counts pairs alone, unless it
    has a lone character.
    """

    stemmer: Stemmer = "english"
    identifiers: bool = True
    """Whether the parts of an identifier count, too."""
    rules: Rules = "unicode"
    """``"unicode"`` as above; ``"words"`` is that of older indexes, which cuts words at marks and lets a run
    of Chinese be one word. Both are the same for ASCII."""

    def __post_init__(self) -> None:
        check_choice("stemmer", self.stemmer, get_args(Stemmer))
        check_choice("rules", self.rules, get_args(Rules))

    def __reduce__(self) -> tuple[Any, ...]:
        return Analyzer, (self.stemmer, self.identifiers, self.rules)

    def terms(self, text: str) -> Iterator[Term]:
        """The terms of a text in order, with the range of characters of each."""
        for match in self._pattern.finditer(text):
            start = match.start()
            for term, (begin, end) in zip(*self._analyzed(match.group()), strict=True):
                yield Term(term, start + begin, start + end)

    def counted(self, text: str) -> list[str]:
        """The terms of a text without their places."""
        terms: list[str] = []
        short = self._short
        for chunk in self._pattern.findall(text):
            terms += (short(chunk) if len(chunk) <= REMEMBERED_LENGTH else self._analyzed(chunk))[0]
        return terms

    def asked(self, query: str) -> list[str]:
        """The terms that a query looks for."""
        if query.isascii() or self.rules == "words":
            return self.counted(query)
        chunks = self._pattern.findall(query)
        return [term for chunk in chunks for term in self._analyzed(chunk, query=True)[0]]

    @property
    def _pattern(self) -> re.Pattern[str]:
        return WORD if self.rules == "words" else CHUNK

    def _analyzed(self, chunk: str, query: bool = False) -> Analyzed:
        """The terms of what the pattern finds, and the range of each in it."""
        if self.rules == "words" or chunk.isascii():
            spans = list(self._spans(chunk))
            terms = [(self._stem(chunk[begin:end].lower()), (begin, end)) for begin, end in spans]
        else:
            folded = Folded(chunk)
            terms = [
                (term, folded.span(begin, end))
                for word in folded.words()
                for term, begin, end in self._of_word(word, query)
            ]
        terms_with_text = [term for term in terms if term[0]]
        return tuple(term for term, _ in terms_with_text), tuple(span for _, span in terms_with_text)

    def _of_word(self, word: Word, query: bool) -> Iterator[tuple[str, int, int]]:
        if word.kind == "run":
            places = units(word.text)
            pairs = [(begin, end) for (begin, _), (_, end) in pairwise(places)]
            for begin, end in pairs if query and pairs else sorted(places + pairs):
                yield cased(word.text[begin:end]), word.start + begin, word.start + end
            return
        spans = self._spans(word.text if word.text.isascii() else shape(word.text))
        for begin, end in spans:
            yield self._stem(cased(word.text[begin:end])), word.start + begin, word.start + end

    def _spans(self, word: str) -> Iterator[Span]:
        """The word and, of an identifier, its parts."""
        yield 0, len(word)
        if self.identifiers and ("_" in word or not (word.islower() or word[1:].islower() or word.isdigit())):
            parts = [part.span() for part in PART.finditer(word)]
            if len(parts) > 1:
                yield from ((a, b) for a, b in parts if b - a > 1)

    def _stem(self, word: str) -> str:
        if self.stemmer == "english" and word in STOP_WORDS:
            return ""
        return word if self._snowball is None else str(self._snowball.stemWord(word))

    @cached_property
    def _short(self) -> Callable[[str], Analyzed]:
        """`_analyzed` of short words; a text repeats most of its words."""
        return lru_cache(maxsize=REMEMBERED)(self._analyzed)

    @cached_property
    def _snowball(self) -> Any:
        if self.stemmer == "none":
            return None
        require("search")
        return import_module("Stemmer").Stemmer(self.stemmer, SNOWBALL_CACHE)
