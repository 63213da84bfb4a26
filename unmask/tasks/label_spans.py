"""Spans of words that fit labels named with the text (GLiNER, Zaratiana et al. 2024).

A pass reads the labels and as many words as fit; a longer text is read in windows of words, each with all
labels, that share at least as many words as a span can have, so that every span is read whole.

Axes: W words; K widths of spans, in words; C labels.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.base.arguments import check_fraction
from unmask.engines.engine import Floats
from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, InvalidText, TextTooLong, quoted
from unmask.spec import LabelHead
from unmask.tasks.label_network import sigmoid
from unmask.tasks.reader import Name, Reader
from unmask.tasks.values import LongTexts, distinct_labels
from unmask.text.special import literal_engine
from unmask.text.tokenizer import check_texts

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
"""A word: letters and digits, also several of them joined by hyphens; or any other character by itself."""

OVERLAP_WORDS = 64
"""Words that neighboring windows share, where there is room; at least as many as a span can have."""


class LabeledSpan(NamedTuple):
    """Consecutive words that fit a label."""

    first: int
    """Its first word."""
    last: int
    """Its last word."""
    label: int
    """The number of the label."""
    score: float
    """The probability that the label fits."""


@dataclass(frozen=True)
class Search:
    """Which spans are returned."""

    labels: tuple[str, ...]
    thresholds: tuple[float, ...]
    """For each label, the probability that must be exceeded."""
    nested: bool = False
    """Whether a span may lie inside another."""
    multi_label: bool = False
    """Whether the same span may have several labels."""


@dataclass(frozen=True, eq=False)
class LabelWindow:
    """Labels, and consecutive words of a text, as the tokens of one pass."""

    ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    labels: NDArray[Any]
    """The token whose state is the label's, (C,); or what the encoder of labels gave for each, (C, N)."""
    words_at: NDArray[np.int64]
    """The first token of each word, (W,)."""
    first: int
    """The number of its first word among those of the text."""
    truncated_tokens: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class LabelText:
    """A text as its words that have a token, and the windows that hold them."""

    text: str
    bounds: NDArray[np.int64]
    """The first character of each word and that after its last, (W, 2)."""
    windows: tuple[LabelWindow, ...]
    tokens: int
    """Tokens that are read, each counted once."""
    truncated_tokens: int

    def __len__(self) -> int:
        return self.tokens


def search_for(
    labels: Sequence[str],
    threshold: float | Mapping[str, float],
    *,
    nested: bool,
    multi_label: bool,
) -> Search:
    """What is looked for, checked.

    Raises:
        InvalidRequest: there is no label, a label is no text or comes twice, or a threshold is not 0 to 1.
    """
    names = distinct_labels("labels", labels)
    if not isinstance(threshold, Mapping):
        check_fraction("threshold", threshold)
        thresholds = (float(threshold),) * len(names)
    else:
        for label, value in threshold.items():
            if label not in names:
                raise InvalidRequest(
                    f"threshold names {quoted(label)}, which is not among the labels; add it to labels, or "
                    "leave it out"
                )
            check_fraction(f"threshold of {quoted(label)}", value)
        thresholds = tuple(float(threshold.get(label, 0.5)) for label in names)
    return Search(tuple(names), thresholds, bool(nested), bool(multi_label))


def read_texts(
    reader: Reader,
    head: LabelHead,
    texts: Sequence[str] | Sequence[Sequence[str]],
    labels: Sequence[str],
    *,
    truncation: LongTexts,
    overlap: int | None,
    name: Name,
) -> list[LabelText]:
    """The tokens of each text in windows, after those of the labels.

    Raises:
        TextError: a text has no words, is too long, or is not Unicode text.
        InvalidRequest: a label has no tokens of its own, or the labels leave no room for words.
    """
    encoder = PromptEncoder(reader, head)
    prompt = encoder.prompt(labels)
    split = [words_of(text, name(index)) for index, text in enumerate(texts)]
    return [
        encoder.read(prompt, words, text, bounds, truncation=truncation, overlap=overlap, name=name(index))
        for index, (words, text, bounds) in enumerate(split)
    ]


def words_of(text: str | Sequence[str], name: str) -> tuple[list[str], str, NDArray[np.int64]]:
    """The words of a text, the text, and the bounds of each word in it."""
    if isinstance(text, str) or not isinstance(text, Sequence):
        check_texts([text], lambda _: name)
        matches = list(WORD.finditer(str(text)))
        bounds = np.array([match.span() for match in matches], dtype=np.int64).reshape(-1, 2)
        words, whole = [match.group() for match in matches], str(text)
    else:
        words = list(text)
        check_texts(words, lambda index: f"word {index + 1} of {name}")
        for index, word in enumerate(words):
            if not word.strip():
                raise EmptyText(f"word {index + 1} of {name} is blank; leave it out")
        whole = " ".join(words)
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        bounds = np.stack((starts, starts + lengths), axis=1)
    if not words:
        raise EmptyText(f"{name} has no words; give a text with at least one")
    return words, whole, bounds


@dataclass(frozen=True, eq=False)
class Prompt:
    """What is read before and after the words of a text."""

    before: NDArray[np.int64]
    """The tokens of the labels, if they stand before the words, and special tokens."""
    after: NDArray[np.int64]
    types: int
    """The token type of every token."""
    labels: NDArray[Any]
    """See `LabelWindow.labels`."""

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The tokens of words, each word by itself."""

    ids: NDArray[np.int64]
    """(N,)"""
    present: NDArray[np.int64]
    """The numbers of the words that have a token, (W,)."""
    first_at: NDArray[np.int64]
    """The first token of each of them, (W,)."""
    counts: NDArray[np.int64]
    """Its tokens, (W,)."""


class PromptEncoder:
    """Makes tokens of labels and words, each word by itself.

    Words get no space before them that the tokenizer does not put there, unlike those of
    `Tokenizer.encode_words`: heads were trained without it.
    """

    def __init__(self, reader: Reader, head: LabelHead) -> None:
        self.reader, self.head, self.name = reader, head, reader.name
        self.vectors = reader.label_vectors
        self.engine = self._engine({head.entity, head.separator} if self.vectors is None else set())

    def prompt(self, labels: Sequence[str]) -> Prompt:
        """The prompt of some labels; raises `InvalidRequest` if one has no token or one that marks labels."""
        if self.vectors is not None:
            raw = self.engine.encode(["a"], is_pretokenized=True)
            word_N = np.flatnonzero([part is not None for part in raw.word_ids])
            ids_N = np.array(raw.ids, dtype=np.int64)
            return Prompt(ids_N[: word_N[0]], ids_N[word_N[-1] + 1 :], 0, self.vectors.of(labels))
        parts = [part for label in labels for part in (self.head.entity, label)] + [self.head.separator]
        raw = self.engine.encode(parts, is_pretokenized=True)
        part_of_N = np.array([-1 if part is None else part for part in raw.word_ids])
        ids_N = np.array(raw.ids, dtype=np.int64)
        self._check(labels, ids_N, part_of_N)
        inside = np.flatnonzero(part_of_N >= 0)
        before, after = ids_N[: inside[-1] + 1], ids_N[inside[-1] + 1 :]
        first_of = np.searchsorted(part_of_N[: len(before)], np.arange(len(parts)))
        at_C = first_of[np.arange(len(labels)) * 2] + (0 if self.head.reads_entity else 1)
        return Prompt(before, after, int(raw.type_ids[0]), at_C)

    def _engine(self, markers: set[str]) -> tokenizers.Tokenizer:
        tokenizer = self.reader.tokenizer
        for marker in sorted(markers):
            if tokenizer.token_to_id(marker) is None:
                raise CorruptCheckpoint(
                    f"the tokenizer of {self.name} has no token {marker}, which stands beside labels; copy "
                    "the tokenizer's files of the checkpoint that was trained with it"
                )
        if tokenizer.reads == "parse":
            return tokenizer.engine
        return literal_engine(tokenizer.engine, markers)

    def _check(self, labels: Sequence[str], ids_N: NDArray[np.int64], part_of_N: NDArray[np.int64]) -> None:
        """Refuse labels without tokens, and those that contain a token of the prompt's own."""
        added = self.reader.tokenizer.engine.get_added_tokens_decoder()
        unknown = self.reader.tokenizer.unknown_id
        for number, label in enumerate(labels):
            of_label = ids_N[part_of_N == 2 * number + 1]
            if not len(of_label):
                raise InvalidRequest(f"the label {quoted(label)} has no token; give a label with letters")
            typed = [id_ for id_ in of_label.tolist() if id_ in added and id_ != unknown]
            if typed:
                raise InvalidRequest(
                    f"the label {quoted(label)} contains {added[typed[0]].content}, which the model reads as "
                    "a sign of its own; leave it out of the label"
                )

    def pieces(self, words: Sequence[str], name: str) -> Pieces:
        """The tokens of a text's words.

        Raises:
            TextError: no word has a token, or one has a token without a vector.
        """
        raw = self.engine.encode(words, is_pretokenized=True, add_special_tokens=False)
        ids_N = np.array(raw.ids, dtype=np.int64)
        self._check_known(ids_N, name)
        present, first_at, counts = np.unique(
            np.array(raw.word_ids, dtype=np.int64), return_index=True, return_counts=True
        )
        if not len(present):
            raise EmptyText(f"{name} has no words that the tokenizer knows; give a text with at least one")
        return Pieces(ids_N, present, first_at, counts)

    def read(
        self,
        prompt: Prompt,
        words: Sequence[str],
        text: str,
        bounds_W2: NDArray[np.int64],
        *,
        truncation: LongTexts,
        overlap: int | None,
        name: str,
    ) -> LabelText:
        """The windows of one text."""
        pieces = self.pieces(words, name)
        counts, fixed, most = pieces.counts, len(prompt), self.reader.max_tokens
        room = None if most is None else most - fixed
        self._check_room(prompt, room, counts, bounds_W2[pieces.present], text=text, name=name)
        ranges = windows_of(counts, room, self.head.max_words, self._overlap(overlap))
        dropped = 0
        if len(ranges) > 1 and truncation != "window":
            if truncation == "error":
                raise TextTooLong(
                    f"{name} has {len(counts)} words and the model reads {ranges[0][1]} of them at once; "
                    "read it in windows (truncation='window'), or truncate it (truncation='end')",
                    original_tokens=fixed + len(pieces.ids),
                    max_tokens=fixed + int(counts[: ranges[0][1]].sum()),
                )
            dropped = int(counts[ranges[0][1] :].sum())
            ranges = ranges[:1]
        windows = tuple(window_of(prompt, pieces, first, end, dropped) for first, end in ranges)
        bounds = bounds_W2[pieces.present[: ranges[-1][1]]]
        return LabelText(text, bounds, windows, fixed + len(pieces.ids) - dropped, dropped)

    def _overlap(self, overlap: int | None) -> int:
        return max(self.head.max_width, OVERLAP_WORDS if overlap is None else overlap)

    def _check_known(self, ids_N: NDArray[np.int64], name: str) -> None:
        known = self.reader.tokenizer.known
        if known is not None and len(ids_N) and ids_N.max() >= known:
            raise InvalidText(
                f"{name} has a piece with the id {ids_N.max()}, and the model has vectors for ids below "
                f"{known}; take the tokenizer that the model was trained with"
            )

    def _check_room(
        self,
        prompt: Prompt,
        room: int | None,
        counts: NDArray[np.int64],
        bounds_W2: NDArray[np.int64],
        *,
        text: str,
        name: str,
    ) -> None:
        """Refuse labels that leave too little room for words."""
        if room is None:
            return
        needed = int(counts.max())
        if room < needed:
            start, end = bounds_W2[int(counts.argmax())]
            word = f"the word {quoted(text[start:end])} of {name} has {needed}"
            fixed = f"{len(prompt)} of the {self.reader.max_tokens} tokens that the"
            if self.head.labels_width is not None:
                raise TextTooLong(
                    f"special tokens take {fixed} model reads, and {word}; leave this word out",
                    original_tokens=len(prompt) + needed,
                    max_tokens=len(prompt) + room,
                )
            count = len(prompt.labels)
            raise InvalidRequest(
                f"{count} label{'s' if count > 1 else ''} and special tokens take {fixed} model "
                f"reads, and {word}; give fewer or shorter labels at a time"
            )


def window_of(prompt: Prompt, pieces: Pieces, first: int, end: int, dropped: int = 0) -> LabelWindow:
    """The window of the words from ``first`` to before ``end``."""
    first_at = pieces.first_at[first:end]
    start, stop = int(first_at[0]), int(first_at[-1] + pieces.counts[end - 1])
    ids = np.concatenate((prompt.before, pieces.ids[start:stop], prompt.after))
    types = np.full(len(ids), prompt.types, dtype=np.int64)
    return LabelWindow(ids, types, prompt.labels, first_at - start + len(prompt.before), first, dropped)


def windows_of(
    counts_W: NDArray[np.int64], room: int | None, max_words: int, overlap: int
) -> list[tuple[int, int]]:
    """The first word of each window and that after its last.

    Args:
        counts_W: tokens of each word; none has more than ``room``.
        room: the most tokens of words in a window; None for any number.
        max_words: the most words in a window.
        overlap: words that neighbors share, but never more than half of a window.
    """
    ends = np.cumsum(counts_W)
    windows: list[tuple[int, int]] = []
    first = 0
    while True:
        before = int(ends[first - 1]) if first else 0
        fitting = len(ends) if room is None else int(np.searchsorted(ends, before + room, side="right"))
        end = min(fitting, first + max_words)
        windows.append((first, end))
        if end == len(ends):
            return windows
        first = max(first + 1, end - min(overlap, (end - first) // 2))


def spans_of(text: LabelText, logits: Sequence[Floats], search: Search, head: LabelHead) -> list[LabeledSpan]:
    """The spans of a text above the thresholds, without those that a better one excludes, by first word.

    The best is chosen first. A span that shares words with a chosen one is left out, unless one of the two
    lies inside the other with ``nested``, or both are the same span with ``multi_label``.
    """
    p = sigmoid(_joined(text, logits, head))
    thresholds_C = np.array(search.thresholds, dtype=p.dtype)
    candidates = _of_spans(p, thresholds_C) if head.scores == "spans" else _of_words(p, thresholds_C)
    chosen: list[LabeledSpan] = []
    taken = _Taken(len(p), nested=search.nested)
    for span in sorted(candidates, key=lambda span: -span.score):
        same = (span.first, span.last) in taken.spans
        if search.multi_label if same else not taken.excludes(span.first, span.last):
            chosen.append(span)
            taken.add(span.first, span.last)
    return sorted(chosen, key=lambda span: span.first)


def _joined(text: LabelText, logits: Sequence[Floats], head: LabelHead) -> Floats:
    """The logits of all spans (or words) of a text, each from the window in which it has the most context."""
    if len(logits) == 1:
        return logits[0]
    count, longest = len(text.bounds), head.max_width if head.scores == "spans" else 1
    joined = np.full((count, *logits[0].shape[1:]), -np.inf, dtype=logits[0].dtype)
    best_WK = np.full((count, longest), -1, dtype=np.int64)
    for window, values in zip(text.windows, logits, strict=True):
        first, end = window.first, window.first + len(values)
        starts, more = np.arange(first, end)[:, None], np.arange(longest)
        context_WK = context_in(first, len(values), count, starts, starts + more)
        better = context_WK > best_WK[first:end]
        best_WK[first:end][better] = context_WK[better]
        part = joined[first:end]
        mask = better if head.scores == "spans" else better[:, 0]
        part[mask] = values[mask]
    return joined


def context_in(first: int, words: int, count: int, span_first: Any, span_last: Any) -> Any:
    """The words of a window beside a span on its shorter side, and -1 if the span is not in it; an end of the
    text of ``count`` words is as good as any number.
    """
    end = first + words
    left = np.where(first == 0, count, span_first - first)
    right = np.where(end == count, count, end - 1 - span_last)
    inside = (span_first >= first) & (span_last < end)
    return np.where(inside, np.minimum(left, right), -1)


def _of_spans(p_WKC: Floats, thresholds_C: Floats) -> list[LabeledSpan]:
    """Every span with each label that fits it."""
    return [
        LabeledSpan(first, first + more, label, float(p_WKC[first, more, label]))
        for first, more, label in np.argwhere(p_WKC > thresholds_C).tolist()
    ]


def _of_words(p_WC3: Floats, thresholds_C: Floats) -> list[LabeledSpan]:
    """Every start with each later end of the same label, if all words between are parts of an entity."""
    starts_WC, ends_WC = p_WC3[..., 0] > thresholds_C, p_WC3[..., 1] > thresholds_C
    spans = []
    for first, label in np.argwhere(starts_WC).tolist():
        lowest = float(p_WC3[first, label, 0])
        for last in range(first, len(p_WC3)):
            inside = float(p_WC3[last, label, 2])
            if inside < thresholds_C[label]:
                break
            lowest = min(lowest, inside)
            if ends_WC[last, label]:
                spans.append(LabeledSpan(first, last, label, min(lowest, float(p_WC3[last, label, 1]))))
    return spans


class _Taken:
    """The spans that are chosen: what they exclude is read at the words of a span, however many they are.

    Args:
        words: words of the text.
        nested: whether a span may lie inside another.
    """

    def __init__(self, words: int, *, nested: bool) -> None:
        self.nested = nested
        self.spans: set[tuple[int, int]] = set()
        self._occupied = bytearray(words)
        self._earliest = [words] * words
        """For each word, the earliest start of the spans that end with it."""
        self._latest = [-1] * words
        """For each word, the latest end of the spans that start with it."""

    def add(self, first: int, last: int) -> None:
        self.spans.add((first, last))
        self._occupied[first : last + 1] = b"\1" * (last + 1 - first)
        self._earliest[last] = min(self._earliest[last], first)
        self._latest[first] = max(self._latest[first], last)

    def excludes(self, first: int, last: int) -> bool:
        """Whether a span shares words with another one, of which neither lies inside the other with
        ``nested``."""
        if not self.nested:
            return self._occupied.find(1, first, last + 1) >= 0
        before = min(self._earliest[first:last], default=first) < first
        return before or max(self._latest[first + 1 : last + 1], default=last) > last
