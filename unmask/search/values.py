"""Results of search."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.search.options import View

Span = tuple[int, int]
"""A range of characters of a document, end exclusive."""


@dataclass(frozen=True)
class Share:
    """What one part of the query, or of the passage, adds to a score."""

    label: str
    """The term or the token."""
    share: float
    spans: tuple[Span, ...] = ()
    """Where it stands in the document."""


@dataclass(frozen=True)
class Explanation:
    """How one view came to the score of a passage."""

    view: View
    score: float
    """The passage's score in this view."""
    rank: int | None
    """Its rank in this view, from 1; None if the ranking of this view does not reach it."""
    shares: tuple[Share, ...]
    """BM25 and sparse: terms of the query. Many vectors: tokens of the query, with the characters that each
    matched. Dense: tokens of the passage, if its vector is the mean of theirs, and before them one
    share ``context`` of the headers of source code that were embedded with it. Shares and `special` add up to
    the score."""
    special: float = 0.0
    """What tokens add that stand for no characters, such as [CLS], [SEP] and a prompt."""
    attribution: tuple[Share, ...] = ()
    """Dense: the gradient attribution of the score to the passage's tokens; see `unmask.interpret`. These
    values have the score's unit, and they do not add up to it."""
    uncompressed_score: float | None = None
    """Vectors that are only stored compressed: the score with vectors as the model gives them, for which the
    passage is encoded again. Shares add up to `score`."""
    first_score: float | None = None
    """Dense, where codes proposed the passage: the cosine with what its code stands for. `score` is that of
    the stored vector."""


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    document: str
    """The document's id."""
    page: int | None
    """The page of a PDF on which the passage begins, from 1."""
    start: int
    """The first character of the passage in the document's text."""
    end: int
    """The character after the last one."""
    score: float
    """Higher is better; modes have scores of different kinds, which cannot be compared."""
    text: str
    title: str = ""
    metadata: Mapping[str, Any] | None = None
    why: tuple[Explanation, ...] | None = None
    """An explanation for each view that found it, on request."""
    first_score: float | None = None
    """The score before a reranker replaced it."""


FEW_TOKENS = 4096
"""Vectors of tokens, below which centroids are few: at most one for 16 vectors."""

FEW_PASSAGES = 1000
"""Dense vectors, below which their smallest and largest values say little of later ones."""


@dataclass(frozen=True)
class VectorCompression:
    """How the vectors of tokens of an index are encoded, and how well."""

    bits: int
    """Of each number of a residual."""
    centroids: int
    vector_bytes: int
    """Bytes of one vector; its place in the document takes 8 more, and so it does without compression."""
    vectors: int
    """Those stored, deleted ones included until the index is compacted."""
    error: float
    """1 minus the cosine of a vector with what is stored of it, the mean over all vectors."""
    first_error: float
    """The same of the first commit, whose vectors centroids and buckets were learned from. If `error` is much
    larger, later documents are of another kind; make the index again."""
    learned_from: int
    """The vectors of the first commit."""

    @property
    def warning(self) -> str | None:
        """A sentence if centroids were learned from fewer than `FEW_TOKENS` vectors; else None."""
        if self.learned_from >= FEW_TOKENS:
            return None
        return (
            f"centroids stay as they were learned in the first commit, from {self.learned_from:,} "
            f"vector{'s' * (self.learned_from != 1)}, and from fewer than {FEW_TOKENS:,} they are poor: "
            "index many documents at first, into a new folder"
        )


@dataclass(frozen=True)
class DenseCompression:
    """Codes of the dense vectors of an index, and how near they are."""

    bits: int
    """Of each number."""
    vector_bytes: int
    """Bytes of the code of one vector."""
    floats: bool
    """Whether vectors are stored in float32, too."""
    vectors: int
    """Those with codes, deleted ones included until the index is compacted."""
    error: float
    """1 minus the cosine of a vector with what its code stands for, the mean over all vectors; after
    compacting, over a sample of them."""
    first_error: float
    """The same of the vectors that ranges were learned from. If `error` is much larger, later documents are
    of another kind: compact the index, which learns them again, or without float32 make it again."""
    learned_from: int
    """The vectors that were there when ranges were learned."""

    @property
    def warning(self) -> str | None:
        """A sentence if ranges were learned from fewer than `FEW_PASSAGES` vectors; else None."""
        if self.learned_from >= FEW_PASSAGES:
            return None
        way_out = (
            "compact the index when it has more, which learns them again"
            if self.floats
            else "index many documents at first, into a new folder"
        )
        return (
            f"ranges of dense codes were learned from {self.learned_from:,} "
            f"vector{'s' * (self.learned_from != 1)}, and from fewer "
            f"than {FEW_PASSAGES:,} they are poor: {way_out}"
        )


@dataclass(frozen=True)
class Added:
    """What adding documents to an index did."""

    added: int
    updated: int
    """Documents that the index had with other content."""
    unchanged: int
    """Documents that the index had already; they are not computed again."""
    skipped: tuple[tuple[str, str], ...]
    """Files and rows of which no document was made, each with the reason."""
    missing: tuple[str, ...]
    """Documents of the index that were not among those given."""
    passages: int
    tokens: int
    """Tokens of the documents that were added or updated, without special tokens."""
    dropped_tokens: int
    """Further tokens of these documents, which the models do not read; only of whole documents."""
    truncated_documents: tuple[str, ...] = ()
    """The documents that have such tokens."""
    deleted: tuple[str, ...] = ()
    """Documents that the index had and that were replaced by what cannot be read, such as blank text;
    `skipped` has the reason of each."""
