"""Split documents into chunks of a bounded number of tokens, at sentence ends where possible."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import assert_never

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.text import Tokenizer
from unmask.text.borders import CLOSERS, SENTENCE_ENDS, sentence_ends
from unmask.training.data.sources import SplitBy
from unmask.training.vocabulary import Vocabulary

NO_BEGINNINGS = ",;:.!?…%”’»)]}。！？，、；：）」』"
"""Marks that belong to the preceding text, so that no chunk should begin with one."""

MOST_CHARACTERS = 2**20
"""Characters of a document that are tokenized at once."""


def units(text: str, split_by: SplitBy) -> list[tuple[str, bool]]:
    """Split a document into units before its tokens are counted, with whether each begins a paragraph.

    A sentence that does not begin a paragraph keeps a space before it.
    """
    if split_by == "document":
        return [(part, False) for part in parts(text, MOST_CHARACTERS)] if text.strip() else []
    paragraphs = [line.strip() for line in text.splitlines() if line.strip()]
    match split_by:
        case "paragraph":
            return [(paragraph, True) for paragraph in paragraphs]
        case "sentence":
            return [
                (sentence if number == 0 else f" {sentence}", number == 0)
                for paragraph in paragraphs
                for number, sentence in enumerate(sentences(paragraph))
            ]
        case _:
            assert_never(split_by)


def parts(text: str, most: int) -> Iterator[str]:
    """Split a text at line starts into parts of about ``most`` characters; lines of any length stay whole.

    This way a large book is never tokenized at once.
    """
    start = 0
    while len(text) - start > most:
        stop = text.find("\n", start + most)
        if stop < 0:
            break
        yield text[start : stop + 1]
        start = stop + 1
    if start < len(text):
        yield text[start:]


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, see `sentence_ends`."""
    ends = [0, *sentence_ends(paragraph), len(paragraph)]
    texts = [paragraph[start:end].strip() for start, end in pairwise(ends)]
    return [sentence for sentence in texts if sentence]


@dataclass(frozen=True, eq=False)
class TokenBoundaries:
    """Properties of each id of a vocabulary that chunking needs."""

    begins_word_V: NDArray[np.bool_]
    """A chunk may begin with this token."""
    awkward_V: NDArray[np.bool_]
    """A chunk may begin with this token, but it is a mark that belongs to the preceding text."""
    ends_sentence_V: NDArray[np.bool_]
    closes_V: NDArray[np.bool_]
    """A quote or bracket that may occur between the end of a sentence and the space after it."""
    breaks_line_V: NDArray[np.bool_]
    """Whitespace with a line break, after which a word always begins."""
    between_paragraphs: NDArray[np.int64]
    """The ids of a line break between two paragraphs; often none."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocabulary: Vocabulary) -> "TokenBoundaries":
        """Derive the properties from a tokenizer."""
        engine = tokenizer.engine
        spelled = [_spelling(engine, id) for id in range(vocabulary.size)]
        bare = [piece.strip() for piece in spelled]
        blank = np.array([not piece for piece in bare]) & ~vocabulary.special_V
        breaks = blank & np.array(["\n" in piece for piece in spelled])
        ends = [bool(piece.rstrip(CLOSERS)) and piece.rstrip(CLOSERS)[-1] in SENTENCE_ENDS for piece in bare]
        return cls(
            begins_word_V=~vocabulary.continues_V | blank,
            awkward_V=np.array(
                [
                    bool(piece) and not text[0].isspace() and piece[0] in NO_BEGINNINGS
                    for piece, text in zip(bare, spelled, strict=True)
                ]
            )
            | breaks,
            ends_sentence_V=np.array(ends),
            closes_V=np.array([bool(piece) and not piece.strip(CLOSERS) for piece in bare]),
            breaks_line_V=breaks,
            between_paragraphs=_between(engine),
        )

    def places(
        self, ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where ids may be split: after sentences, between words and, as a last resort, before marks."""
        word = self.begins_word_V[ids]
        word[1:] |= self.breaks_line_V[ids[:-1]]
        fair = word & ~self.awkward_V[ids]
        ends = self.ends_sentence_V[ids]
        closes = self.closes_V[ids]
        ended = ends.copy()
        ended[1:] |= closes[1:] & ends[:-1]
        after = np.concatenate(([False], ended[:-1])) & fair & ~closes
        return np.flatnonzero(after), np.flatnonzero(fair), np.flatnonzero(word)


def _spelling(engine: tokenizers.Tokenizer, id: int) -> str:
    """A token as text, with a leading space if the vocabulary marks one."""
    piece: str = engine.id_to_token(id) or ""
    if isinstance(engine.model, tokenizers.models.BPE):
        return str(engine.decoder.decode([piece])) if engine.decoder else piece
    return piece.replace("▁", " ").removeprefix("##")


def _between(engine: tokenizers.Tokenizer) -> NDArray[np.int64]:
    """The ids of a line break: those of "a⏎b" that are in neither "a" nor "b"."""
    before, after, both = (engine.encode(text, add_special_tokens=False).ids for text in ("a", "b", "a\nb"))
    fits = both[: len(before)] == before and both[len(both) - len(after) :] == after
    return np.array(both[len(before) : len(both) - len(after)] if fits else [], dtype=np.int64)


NOTHING = np.zeros(0, dtype=np.int64)


@dataclass
class Losses:
    """What was lost or altered by chunking."""

    dropped_chunks: int = 0
    """Documents or document ends shorter than ``min_tokens`` that could not be merged."""
    dropped_tokens: int = 0
    cut_words: int = 0
    """Splits inside a word that is longer than a chunk may be."""
    blank_documents: int = 0
    """Documents without a single token."""


@dataclass(frozen=True, eq=False)
class Chunker:
    """Splits a document's tokens into chunks of at most ``max_tokens``; `losses` counts what was lost."""

    marks: TokenBoundaries
    max_tokens: int
    min_tokens: int
    losses: Losses = field(default_factory=Losses)

    def chunks(self, parts: Sequence[tuple[NDArray[np.int64], bool]]) -> list[NDArray[np.int64]]:
        """The chunks of one document.

        Parts shorter than ``min_tokens`` are joined with the next part; parts longer than ``max_tokens`` are
        split. The end of a document that is still too short is merged with the previous chunk, or takes
        tokens from it.

        Args:
            parts: the ids of its paragraphs or sentences, and whether each begins a paragraph.
        """
        chunks: list[NDArray[np.int64]] = []
        rest, rest_begins = NOTHING, True
        for ids, begins in parts:
            if not len(ids):
                continue
            joined = self._joined(rest, ids, begins=begins)
            rest_begins = rest_begins if len(rest) else begins
            rest = NOTHING
            for number, chunk in enumerate(self._windows(joined)):
                if len(chunk) >= self.min_tokens:
                    chunks.append(chunk)
                else:
                    rest, rest_begins = chunk, rest_begins and number == 0
        if len(rest):
            self._end(chunks, rest, begins=rest_begins)
        elif not chunks:
            self.losses.blank_documents += 1
        return chunks

    def _joined(
        self, before: NDArray[np.int64], after: NDArray[np.int64], *, begins: bool
    ) -> NDArray[np.int64]:
        if not len(before):
            return after
        return np.concatenate([before, self.marks.between_paragraphs if begins else NOTHING, after])

    def _end(self, chunks: list[NDArray[np.int64]], rest: NDArray[np.int64], *, begins: bool) -> None:
        """Merge the end of a document that is too short with the last chunk, or divide both evenly."""
        joined = self._joined(chunks[-1], rest, begins=begins) if chunks else rest
        if chunks and len(joined) <= self.max_tokens:
            chunks[-1] = joined
        elif chunks and len(joined) >= 2 * self.min_tokens:
            stop = self._middle(joined)
            chunks[-1:] = [joined[:stop], joined[stop:]]
        else:
            self.losses.dropped_chunks += 1
            self.losses.dropped_tokens += len(rest)

    def _middle(self, ids: NDArray[np.int64]) -> int:
        """The best split point nearest to the middle that leaves enough tokens on both sides."""
        least = max(self.min_tokens, len(ids) - self.max_tokens)
        for places in self.marks.places(ids):
            enough = places[(places >= least) & (places <= len(ids) - least)]
            if len(enough):
                return int(enough[np.argmin(np.abs(2 * enough - len(ids)))])
        self.losses.cut_words += 1
        return len(ids) // 2

    def _windows(self, ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        if len(ids) <= self.max_tokens:
            yield ids
            return
        places = self.marks.places(ids)
        start = 0
        while len(ids) - start > self.max_tokens:
            stop = self._stop(start, places)
            yield ids[start:stop]
            start = stop
        yield ids[start:]

    def _stop(self, start: int, places: tuple[NDArray[np.int64], ...]) -> int:
        """The last split point of the best kind: a sentence end in the last third, else a word boundary."""
        last = start + self.max_tokens
        least = (start + self.max_tokens * 2 // 3, start + self.max_tokens // 2, start)
        for of_kind, above in zip(places, least, strict=True):
            at = int(np.searchsorted(of_kind, last, side="right")) - 1
            if at >= 0 and of_kind[at] > max(above, start + self.min_tokens - 1):
                return int(of_kind[at])
        self.losses.cut_words += 1
        return last
