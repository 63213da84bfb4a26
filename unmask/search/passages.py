"""Passages: the parts of a document that are searched, cut where a reader would cut."""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest, InvalidText
from unmask.search.syntax import Range, Syntax
from unmask.text import Encoding
from unmask.text.borders import sentence_starts, word_borders

SHARED, WITHIN, WORD, SENTENCE, NESTED, PARAGRAPH, SECTION = range(-1, 6)
"""Levels of a border, the best last: within a character, within a word, at a word after white space, at a
sentence (in code: a line), at a statement within another one (in code with `Syntax`), at a paragraph (in
code: a blank line, or with `Syntax` a statement of a definition), at a heading (in code: a definition)."""


LEAST_UNIT = 16
"""Tokens of source code that a passage has at least before a definition begins another one."""

CONTEXT_SHARE = 4
"""At most one part in so many of a passage's tokens is context."""

NEWLINE = r"(?:\r\n|\r(?!\n)|\n)"


BLANK = re.compile(rf"{NEWLINE}[ \t]*{NEWLINE}\s*")


HEADING = re.compile(rf"(?:^|(?<=[\n\r])) {{0,3}}#{{1,6}}[ \t][^\n\r]*{NEWLINE}\s*")
"""An ATX heading of Markdown and the blank lines after it, at whose end the section's text begins."""


ITEM = re.compile(r"(?<=[\n\r])[ \t]*(?=(?:[-*+•]|\d{1,3}[.)])[ \t])")


LINE = re.compile(rf"{NEWLINE}\s*")


DEFINITION = re.compile(rf"{NEWLINE}[ \t]*{NEWLINE}\s*(?<=[\n\r])(?=[^\s\])}}])")


@dataclass(frozen=True)
class Passage:
    """A part of a document: a range of its characters and the tokens in it."""

    start: int
    """The first character, in the document's text."""
    end: int
    """The character after the last one."""
    tokens: int
    """Tokens of the document in it, without special tokens."""
    first_token: int
    """The first of them, counted from the document's first token without special tokens."""
    context: tuple[Range, ...] = ()
    """Characters of the document before it that are embedded with it: the headers of the definitions that it
    stands in, see `Syntax.headers`. They are no part of its text."""


@dataclass(frozen=True)
class TokensIndexed:
    """How many tokens of documents are in an index, and how many are not."""

    tokens: int = 0
    """Tokens in at least one passage, without special tokens."""
    dropped: int = 0
    """Tokens after the end of what was read."""

    @classmethod
    def of(cls, encoding: Encoding, passages: Sequence[Passage] | None = None) -> "TokensIndexed":
        """The tokens of one document; of all that was tokenized if ``passages`` is None."""
        held = int((encoding.sequence_ids == 0).sum())
        tokens = held
        if passages is not None:
            covered = np.zeros(held, dtype=np.bool_)
            for passage in passages:
                covered[passage.first_token : passage.first_token + passage.tokens] = True
            tokens = int(covered.sum())
        return cls(tokens, held - tokens + encoding.truncated_tokens)

    def at_least_dropped(self, dropped: int) -> "TokensIndexed":
        """These counts, or those of a view that dropped more tokens, if it did."""
        total = self.tokens + self.dropped
        dropped = min(max(self.dropped, dropped), total)
        return TokensIndexed(total - dropped, dropped)

    def __add__(self, other: "TokensIndexed") -> "TokensIndexed":
        return TokensIndexed(self.tokens + other.tokens, self.dropped + other.dropped)


@dataclass(frozen=True, eq=False)
class _Cutter:
    """Chooses where passages of one document end and begin."""

    text: str
    spans: NDArray[np.int64]
    levels: NDArray[np.int8]
    units: bool = False
    """Whether a passage ends at the first section that begins after its first `LEAST_UNIT` tokens."""
    syntax: Syntax | None = None

    def passage(self, first: int, end: int, context: tuple[Range, ...] = ()) -> Passage:
        """The passage of some tokens."""
        tokens = self.spans[first:end]
        return Passage(int(tokens[:, 0].min()), int(tokens[:, 1].max()), end - first, first, context)

    def context(self, first: int, most: int) -> tuple[tuple[Range, ...], int]:
        """What is embedded before a passage that begins at ``first``, and its tokens, at most so many.

        Headers are taken from the inmost definition outwards, as many tokens as fit from the start of each.
        """
        ranges, left = list[Range](), most
        for part in self.syntax.headers(int(self.spans[first, 0])) if self.syntax else ():
            begin, end = np.searchsorted(self.spans[:, 0], part).tolist()
            end = min(end, begin + left, first)
            if begin < end:
                ranges.append(Range(int(self.spans[begin, 0]), int(self.spans[begin:end, 1].max())))
                left -= end - begin
        return tuple(sorted(ranges)), most - left

    def end(self, first: int, done: int, room: int) -> int:
        """The token after the last of a passage that begins at ``first``; later than ``done``."""
        limit = first + room
        if self.units:
            begin = max(done + 1, first + LEAST_UNIT)
            sections = self.levels[begin : limit + 1] == SECTION
            if sections.any():
                return begin + int(np.argmax(sections))
        if limit >= len(self.levels):
            return len(self.levels)
        half = self.levels[(begin := max(done + 1, first + (room + 1) // 2)) : limit + 1]
        if half.max() >= WORD:
            return begin + _last(half == half.max())
        begin = max(done, first) + 1
        whole = self.levels[begin : limit + 1]
        if whole.max() >= WORD:
            return begin + _last(whole >= WORD)
        return begin + self._inside_word(begin, limit)

    def next_first(self, first: int, end: int, overlap: int) -> int:
        """The first token of the passage after one that ends at ``end``."""
        begin = max(first + 1, end - overlap)
        shared = self.levels[begin:end]
        for level in (SENTENCE, WORD):
            if (shared >= level).any():
                return begin + int(np.argmax(shared >= level))
        return end

    def _inside_word(self, begin: int, limit: int) -> int:
        """Where to cut what has no white space: between words or signs, else between characters."""
        whole = self.levels[begin : limit + 1]
        start = int(self.spans[begin, 0])
        borders = word_borders(self.text[start : int(self.spans[limit, 1])])
        places = self.spans[begin : limit + 1, 0] - start
        between = (whole >= WITHIN) & borders[np.clip(places, 0, len(borders) - 1)]
        between[0] = False  # the cut-out text begins there, which says nothing about it
        for good in (between, whole >= WITHIN):
            if good.any():
                return _last(good)
        return limit - begin


def passages_of(
    encoding: Encoding,
    *,
    max_tokens: int | None,
    overlap_tokens: int = 0,
    kind: str = "text",
    syntax: Syntax | None = None,
) -> list[Passage]:
    """The passages of a document, which together hold every token.

    A passage is filled up to the last paragraph that begins in its second half; if none does, up to the last
    sentence, else the last word. Only a word that is longer than a passage is cut. In source code, blank
    lines and lines take the place of paragraphs and sentences, and every definition that is not indented
    begins a passage, unless the passage before it would have fewer than `LEAST_UNIT` tokens. With ``syntax``
    every definition outside of a function begins one, also a method, a longer one is cut at statements, and
    passages have the headers of the definitions around them as `Passage.context`, for which they leave room.

    Args:
        encoding: the whole document, best tokenized with ``with_details``.
        max_tokens: the tokens of a passage, special tokens included; None makes one passage.
        overlap_tokens: the most tokens that neighbors share: as many whole sentences as fit, else words.
        kind: that of the document, see `Document.kind`.
        syntax: that of source code, from `syntax_of`.

    Raises:
        InvalidRequest: a passage has no room for a token besides those that it shares.
    """
    mine = encoding.sequence_ids == 0
    count = int(mine.sum())
    room = count if max_tokens is None else max_tokens - (len(encoding) - count)
    if overlap_tokens < 0 or (count and room <= overlap_tokens):
        raise InvalidRequest(
            f"overlap_tokens is {overlap_tokens}, and a passage of {max_tokens} tokens has room for "
            f"{max(room, 0)} besides special tokens; give fewer from 0 on, or longer passages"
        )
    if not count:
        return []
    spans = encoding.offsets[mine]
    units = kind == "code" and max_tokens is not None
    if count <= room and not units:
        return [_Cutter(encoding.text, spans, np.zeros(count, dtype=np.int8)).passage(0, count)]
    cutter = _Cutter(encoding.text, spans, border_levels(encoding.text, kind, spans, syntax), units, syntax)
    passages, first, end = [], 0, 0
    while end < count:
        most = min(room // CONTEXT_SHARE, room - overlap_tokens - 1)
        context, tokens = cutter.context(first, most)
        end = cutter.end(first, end, room - tokens)
        passages.append(cutter.passage(first, end, context))
        first = cutter.next_first(first, end, overlap_tokens)
    return passages


def cut_in_two(
    encoding: Encoding,
    passages: Sequence[Passage],
    which: Set[int],
    kind: str = "text",
    syntax: Syntax | None = None,
) -> list[Passage]:
    """The passages, of which some are cut in two about in the middle, where `passages_of` would cut.

    Args:
        encoding: the whole document.
        passages: those of it.
        which: the numbers of those to cut, each of at least two tokens.
        kind: that of the document.
        syntax: that of source code.
    """
    spans = encoding.offsets[encoding.sequence_ids == 0]
    cutter = _Cutter(encoding.text, spans, border_levels(encoding.text, kind, spans, syntax), syntax=syntax)
    cut: list[Passage] = []
    for number, passage in enumerate(passages):
        if number not in which:
            cut.append(passage)
            continue
        first, end = passage.first_token, passage.first_token + passage.tokens
        middle = cutter.end(first, first, max(1, 2 * passage.tokens // 3))
        context, _ = cutter.context(middle, (end - middle) // CONTEXT_SHARE)
        cut += [cutter.passage(first, middle, passage.context), cutter.passage(middle, end, context)]
    return cut


def passage_encodings(encoding: Encoding, passages: Sequence[Passage]) -> list[Encoding]:
    """What is embedded of each passage: its tokens and those of its context as they are in the document, and
    the document's special tokens.
    """
    if len(passages) == 1 and len(encoding) == passages[0].tokens + int(encoding.special.sum()):
        return [encoding]
    text = np.flatnonzero(encoding.sequence_ids == 0)
    special = np.flatnonzero(encoding.sequence_ids != 0)
    starts = encoding.offsets[text, 0]
    encodings = []
    for passage in passages:
        tokens = [text[passage.first_token : passage.first_token + passage.tokens]]
        for start, end in passage.context:
            tokens.append(text[slice(*np.searchsorted(starts, (start, end)))])
        encodings.append(encoding.select(np.sort(np.concatenate((special, *tokens)))))
    return encodings


def context_of(text: str, context: Iterable[Range]) -> str:
    """The text of a context, each header with the end of its line; empty without context."""
    return "".join(f"{text[start:end]}\n" for start, end in context)


def _last(holds: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(holds)[-1])


def border_levels(
    text: str, kind: str, spans: NDArray[np.int64], syntax: Syntax | None = None
) -> NDArray[np.int8]:
    """The level of a border before each token, (N,).

    Args:
        text: the document.
        kind: ``code`` or a kind of prose; see `Document.kind`.
        spans: the characters of each token, in order, (N, 2).
        syntax: that of source code.
    """
    starts = spans[:, 0]
    ends = np.concatenate(([0], np.maximum.accumulate(spans[:, 1])[:-1]))
    levels = np.where(starts < ends, SHARED, np.where(starts == ends, WITHIN, WORD)).astype(np.int8)
    for level, places in _code(text, syntax) if kind == "code" else _prose(text):
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


def _code(text: str, syntax: Syntax | None) -> Iterable[tuple[int, NDArray[np.int64]]]:
    yield SENTENCE, _array(match.end() for match in LINE.finditer(text))
    unindented = _array(match.end() for match in DEFINITION.finditer(text))
    if syntax is None:
        yield PARAGRAPH, _array(match.end() for match in BLANK.finditer(text))
        yield SECTION, unindented
        return
    yield NESTED, syntax.nested
    yield PARAGRAPH, syntax.statements
    yield SECTION, np.union1d(syntax.sections, unindented[~syntax.holds(unindented)])


def _spaces(text: str, start: int) -> int:
    return len(text[start : start + 4]) - len(text[start : start + 4].lstrip(" "))


def _array(places: Iterable[int]) -> NDArray[np.int64]:
    return np.array(sorted(places), dtype=np.int64)


def words_of(text: str) -> Encoding:
    """The words of a text as its tokens, without special tokens; their ids mean nothing.

    Words are those of `word_borders`: runs of letters and digits, and single other characters.

    Raises:
        InvalidText: the text contains a lone surrogate.
        EmptyText: it is all white space.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"it has a lone surrogate at character {error.start:,}; give text that UTF-8 can hold"
        ) from None
    borders = np.flatnonzero(word_borders(text))
    spans = np.stack([borders[:-1], borders[1:]], axis=1).astype(np.int64)
    spans = spans[[not text[start:end].isspace() for start, end in spans.tolist()]]
    if not len(spans):
        raise EmptyText("it is blank")
    count = len(spans)
    zeros = np.zeros(count, dtype=np.int64)
    return Encoding.of_arrays(
        text,
        ids=zeros,
        token_type_ids=zeros,
        offsets=spans,
        special=np.zeros(count, dtype=np.bool_),
        sequence_ids=zeros,
        pieces=[text[start:end] for start, end in spans.tolist()],
    )
