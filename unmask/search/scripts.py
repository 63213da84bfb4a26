"""Words of all scripts: what BM25 counts of text that is not ASCII.

A word is written in several ways: composed or decomposed, wide or narrow, with or without vowel marks, with
invisible characters in it. `Folded` makes these alike, and keeps for every character where it stands.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

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

_JOINING = "\u1160-\u11ff\ud7b0-\ud7ff\uff9e\uff9f\uffa0\uffc2-\uffdc"
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
        if unicodedata.is_normalized("NFKC", text) and not _needs_care().search(text):
            self.text = text
            return
        parts, self._starts, self._ends = [], [], []
        text_of = _NON_JOINER.sub(BREAK, text)
        for found in _cluster().finditer(text_of):
            part = _spelled(found.group())
            parts.append(part)
            self._starts += [found.start()] * len(part)
            self._ends += [found.end()] * len(part)
        self.text = "".join(parts)

    def words(self) -> Iterator[Word]:
        """The words in order; ``start`` and ``end`` count characters of `text`."""
        for found in _word().finditer(self.text):
            yield Word(found.group(), *found.span(), str(found.lastgroup))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The range of characters of the original text for one of `text`."""
        return (start, end) if self._starts is None else (self._starts[start], self._ends[end - 1])


def units(run: str) -> list[tuple[int, int]]:
    """The ranges of the letters, with their marks, of a run in a script without spaces between words."""
    return [found.span() for found in _unit().finditer(run)]


def shape(word: str) -> str:
    """A word with every character as ``A``, ``a``, ``0`` or ``_``, to find its parts as in ASCII."""
    made: list[str] = []
    for character in word:
        if unicodedata.category(character)[0] == "M":
            made.append(made[-1] if made else "a")
        elif character == BREAK:
            made.append("_")
        else:
            kind = "A" if character.isupper() else "0" if character.isdigit() else "a"
            made.append("_" if character == "_" else kind)
    return "".join(made)


def cased(word: str) -> str:
    """A word without regard to case: ``STRASSE`` is ``straße`` and ``İ`` is ``i``."""
    word = unicodedata.normalize("NFKC", word.replace(BREAK, "").casefold())
    return unicodedata.normalize("NFC", word.replace("i\u0307", "i"))


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


@cache
def _classes() -> tuple[str, str]:
    """The marks and the symbols of Unicode, for a set of characters of a pattern."""
    found: dict[str, list[str]] = {"M": [], "So": []}
    for code in (*range(0x80, 0x1FC00), *range(0xE0100, 0xE01F0)):
        category = unicodedata.category(chr(code))
        for kind, members in found.items():
            if category.startswith(kind):
                members.append(chr(code))
    return "".join(found["M"]), "".join(found["So"])


@cache
def _unit() -> re.Pattern[str]:
    marks, _ = _classes()
    return re.compile(f"(?=\\w)[{_SPACELESS}][{marks}]*")


@cache
def _word() -> re.Pattern[str]:
    marks, symbols = _classes()
    letter, own = f"(?![{_SPACELESS}])\\w[{marks}]*", f"(?=\\w)[{_SPACELESS}][{marks}]*"
    flag = "[\U0001f1e6-\U0001f1ff]{2}"
    return re.compile(
        f"(?P<word>{letter}(?:{BREAK}*{letter})*)|(?P<run>{own}(?:{BREAK}*{own})*)|(?P<symbol>{flag}|[{symbols}])"
    )


@cache
def _cluster() -> re.Pattern[str]:
    """A character with all that belongs to it."""
    marks, _ = _classes()
    return re.compile(f".(?:[{marks}{_JOINING}]|{_INVISIBLE.pattern})*", re.DOTALL)


@cache
def _needs_care() -> re.Pattern[str]:
    """What `Folded` changes even where text is in Unicode's normal form."""
    letters = "".join(map(chr, _SPELLINGS))
    digits = "".join(chr(code) for code in range(0x80, 0x1FC00) if chr(code).isdecimal())
    return re.compile(f"{_INVISIBLE.pattern}|{_UNMARKED.pattern}|[{re.escape(letters)}{digits}]")
