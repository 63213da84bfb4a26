"""How good a place is to begin a passage: at a heading, a paragraph, a sentence, a word, or within a word."""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from unmask.text.sentences import sentence_starts

SHARED, WITHIN, WORD, SENTENCE, PARAGRAPH, SECTION = range(-1, 5)
"""Levels of a border, the best last: within a character, within a word, at a word after white space, at a
sentence (in code: a line), at a paragraph (a blank line), at a heading (a definition without indent)."""

NEWLINE = r"(?:\r\n|\r(?!\n)|\n)"
BLANK = re.compile(rf"{NEWLINE}[ \t]*{NEWLINE}\s*")
HEADING = re.compile(rf"(?:^|(?<=[\n\r])) {{0,3}}#{{1,6}}[ \t][^\n\r]*{NEWLINE}\s*")
"""An ATX heading of Markdown and the blank lines after it, at whose end the section's text begins."""
ITEM = re.compile(r"(?<=[\n\r])[ \t]*(?=(?:[-*+•]|\d{1,3}[.)])[ \t])")

LINE = re.compile(rf"{NEWLINE}\s*")
DEFINITION = re.compile(rf"{NEWLINE}[ \t]*{NEWLINE}\s*(?<=[\n\r])(?=[^\s\])}}])")


def border_levels(text: str, kind: str, spans: NDArray[np.int64]) -> NDArray[np.int8]:
    """The level of a border before each token, (N,).

    Args:
        text: the document.
        kind: ``code`` or a kind of prose; see `Document.kind`.
        spans: the characters of each token, in order, (N, 2).
    """
    starts = spans[:, 0]
    ends = np.concatenate(([0], np.maximum.accumulate(spans[:, 1])[:-1]))
    levels = np.where(starts < ends, SHARED, np.where(starts == ends, WITHIN, WORD)).astype(np.int8)
    for level, places in _code(text) if kind == "code" else _prose(text):
        here = np.searchsorted(places, starts, "right") > np.searchsorted(places, ends, "left")
        levels[here] = level
    return levels


def _prose(text: str) -> Iterable[tuple[int, NDArray[np.int64]]]:
    """The places of each level, the lower levels first."""
    yield SENTENCE, _array([*sentence_starts(text), *(match.end() for match in ITEM.finditer(text))])
    headings = [(match.start(), match.end()) for match in HEADING.finditer(text)]
    below = {end for _, end in headings}
    yield PARAGRAPH, _array(match.end() for match in BLANK.finditer(text))
    if headings:
        # A heading stays with the text below it, also where another heading follows.
        yield WORD, _array(below)
        yield SECTION, _array(start + _spaces(text, start) for start, _ in headings if start not in below)


def _code(text: str) -> Iterable[tuple[int, NDArray[np.int64]]]:
    yield SENTENCE, _array(match.end() for match in LINE.finditer(text))
    yield PARAGRAPH, _array(match.end() for match in BLANK.finditer(text))
    yield SECTION, _array(match.end() for match in DEFINITION.finditer(text))


def _spaces(text: str, start: int) -> int:
    return len(text[start : start + 4]) - len(text[start : start + 4].lstrip(" "))


def _array(places: Iterable[int]) -> NDArray[np.int64]:
    return np.array(sorted(places), dtype=np.int64)
