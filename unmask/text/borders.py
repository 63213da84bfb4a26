"""Word boundaries, from Unicode character properties alone."""

import unicodedata

import numpy as np
from numpy.typing import NDArray

JOINERS = "'’"
"""Characters that can join two letters into one word."""

IDEOGRAPHS = ((0x3040, 0x309F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Hiragana and Han: written without spaces, so that each character is a word."""


def word_borders(text: str) -> NDArray[np.bool_]:
    """The positions where a word or white space begins or ends, (characters + 1,).

    A word is a run of letters, digits and underscores with the marks on them, an apostrophe between
    letters and a point or comma between digits included. Any other character is a word of its own, and so
    are Han and Hiragana characters; emoji sequences and flags stay whole. Simpler than Unicode's annex 29,
    which keeps tables for scripts that are written without spaces (Thai, Lao, Khmer): a run of those is
    one word here.
    """
    borders = np.ones(len(text) + 1, dtype=np.bool_)
    base = text[:1]  # the base character of the marks before this position
    flags = 0  # consecutive regional indicators before this position; two form one flag
    for place in range(1, len(text)):
        before, here = text[place - 1], text[place]
        flags = flags + 1 if _is_flag(before) else 0
        extends = _extends(here) and not before.isspace()
        borders[place] = not (
            extends
            or (before == "\u200d" and not here.isspace())
            or (flags % 2 == 1 and _is_flag(here))
            or (in_word(here) and in_word(base))
            or _joins(text, place)
            or _joins(text, place - 1)
        )
        if not extends:
            base = here
    return borders


def in_word(character: str) -> bool:
    """Whether it is a letter, digit or underscore of a script that puts spaces between words."""
    code = ord(character)
    if code >= IDEOGRAPHS[0][0] and any(first <= code <= last for first, last in IDEOGRAPHS):
        return False
    return character == "_" or unicodedata.category(character)[0] in "LN"


def is_word(text: str) -> bool:
    """Whether the text contains a letter or digit of any script."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def _joins(text: str, place: int) -> bool:
    """Whether the mark at ``place`` is part of the word around it: don't, 3.14."""
    if not 0 < place < len(text) - 1:
        return False
    before, mark, after = (text[at] for at in (place - 1, place, place + 1))
    if mark in JOINERS:
        return before.isalpha() and after.isalpha() and in_word(before) and in_word(after)
    return mark in ".," and before.isdigit() and after.isdigit()


def _extends(character: str) -> bool:
    """Whether it extends the character before it: marks, joiners, tags, and emoji skin tones."""
    code = ord(character)
    if code < 0x300:
        return False
    shade, tag = 0x1F3FB <= code <= 0x1F3FF, 0xE0020 <= code <= 0xE007F
    return shade or tag or code in (0x200C, 0x200D) or unicodedata.category(character)[0] == "M"


def _is_flag(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF
