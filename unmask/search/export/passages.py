"""The passages of an index in blocks of bounded size, as every store gets them.

Axes: N vectors of the passages of one block; E features.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.search.contents import Contents, page_at
from unmask.search.documents.values import Document
from unmask.search.options import ExportedView
from unmask.search.settings import ModelIdentity
from unmask.search.store import Segment
from unmask.search.store.arrays import offsets_of
from unmask.search.views.vectors import dense_vectors, token_vectors
from unmask.tasks import Progress

BLOCK_BYTES = 1 << 23
"""Bytes of vectors, texts and metadata that are held at once, at least one passage."""

IDS = uuid.uuid5(uuid.NAMESPACE_URL, "unmask:passage")
"""The namespace of the ids of passages."""

MOST_DIMENSIONS = 16_000
"""The longest vector of pgvector and of OpenSearch."""

Floats = NDArray[np.float32 | np.float16]
Rows = NDArray[np.int64]


class ExportedPassage(NamedTuple):
    """A passage without its vector; the names are those of `unmask.search.values.Hit`."""

    id: uuid.UUID
    """Made of the document's id, start and end: a passage that is written again replaces itself."""
    document: str
    title: str
    page: int | None
    start: int
    end: int
    text: str
    metadata: Mapping[str, Any]


class Block(NamedTuple):
    """Some passages, in the order of the index."""

    passages: list[ExportedPassage]
    vectors_NE: Floats
    """Float32, one for each passage; or float16, one for each token."""
    offsets: Rows
    """Where the vectors of each passage begin, and where those of the last end."""

    def part(self, start: int, stop: int) -> "Block":
        """Some passages of it."""
        offsets = self.offsets[start : stop + 1]
        return Block(
            self.passages[start:stop], self.vectors_NE[offsets[0] : offsets[-1]], offsets - offsets[0]
        )

    def vectors(self) -> Iterator[Floats]:
        """Those of each passage, (vectors, E)."""
        return (self.vectors_NE[start:end] for start, end in pairwise(self.offsets.tolist()))


@dataclass(frozen=True, eq=False)
class Source:
    """What is exported: the passages of one generation that are not deleted, and their vectors."""

    contents: Contents
    model: ModelIdentity
    dimensions: int
    progress: Progress | None = None
    """Called with (passages written, all passages)."""
    view: ExportedView = "dense"

    @property
    def many(self) -> bool:
        """Whether a passage has a vector for each token."""
        return self.view == "multi_vector"

    @property
    def decoded(self) -> bool:
        """Whether vectors are what the codes of an index without the numbers stand for."""
        name = "vectors/values" if self.many else "dense/vectors"
        return name not in self.contents.segments[0].arrays

    @property
    def vector_count(self) -> int:
        """Vectors of all passages."""
        parts = zip(self.contents.segments, self.contents.live_parts(), strict=True)
        return sum(int(self._counts(segment)[live_P].sum()) for segment, live_P in parts)

    def blocks(self) -> Iterator[Block]:
        """All passages in blocks of about `BLOCK_BYTES`; one is written when the next is asked for."""
        done, total = 0, self.contents.passage_count
        for block in self._blocks():
            yield block
            done += len(block.passages)
            if self.progress is not None:
                self.progress(done, total)

    def described(self) -> dict[str, Any]:
        """What a reader of the vectors must know, as JSON types."""
        return {
            "model": self.model.name,
            "revision": self.model.revision,
            "sha256": self.model.sha256,
            "dimensions": self.dimensions,
            "similarity": (
                "the sum over the query's vectors of the largest inner product (MaxSim)"
                if self.many
                else "inner product of vectors of length 1, which is the cosine"
            ),
            "decoded": self.decoded,
        }

    def _blocks(self) -> Iterator[Block]:
        first = 0
        for segment, live_P in zip(self.contents.segments, self.contents.live_parts(), strict=True):
            counts = self._counts(segment)
            rows: list[int] = []
            passages: list[ExportedPassage] = []
            bytes_held = 0
            for row, passage, size in self._passages(first, np.flatnonzero(live_P)):
                rows.append(row)
                passages.append(passage)
                bytes_held += size + 4 * self.dimensions * int(counts[row])
                if bytes_held >= BLOCK_BYTES:
                    yield self._block(segment, passages, rows, counts)
                    rows, passages, bytes_held = [], [], 0
            if rows:
                yield self._block(segment, passages, rows, counts)
            first += len(live_P)

    def _counts(self, segment: Segment) -> Rows:
        """The vectors of each passage of a segment."""
        if self.many:
            return np.diff(segment.arrays["vectors/offsets"])
        return np.ones(len(segment.arrays["passage/document"]), np.int64)

    def _block(
        self, segment: Segment, passages: list[ExportedPassage], rows: list[int], counts: Rows
    ) -> Block:
        chosen = np.array(rows)
        if self.many:
            vectors_NE: Floats = token_vectors(segment.arrays, chosen, self.contents.codec)
        else:
            vectors_NE = dense_vectors(segment.arrays, chosen, self.contents.quantizer)
        return Block(passages, vectors_NE, offsets_of(counts[chosen].tolist()))

    def _passages(self, first: int, rows: Rows) -> Iterator[tuple[int, ExportedPassage, int]]:
        """The rows of a segment, whose first passage has the number ``first``; passages, bytes of texts."""
        number, document, facts = -1, Document("", ""), 0
        for row in map(int, rows):
            place = self.contents.place(first + row)
            if place.document != number:
                # A long document is read once, not for each of its passages.
                number, document = place.document, self.contents.document(place.document)
                facts = len(document.title) + len(json.dumps(document.metadata))
            yield (
                row,
                ExportedPassage(
                    uuid.uuid5(IDS, f"{place.start} {place.end} {document.id}"),
                    document.id,
                    document.title,
                    page_at(document.pages, place.start),
                    place.start,
                    place.end,
                    document.text[place.start : place.end],
                    document.metadata,
                ),
                4 * (place.end - place.start + facts),
            )


def check_dimensions(source: Source, store: str) -> None:
    """Raise `InvalidRequest` if the vectors are longer than those of ``store``."""
    if source.dimensions > MOST_DIMENSIONS:
        raise InvalidRequest(
            f"the vectors have {source.dimensions:,} numbers and {store} stores at most {MOST_DIMENSIONS:,}; "
            "make the index with a model of fewer"
        )
