"""The passages of an index in blocks of bounded size, as every store gets them.

Axes: B passages of one block; E features.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.search.contents import Contents, page_at
from unmask.search.documents.values import Document
from unmask.search.settings import ModelIdentity
from unmask.search.views.vectors import dense_vectors
from unmask.tasks import Progress

BLOCK_BYTES = 1 << 23
"""Bytes of vectors, texts and metadata that are held at once, at least one passage."""

IDS = uuid.uuid5(uuid.NAMESPACE_URL, "unmask:passage")
"""The namespace of the ids of passages."""

MOST_DIMENSIONS = 16_000
"""The longest vector of pgvector and of OpenSearch."""

Floats = NDArray[np.float32]
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
    vectors_BE: Floats


@dataclass(frozen=True, eq=False)
class Source:
    """What is exported: the passages of one generation that are not deleted, and their vectors."""

    contents: Contents
    model: ModelIdentity
    dimensions: int
    progress: Progress | None = None
    """Called with (passages written, all passages)."""

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
            "similarity": "inner product of vectors of length 1, which is the cosine",
        }

    def _blocks(self) -> Iterator[Block]:
        first = 0
        for segment, live_P in zip(self.contents.segments, self.contents.live_parts(), strict=True):
            arrays, quantizer = segment.arrays, self.contents.quantizer
            rows: list[int] = []
            passages: list[ExportedPassage] = []
            bytes_held = 0
            for row, passage, size in self._passages(first, np.flatnonzero(live_P)):
                rows.append(row)
                passages.append(passage)
                bytes_held += size
                if bytes_held >= BLOCK_BYTES:
                    yield Block(passages, dense_vectors(arrays, np.array(rows), quantizer))
                    rows, passages, bytes_held = [], [], 0
            if rows:
                yield Block(passages, dense_vectors(arrays, np.array(rows), quantizer))
            first += len(live_P)

    def _passages(self, first: int, rows: Rows) -> Iterator[tuple[int, ExportedPassage, int]]:
        """The rows of a segment, whose first passage has the number ``first``; their passages and bytes."""
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
                4 * (self.dimensions + place.end - place.start + facts),
            )


def check_dimensions(source: Source, store: str) -> None:
    """Raise `InvalidRequest` if the vectors are longer than those of ``store``."""
    if source.dimensions > MOST_DIMENSIONS:
        raise InvalidRequest(
            f"the vectors have {source.dimensions:,} numbers and {store} stores at most {MOST_DIMENSIONS:,}; "
            "make the index with a model of fewer"
        )
