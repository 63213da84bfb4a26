"""Where words and sentences begin and end, from properties of characters and punctuation alone."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

JOINERS = "'’"
"""Characters that can join two letters into one word."""

IDEOGRAPHS = ((0x3040, 0x309F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Hiragana and Han: written without spaces, so that each character is a word."""

SPACELESS = (
    *IDEOGRAPHS,
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF)),
    *((0xA9E0, 0xA9FF), (0xAA60, 0xAADF)),
)
"""These, and the letters from Thai and Burmese to Tai Viet: spaces do not separate their words."""


def word_borders(text: str) -> NDArray[np.bool_]:
    """The positions where a word or white space begins or ends, (characters + 1,).

    A word is a run of letters, digits and underscores with the marks on them, an apostrophe between
    letters and a point or comma between digits included. Any other character is a word of its own, and so
    are Han and Hiragana characters; emoji sequences and flags stay whole. Simpler than Unicode's annex 29,
    which keeps tables for scripts that are written without spaces (Thai, Lao, Khmer): a run of those is
    one word here.
    """
    borders = np.ones(len(text) + 1, dtype=np.bool_)
    if len(text) < 2:
        return borders
    kinds, of = np.unique(_codes(text), return_inverse=True)
    characters = [chr(code) for code in kinds.tolist()]

    def each(holds: Callable[[str], bool]) -> NDArray[np.bool_]:
        return np.array([holds(character) for character in characters])[of]

    places = np.arange(len(text))
    space, flag, word = each(str.isspace), each(_is_flag), each(in_word)
    extends = each(is_extending)
    extends[0] = False
    extends[1:] &= ~space[:-1]
    base = np.maximum.accumulate(np.where(extends, 0, places))  # the character that marks up to here are on
    flags = places - np.maximum.accumulate(np.where(flag, -1, places))  # in a row up to here; two form one
    letter, digit, point = word & each(str.isalpha), each(str.isdigit), each(".,".__contains__)
    joins = np.zeros(len(text), dtype=np.bool_)  # marks inside a word: don't, 3.14
    joins[1:-1] = each(JOINERS.__contains__)[1:-1] & letter[:-2] & letter[2:]
    joins[1:-1] |= point[1:-1] & digit[:-2] & digit[2:]
    borders[1:-1] = ~(
        extends[1:]
        | (each("\u200d".__eq__)[:-1] & ~space[1:])
        | ((flags[:-1] % 2 == 1) & flag[1:])
        | (word[1:] & word[base[:-1]])
        | joins[1:]
        | joins[:-1]
    )
    return borders


def _codes(text: str) -> NDArray[np.uint32]:
    """The code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def in_word(character: str) -> bool:
    """Whether it is a letter, digit or underscore of a script that puts spaces between words."""
    code = ord(character)
    if code >= IDEOGRAPHS[0][0] and _is_among(code, IDEOGRAPHS):
        return False
    return character == "_" or unicodedata.category(character)[0] in "LN"


def is_spaceless(character: str) -> bool:
    """Whether it is of a script in which spaces do not separate words."""
    return character >= "\u0e00" and _is_among(ord(character), SPACELESS)


def _is_among(code: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= code <= last for first, last in ranges)


def occurrences(text: str, words: str) -> Iterator[tuple[int, int]]:
    """Where words occur in a text, in any case, and no letter, digit or mark continues them.

    Accents may be characters of their own or not. In scripts without spaces between words they occur
    wherever their characters do.
    """
    spellings = {unicodedata.normalize(form, words) for form in ("NFC", "NFD")} | {words}
    pattern = "|".join(map(re.escape, sorted(spellings)))
    for match in re.compile(pattern, re.IGNORECASE).finditer(text):
        start, end = match.span()
        base = start - 1
        while base >= 0 and is_extending(text[base]):
            base -= 1
        continues = base >= 0 and _joins_words(text[base])
        if not continues and not (end < len(text) and (is_extending(text[end]) or _joins_words(text[end]))):
            yield start, end


def _joins_words(character: str) -> bool:
    return in_word(character) and not is_spaceless(character)


def is_word(text: str) -> bool:
    """Whether the text contains a letter or digit of any script."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def is_extending(character: str) -> bool:
    """Whether it extends the character before it: marks, joiners, tags, and emoji skin tones."""
    code = ord(character)
    if code < 0x300:
        return False
    shade, tag = 0x1F3FB <= code <= 0x1F3FF, 0xE0020 <= code <= 0xE007F
    return shade or tag or code in (0x200C, 0x200D) or unicodedata.category(character)[0] == "M"


def _is_flag(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF


STOPS = ".!?…؟۔।॥։።။។"
"""What ends sentences before white space: in Latin, Arabic, Urdu, Devanagari and its kin, Armenian, Ethiopic,
Burmese and Khmer scripts. Chinese and Japanese have their own, which nothing need follow."""

FULL_STOP = re.compile(rf"(?<![{STOPS}])[{STOPS}]+[\"'”’»)\]]*\s+|(?<![。！？｡])[。！？｡]+[」』”’）]*\s*")
ABBREVIATION = re.compile(
    r"\b(?:[A-Z]|(?i:al|approx|cf|dr|e\.g|eds?|eqs?|etc|figs?|i\.e|mr|mrs|ms|nos?|pp?|prof|refs?|sec|st|vol|"
    r"vs))\.\s+\Z"
)
"""What ends in a point that does not end a sentence: initials and common abbreviations."""
LONGEST_ABBREVIATION = 16


def sentence_starts(text: str) -> Iterator[int]:
    """The places where a sentence begins after another one, in characters; the first, at 0, is left out."""
    for match in FULL_STOP.finditer(text):
        end = match.end()
        point = text[match.start()] == "." and match[0].rstrip() == "."
        abbreviated = point and ABBREVIATION.search(text, max(0, match.start() - LONGEST_ABBREVIATION), end)
        if end < len(text) and not text[end].islower() and not abbreviated:
            yield end


SENTENCE_ENDS = STOPS + "。！？"
CLOSERS = "\"'”’»)]"

ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "rev", "hon", "messrs", "mme", "mlle"),
        *("gen", "col", "capt", "lt", "vs", "etc", "fig", "no", "vol", "pp", "cf", "al", "ed", "eds"),
        *("e.g", "i.e", "inc", "ltd", "co", "approx", "dept", "est"),
    )
)

_END = f"[{re.escape(SENTENCE_ENDS)}]"
# A run of ends is looked at once, not from each of its characters.
_SENTENCE_END = re.compile(rf"(?<!{_END}){_END}+[{re.escape(CLOSERS)}]*(?=\s)")
_NEXT = re.compile(r"\s*(\S?)")
_LAST_WORD = 100
"""Characters in which the word before an end is looked for; longer ones are no abbreviations."""


def sentence_ends(text: str) -> list[int]:
    """The positions after the last character of each sentence that another text follows.

    Sentences end after periods, question marks and exclamation marks followed by whitespace, but not after
    an initial or a common English abbreviation, nor before a lowercase letter.
    """
    ends, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        words = text[max(start, match.start() - _LAST_WORD) : match.start()].split()
        last = words[-1].lstrip("\"'“‘«([") if words else ""
        initial = len(last) == 1 and last.isupper()
        if match.group() == "." and (initial or last.lower() in ABBREVIATIONS):
            continue
        following = _NEXT.match(text, match.end())
        if following is not None and following[1].islower():
            continue
        ends.append(match.end())
        start = match.end()
    return ends
