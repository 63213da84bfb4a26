"""Changes of an index: documents that are added, replaced and deleted, and segments that are merged."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.models.load import Model
from unmask.search.adding import SegmentBuilder
from unmask.search.contents import Contents, digest_of
from unmask.search.documents.values import Document, Skipped
from unmask.search.given import Given, as_document, each
from unmask.search.options import View
from unmask.search.passages import TokensIndexed
from unmask.search.settings import IndexSettings
from unmask.search.store import Generation, Writer
from unmask.search.values import Added
from unmask.search.views.merge import merged
from unmask.search.workers import computed
from unmask.tasks import Progress

SEGMENT_BYTES = 256_000_000
"""Bytes of texts and vectors after which a segment is written."""

COMMIT_SECONDS = 120.0
"""Seconds of work after which it is committed, so that a process that is killed loses no more."""


class Addition:
    """One addition of documents to an index.

    Args:
        writer: the index, locked.
        settings: what it was made with.
        models: the model of each view.
        progress: see `Index.add`.
        clock: seconds from any start, which decide when to commit.
        workers: see `Index.add`.
    """

    def __init__(
        self,
        writer: Writer,
        settings: IndexSettings,
        models: Mapping[View, Model],
        progress: Progress | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        workers: int = 1,
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._models = models
        self._progress = progress
        self._clock = clock
        self._workers = workers
        self._before = Contents(writer.generation)
        self._seen: set[str] = set()
        self._skipped: list[tuple[str, str]] = []
        self._unreadable: list[str] = []
        self._replaced: set[int] = set()
        self._deleted = 0
        self._segments: list[str] = []
        self._counts = dict.fromkeys(("added", "updated", "unchanged"), 0)
        self._counted = TokensIndexed()
        self._passages = 0
        self._truncated: list[str] = []
        self.generation: Generation = writer.generation

    def run(self, source: Given | Iterable[Given]) -> Added:
        """Add all documents and commit."""
        builder = SegmentBuilder(self._settings, self._models)
        committed = self._clock()
        for group, batch in computed(
            self._changed(each(source)), self._settings, self._models, self._workers
        ):
            builder.add(batch)
            known = self._before.numbers
            self._replaced.update(known[document.id] for document in group if document.id in known)
            for document in batch.cut:
                self._counted += document.counts
                self._passages += len(document.passages)
                if document.counts.dropped:
                    self._truncated.append(document.document.id)
            self._skip(batch.skipped)
            if self._progress is not None:
                self._progress(self._passages, 0)
            if builder.bytes >= SEGMENT_BYTES or self._clock() - committed >= COMMIT_SECONDS:
                self._commit(builder)
                builder = SegmentBuilder(self._settings, self._models)
                committed = self._clock()
        if len(builder) or len(self._replaced) > self._deleted:
            self._commit(builder)
        missing = tuple(id for id in self._before.numbers if id not in self._seen)
        return Added(
            self._counts["added"],
            self._counts["updated"],
            self._counts["unchanged"],
            tuple(self._skipped),
            missing,
            self._passages,
            self._counted.tokens,
            self._counted.dropped,
            tuple(self._truncated),
            tuple(self._unreadable),
        )

    def _skip(self, unreadable: Iterable[tuple[str, str]]) -> None:
        """Count documents that turned out to be unreadable as skipped; one that the index has is deleted."""
        for id, reason in unreadable:
            self._skipped.append((id, reason))
            known = id in self._before.numbers
            self._counts["updated" if known else "added"] -= 1
            if known:
                self._unreadable.append(id)

    def _changed(self, inputs: Iterable[Given]) -> Iterator[Document]:
        """The documents that the index does not have with this content."""
        for number, value in enumerate(inputs, start=1):
            if isinstance(value, Skipped):
                self._skipped.append((value.name, value.reason))
                continue
            document = as_document(value, number)
            if document.id in self._seen:
                if isinstance(value, str):
                    self._skipped.append((document.id, "the same text is among those before"))
                    continue
                raise InvalidRequest(
                    f"two documents have the id {document.id!r}; give every document an id of its own"
                )
            self._seen.add(document.id)
            known = self._before.numbers.get(document.id)
            if known is None:
                self._counts["added"] += 1
            elif self._before.digest(known) == digest_of(document):
                self._counts["unchanged"] += 1
                continue
            else:
                self._counts["updated"] += 1
            yield document

    def _commit(self, builder: SegmentBuilder) -> None:
        """Write what was collected as a segment, and delete what it replaces, in one step."""
        if len(builder):
            arrays = builder.arrays()
            facts = {"passages": builder.passages}
            self._segments.append(self._writer.add_segment(len(builder), arrays, facts))
        deleted = deleted_with(self._before, self._replaced)
        none = np.empty(0, dtype=np.int64)
        self.generation = self._writer.commit(deleted | dict.fromkeys(self._segments, none))
        self._deleted = len(self._replaced)


def deleted_with(contents: Contents, numbers: Set[int]) -> dict[str, NDArray[np.int64]]:
    """The segments of a generation, each with its deleted rows and with those of further documents."""
    deleted = {}
    first = 0
    for segment in contents.segments:
        rows = [number - first for number in numbers if first <= number < first + segment.rows]
        deleted[segment.name] = np.union1d(segment.deleted, np.array(rows, dtype=np.int64)).astype(np.int64)
        first += segment.rows
    return deleted


def compact(writer: Writer) -> Generation:
    """Merge all segments into one without what was deleted, and commit."""
    contents = Contents(writer.generation)
    segments = contents.segments
    if not contents.document_count:
        return writer.commit({})
    if len(segments) == 1 and not len(segments[0].deleted):
        return writer.generation
    ends = np.cumsum([segment.rows for segment in segments])[:-1]
    documents = np.split(contents.live_D, ends)
    passages = contents.live_parts()
    arrays = merged([segment.arrays for segment in segments], documents, passages)
    facts = {"passages": contents.passage_count}
    name = writer.add_segment(contents.document_count, arrays, facts)
    return writer.commit({name: np.empty(0, dtype=np.int64)})
