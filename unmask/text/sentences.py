"""Where sentences begin, from punctuation alone."""

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
