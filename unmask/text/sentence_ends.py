"""Where sentences of running text end."""

import re

SENTENCE_ENDS = ".!?…。！？"
CLOSERS = "\"'”’»)]"

ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "rev", "hon", "messrs", "mme", "mlle"),
        *("gen", "col", "capt", "lt", "vs", "etc", "fig", "no", "vol", "pp", "cf", "al", "ed", "eds"),
        *("e.g", "i.e", "inc", "ltd", "co", "approx", "dept", "est"),
    )
)

_SENTENCE_END = re.compile(rf"[{re.escape(SENTENCE_ENDS)}]+[{re.escape(CLOSERS)}]*(?=\s)")


def sentence_ends(text: str) -> list[int]:
    """The positions after the last character of each sentence that another text follows.

    Sentences end after periods, question marks and exclamation marks followed by whitespace, but not after
    an initial or a common English abbreviation, nor before a lowercase letter.
    """
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        words = text[start : match.start()].split()
        last = words[-1].lstrip("\"'“‘«([") if words else ""
        initial = len(last) == 1 and last.isupper()
        if match.group() == "." and (initial or last.lower() in ABBREVIATIONS):
            continue
        if text[match.end() :].lstrip()[:1].islower():
            continue
        found.append(match.end())
        start = match.end()
    return found
