"""Text to terms, in all scripts: what BM25 counts.

A word is written in several ways: composed or decomposed, wide or narrow, with or without vowel marks, with
invisible characters in it. `Folded` makes these alike, and keeps for every character where it stands.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from unmask.base.arguments import check_choice
from unmask.base.optional import require
from unmask.search.options import Rules, Stemmer

CHUNK = re.compile("[0-9A-Z_a-z\u00a1-\u1fff\u200b-\u200f\u202a-\u202e\u2060-\U0010ffff]+")
"""What can belong to one word: of ASCII text its words, else also what `Folded.words` takes apart."""

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f"
    "\ua980-\ua9ff\uaa60-\uaadf"  # Thai to Tai Viet
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Hangul, whose particles follow a word without a space
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u318f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\ua4cf\uf900-\ufaff"
    "\U00016fe0-\U00018d8f\U0001aff0-\U0001b2ff\U00020000-\U0003ffff"
)
"""Scripts in which spaces do not separate words."""
_SPACELESS_LETTER = re.compile(f"[{_SPACELESS}]")

_JOINING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\uff9e\uff9f\uffa0\uffc2-\uffdc]")
"""Letters that form one character with those before them: Hangul vowels and ends, narrow voicing marks."""

BREAK = "\u200b"
"""Zero-width space: where a line, and perhaps a word, may end. The word counts whole and in parts."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)
"""What shows nothing of its own: soft hyphens, joiners, directions, variants of form and skin."""

_NON_JOINER = re.compile("(?<=[\u0600-\u06ff])\u200c(?=[\u0600-\u06ff])")
"""In Persian it stands where others write a space."""

_UNMARKED = re.compile("[\u0370-\u03ff\u0590-\u077f\u0870-\u08ff\u1f00-\u1fff\ufb1d-\ufdff\ufe70-\ufefc]")
"""Greek, Hebrew, Arabic and Syriac, whose words are mostly written without the marks that they can have."""

_SPELLINGS = str.maketrans(
    {"\u0640": "", "\u06cc": "\u064a", "\u0649": "\u064a", "\u06a9": "\u0643", "\u0629": "\u0647"}
    | {"\u0451": "\u0435", "\u0401": "\u0415", "\u02bc": "'", "\u2044": "/"}
)
"""Letters that keyboards and habits exchange, such as two forms of yeh, or ё and е."""


LONGEST_CLUSTER = 8
"""The longest character with its marks whose spelling is remembered."""

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


class _Kinds(dict[int, str]):
    """The kind of each character as a letter, for `str.translate`: patterns are quick over few letters."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character == BREAK:
            kind = "b"
        elif _INVISIBLE.match(character):
            kind = "i"
        elif _JOINING.match(character):
            kind = "j"
        elif category[0] == "M":
            kind = "m"
        elif 0x1F1E6 <= code <= 0x1F1FF:
            kind = "f"
        elif character.isalnum() or character == "_":
            kind = "n" if _SPACELESS_LETTER.match(character) else "w"
        else:
            kind = "s" if category == "So" else " "
        self[code] = kind
        return kind


class _Shapes(dict[int, str]):
    """Each character as `shape` has it."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = "A" if character.isupper() else "0" if character.isdigit() else "a"
        self[code] = kind if character not in f"_{BREAK}" else "_"
        return self[code]


# Both hold at most the characters of Unicode.
_KINDS, _SHAPES = _Kinds(), _Shapes()

_CLUSTER = re.compile(".[mij]*")
_WORD = re.compile("(?P<word>wm*(?:b*wm*)*)|(?P<run>[nj]m*(?:b*[nj]m*)*)|(?P<symbol>ff?|s)")
_UNIT = re.compile("[nj]m*")


class Word(NamedTuple):
    """A word, a character of a script without spaces between words, or a symbol, and where it stands."""

    text: str
    start: int
    end: int
    kind: str
    """``word``, ``run`` (of a script without spaces) or ``symbol``."""


class Folded:
    """A text whose spellings are made alike, with the place of each character in it."""

    def __init__(self, text: str) -> None:
        self._starts: list[int] | None = None
        if unicodedata.is_normalized("NFKC", text) and not any(map(_changes, set(text))):
            self.text = text
            return
        parts, self._starts, self._ends = [], [], []
        text_of = _NON_JOINER.sub(BREAK, text)
        for match in _CLUSTER.finditer(text_of.translate(_KINDS)):
            start, end = match.span()
            cluster = text_of[start:end]
            part = _spelled(cluster) if end - start <= LONGEST_CLUSTER else _spelled.__wrapped__(cluster)
            parts.append(part)
            self._starts += [start] * len(part)
            self._ends += [end] * len(part)
        self.text = "".join(parts)

    def words(self) -> Iterator[Word]:
        """The words in order; ``start`` and ``end`` count characters of `text`."""
        for match in _WORD.finditer(self.text.translate(_KINDS)):
            start, end = match.span()
            yield Word(self.text[start:end], start, end, str(match.lastgroup))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The range of characters of the original text for one of `text`."""
        return (start, end) if self._starts is None else (self._starts[start], self._ends[end - 1])


def units(run: str) -> list[tuple[int, int]]:
    """The ranges of the letters, with their marks, of a run in a script without spaces between words."""
    return [match.span() for match in _UNIT.finditer(run.translate(_KINDS))]


def shape(word: str) -> str:
    """A word with every character as ``A``, ``a``, ``0`` or ``_``, to find its parts as in ASCII."""
    return word.translate(_SHAPES)


def cased(word: str) -> str:
    """A word without regard to case: ``STRASSE`` is ``straße`` and ``İ`` is ``i``."""
    word = unicodedata.normalize("NFKC", word.replace(BREAK, "").casefold())
    return unicodedata.normalize("NFC", word.replace("i\u0307", "i"))


@lru_cache(maxsize=10_000)
def _spelled(cluster: str) -> str:
    """One character with its marks, in the spelling that all are brought to."""
    spelled = unicodedata.normalize("NFKC", _INVISIBLE.sub("", cluster))
    if _UNMARKED.search(spelled):
        plain = unicodedata.normalize("NFKD", spelled)
        spelled = unicodedata.normalize("NFC", "".join(c for c in plain if unicodedata.category(c) != "Mn"))
    digits = (str(unicodedata.decimal(c)) if c.isdecimal() else c for c in spelled)
    spelled = "".join(digits).translate(_SPELLINGS)
    symbol = unicodedata.category(cluster[0]) == "So" and spelled.isalnum()
    return f" {spelled} " if symbol else spelled  # Word™ is not Wordtm


@lru_cache(maxsize=10_000)
def _changes(character: str) -> bool:
    """Whether `Folded` changes a character even where text is in Unicode's normal form."""
    digit = character.isdecimal() and not character.isascii()
    special = _INVISIBLE.match(character) or _UNMARKED.match(character)
    return digit or special is not None or ord(character) in _SPELLINGS


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
