"""Two encodings side by side: of one text, by characters, or of an edited text, by words."""

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.words.words import Words, stretch_of, texts_of, tokens_of, uncrossed
from unmask.text import Encoding

Run = tuple[int, int]
"""A run of tokens: the first, and the one after the last."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a text and the tokens that two encodings have for it."""

    start: int
    """Its first character in the text, or in the pair."""
    end: int
    in_pair: bool
    a: Run
    """Empty where the first encoding has no token for it: white space, or what was cut or dropped."""
    b: Run


@dataclass(frozen=True)
class Alignment:
    """The finest stretches of a text whose borders no token of either encoding crosses.

    The stretches of a text follow one another and cover each of its characters once, and so do their runs
    each token that is not special.
    """

    segments: tuple[Segment, ...]
    specials: tuple[tuple[int, int], ...]
    """Special tokens that stand for each other: those before the texts, between them and after them, each
    in their order."""
    tokens_a: int
    tokens_b: int

    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """A group for every token of both encodings, (Na,) and (Nb,), and how many groups there are.

        Stretches and special tokens that both have come first, in the order of the first encoding. What
        only one of them has is in the last group, which may have no token.
        """
        pairs = [
            (segment.a, segment.b)
            for segment in self.segments
            if segment.a[0] < segment.a[1] and segment.b[0] < segment.b[1]
        ]
        pairs += [((a, a + 1), (b, b + 1)) for a, b in self.specials]
        of_a = np.full(self.tokens_a, len(pairs), dtype=np.int64)
        of_b = np.full(self.tokens_b, len(pairs), dtype=np.int64)
        for group, (a, b) in enumerate(sorted(pairs)):
            of_a[slice(*a)] = group
            of_b[slice(*b)] = group
        return of_a, of_b, len(pairs) + 1


def align(a: Encoding, b: Encoding) -> Alignment:
    """Two encodings of one text side by side.

    Raises:
        InvalidRequest: they are encodings of different texts.
    """
    if (a.text, a.pair) != (b.text, b.pair):
        raise InvalidRequest("the two encodings are of different texts; encode the same text with both")
    segments: list[Segment] = []
    for pair, text in texts_of(a):
        borders = np.ones(len(text) + 1, dtype=np.bool_)
        for encoding in (a, b):
            borders = uncrossed(borders, encoding.offsets[tokens_of(encoding, pair)])
        starts = np.flatnonzero(borders[:-1])
        runs = zip(_runs(a, pair, starts), _runs(b, pair, starts), strict=True)
        ends = np.append(starts, len(text))[1:].tolist()
        for start, end, (of_a, of_b) in zip(starts.tolist(), ends, runs, strict=True):
            segments.append(Segment(start, end, pair, of_a, of_b))
    return Alignment(tuple(_merged(segments)), tuple(_specials(a, b)), len(a), len(b))


def _runs(encoding: Encoding, pair: bool, starts: NDArray[np.int64]) -> list[Run]:
    """The tokens of each stretch; one without characters is of the stretch that it stands before."""
    runs: list[Run] = [(0, 0)] * len(starts)
    tokens = tokens_of(encoding, pair)
    for token, number in zip(tokens, stretch_of(starts, encoding.offsets[tokens, 0]), strict=True):
        first, end = runs[number]
        runs[number] = (int(token) if first == end else first, int(token) + 1)
    return runs


def _merged(segments: list[Segment]) -> list[Segment]:
    """Neighboring stretches for which neither encoding has a token, as one."""
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if last and last.in_pair == segment.in_pair and _bare(last) and _bare(segment):
            merged[-1] = Segment(last.start, segment.end, segment.in_pair, (0, 0), (0, 0))
        else:
            merged.append(segment)
    return merged


def _bare(segment: Segment) -> bool:
    return segment.a[0] == segment.a[1] and segment.b[0] == segment.b[1]


def _specials(a: Encoding, b: Encoding) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for of_a, of_b in zip(_special_parts(a), _special_parts(b), strict=True):
        pairs += zip(of_a, of_b, strict=False)
    return pairs


def _special_parts(encoding: Encoding) -> tuple[list[int], ...]:
    """Special tokens before, between and after the texts."""
    others, special = np.flatnonzero(~encoding.special), np.flatnonzero(encoding.special)
    if not len(others):
        return special.tolist(), [], []
    first, last = others[0], others[-1]
    parts = special < first, (special > first) & (special < last), special > last
    return tuple(special[part].tolist() for part in parts)


Change = Literal["kept", "replaced", "inserted", "removed"]
"""The change of a word from the first text to the second."""


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
    keys_before, keys_after = _keys(before), _keys(after)
    head = _common(keys_before, keys_after)
    tail = _common(keys_before[head:][::-1], keys_after[head:][::-1])
    pairs = [WordPair("kept", word, word) for word in range(head)]
    # Equal beginnings and ends are most of an edited text, and difflib is quadratic in the worst case.
    middle = SequenceMatcher(
        None,
        keys_before[head : len(keys_before) - tail],
        keys_after[head : len(keys_after) - tail],
        autojunk=False,
    )
    for name, first, end, start, stop in middle.get_opcodes():
        rows, columns = range(head + first, head + end), range(head + start, head + stop)
        if name == "equal":
            pairs += [WordPair("kept", *pair) for pair in zip(rows, columns, strict=True)]
        else:
            pairs += _replaced(keys_before, keys_after, list(rows), list(columns))
    last = len(keys_before) - tail, len(keys_after) - tail
    return (*pairs, *(WordPair("kept", last[0] + word, last[1] + word) for word in range(tail)))


def groups_of(
    pairs: tuple[WordPair, ...], before: Words, after: Words
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """A group for every token of both texts, (Na,) and (Nb,), and how many groups there are.

    The words that both texts have come first, in order; then one group for the words of the first text
    alone, and one for those of the second alone. Either may have no token.
    """
    both = [(pair.before, pair.after) for pair in pairs if pair.before is not None and pair.after is not None]
    count = len(both)
    group_of_before = np.full(len(before), count, dtype=np.int64)
    group_of_after = np.full(len(after), count + 1, dtype=np.int64)
    for group, (first, second) in enumerate(both):
        group_of_before[first], group_of_after[second] = group, group
    return group_of_before[before.of_token], group_of_after[after.of_token], count + 2


Key = tuple[bool, bool, str]


def _keys(of: Words) -> list[Key]:
    return [(bool(of.special[word]), bool(of.in_pair[word]), of.surface(word)) for word in range(len(of))]


def _common(before: list[Key], after: list[Key]) -> int:
    """How many of the first words are the same."""
    same = (a == b for a, b in zip(before, after, strict=False))
    return next((at for at, equal in enumerate(same) if not equal), min(len(before), len(after)))


def _replaced(before: list[Key], after: list[Key], rows: list[int], columns: list[int]) -> list[WordPair]:
    """Words one by one, as long as both sides have one of the same text that is not special."""
    pairs: list[WordPair] = []
    while rows and columns:
        (special, in_pair, _), (after_special, after_in_pair, _) = before[rows[0]], after[columns[0]]
        if special or (after_in_pair and not in_pair and not after_special):
            pairs.append(WordPair("removed", rows.pop(0), None))
        elif after_special or in_pair != after_in_pair:
            pairs.append(WordPair("inserted", None, columns.pop(0)))
        else:
            pairs.append(WordPair("replaced", rows.pop(0), columns.pop(0)))
    pairs += [WordPair("removed", row, None) for row in rows]
    return pairs + [WordPair("inserted", None, column) for column in columns]
