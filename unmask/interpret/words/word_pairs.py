"""The words of two texts side by side: which were kept, replaced, inserted and removed."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.words.words import Words

Change = Literal["kept", "replaced", "inserted", "removed"]
"""What became of a word."""


@dataclass(frozen=True)
class WordPair:
    """A word of the first text and the word of the second that stands for it; None where there is none."""

    change: Change
    before: int | None
    after: int | None


def pair_words(before: Words, after: Words) -> tuple[WordPair, ...]:
    """Align the words of two texts: those of the same characters by `difflib`, the longest run first.

    Between two kept words, words are replaced one by one in their order; what is left over on one side was
    inserted or removed. A special token is kept or not, never replaced, and a word of the second text of a
    pair stands for no word of the first text. Every word of both texts is in exactly one pair, in order.
    """
    one, other = _keys(before), _keys(after)
    head = _common(one, other)
    tail = _common(one[head:][::-1], other[head:][::-1])
    found = [WordPair("kept", word, word) for word in range(head)]
    # Equal beginnings and ends are most of an edited text, and difflib is quadratic in the worst case.
    middle = SequenceMatcher(
        None, one[head : len(one) - tail], other[head : len(other) - tail], autojunk=False
    )
    for name, first, end, start, stop in middle.get_opcodes():
        rows, columns = range(head + first, head + end), range(head + start, head + stop)
        if name == "equal":
            found += [WordPair("kept", *pair) for pair in zip(rows, columns, strict=True)]
        else:
            found += _replaced(one, other, list(rows), list(columns))
    last = len(one) - tail, len(other) - tail
    return (*found, *(WordPair("kept", last[0] + word, last[1] + word) for word in range(tail)))


def groups_of(
    pairs: tuple[WordPair, ...], before: Words, after: Words
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """A group for every token of both texts, (Na,) and (Nb,), and how many groups there are.

    The words that both texts have come first, in order; then one group for the words of the first text
    alone, and one for those of the second alone. Either may have no token.
    """
    both = [(one.before, one.after) for one in pairs if one.before is not None and one.after is not None]
    count = len(both)
    group_of_before = np.full(len(before), count, dtype=np.int64)
    group_of_after = np.full(len(after), count + 1, dtype=np.int64)
    for group, (first, second) in enumerate(both):
        group_of_before[first], group_of_after[second] = group, group
    return group_of_before[before.of_token], group_of_after[after.of_token], count + 2


Key = tuple[bool, bool, str]


def _keys(of: Words) -> list[Key]:
    return [(bool(of.special[word]), bool(of.in_pair[word]), of.surface(word)) for word in range(len(of))]


def _common(one: list[Key], other: list[Key]) -> int:
    """How many of the first words are the same."""
    same = (a == b for a, b in zip(one, other, strict=False))
    return next((at for at, equal in enumerate(same) if not equal), min(len(one), len(other)))


def _replaced(one: list[Key], other: list[Key], rows: list[int], columns: list[int]) -> list[WordPair]:
    """Words one by one, as long as both sides have one of the same text that is not special."""
    found: list[WordPair] = []
    while rows and columns:
        (special, in_pair, _), (other_special, other_in_pair, _) = one[rows[0]], other[columns[0]]
        if special or (other_in_pair and not in_pair and not other_special):
            found.append(WordPair("removed", rows.pop(0), None))
        elif other_special or in_pair != other_in_pair:
            found.append(WordPair("inserted", None, columns.pop(0)))
        else:
            found.append(WordPair("replaced", rows.pop(0), columns.pop(0)))
    found += [WordPair("removed", row, None) for row in rows]
    return found + [WordPair("inserted", None, column) for column in columns]
