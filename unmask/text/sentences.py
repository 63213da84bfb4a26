"""Where sentences of running text begin and end, from punctuation alone."""

import re
from collections.abc import Iterator

FULL_STOP = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’»)\]]*\s+|(?<![。！？｡])[。！？｡]+[」』”’）]*\s*")
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


SENTENCE_ENDS = ".!?…。！？"
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
