"""Changes of an index: documents that are added, replaced and deleted, and segments that are merged."""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.system import compute, process_pool
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import Model, load
from unmask.search.adding import ComputedDocuments, SegmentBuilder, batches
from unmask.search.contents import Contents, digest_of
from unmask.search.documents.values import Document, Skipped, require_json, require_unicode
from unmask.search.options import View
from unmask.search.passages import TokensIndexed
from unmask.search.settings import IndexSettings
from unmask.search.store import Generation, Segment, Writer
from unmask.search.values import Added
from unmask.search.views.compression import QUANTIZED_SAMPLE, Quantizer
from unmask.search.views.merge import merged
from unmask.search.views.vectors import Dense
from unmask.tasks import Progress

Given = Document | Skipped | Mapping[str, Any] | str
"""What can be added to an index."""


def each(documents: Given | Iterable[Given]) -> Iterable[Given]:
    """The documents; a single one is a list of one.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(documents, Document | Skipped | Mapping | str):
        return [documents]
    if hasattr(documents, "iterrows"):  # its items are the names of its columns
        raise InvalidRequest(
            "documents is a data frame; give its rows, with id and text: frame.to_dict('records')"
        )
    if not isinstance(documents, Iterable):
        raise InvalidRequest(f"documents is {quoted(documents)}; give documents, dictionaries or texts")
    return documents


def as_document(value: object, number: int) -> Document:
    """A document from what the caller gave; ``number`` is its place, from 1.

    Raises:
        InvalidRequest: it is no document, or one that cannot be stored.
    """
    match value:
        case Document():
            document = value
        case str():
            document = Document(text_id(value), value)
        case Mapping():
            id, text, title = value.get("id", value.get("_id")), value.get("text"), value.get("title", "")
            if not isinstance(id, str) or not isinstance(text, str) or not isinstance(title, str):
                raise InvalidRequest(
                    f"document {number} is {quoted(dict(value))}; give strings under id and text (and title)"
                )
            document = Document(id, text, title, metadata=value.get("metadata", {}))
        case _:
            raise InvalidRequest(
                f"document {number} is {quoted(value)}; give a Document, a dictionary with id and text, or a "
                "string"
            )
    _check(document, number)
    return document


def text_id(text: str) -> str:
    """The id of a document that is a text alone: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _check(document: Document, number: int) -> None:
    """Refuse what cannot be stored as it is. A text that is not Unicode is skipped later, by name."""
    for name in ("id", "text", "title"):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InvalidRequest(f"the {name} of document {number} is {quoted(value)}; give a string")
    if not isinstance(document.metadata, Mapping):
        raise InvalidRequest(f"the metadata of the document {document.id!r} are no dictionary; give one")
    what = f"the id or title of document {number}"
    try:
        require_unicode(document.id)
        require_unicode(document.title)
        what = f"the metadata of the document {quoted(document.id)}"
        require_json(dict(document.metadata))
    except ValueError as error:
        raise InvalidRequest(f"{what} cannot be stored as JSON: {error}") from None


Computed = tuple[list[Document], ComputedDocuments]


def computed(
    documents: Iterable[Document], settings: IndexSettings, models: Mapping[View, Model], workers: int = 1
) -> Iterator[Computed]:
    """Documents in groups, with their views, in the given order.

    Groups are the same with any number of workers, and each is computed alone, so the results are, too.

    Raises:
        ProcessLost: a worker was ended from outside.
    """
    groups = batches(documents)
    if workers == 1:
        builder = SegmentBuilder(settings, models)
        for group in groups:
            yield group, builder.compute(group)
        return
    lost = (
        "a worker ended while it computed documents, perhaps for lack of memory; "
        "give the same command again, with fewer --workers if memory is short"
    )
    with process_pool(workers, _Worker(settings, models), lost) as pool:
        started = ((group, pool.submit(compute, group)) for group in groups)
        # Each worker has a group ready beside the one that it computes, and memory is bounded.
        waiting = deque(islice(started, 2 * workers))
        while waiting:
            group, future = waiting.popleft()
            yield group, future.result()
            waiting.extend(islice(started, 1))


class _Worker:
    """What a worker process holds: the models, read from their files when it computes its first group."""

    def __init__(self, settings: IndexSettings, models: Mapping[View, Model]) -> None:
        self._settings = settings
        self._models = {view: model.load_arguments() for view, model in models.items()}
        self._builder: SegmentBuilder | None = None

    def __call__(self, documents: list[Document]) -> ComputedDocuments:
        if self._builder is None:
            from unmask.engines.native.threads import set_thread_count

            set_thread_count(1)
            models: dict[View, Any] = {view: load(**options) for view, options in self._models.items()}
            self._builder = SegmentBuilder(self._settings, models)
        return self._builder.compute(documents)


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
        self._codec = self._before.codec
        self._quantizer = self._before.quantizer
        self._shared_names = self._before.shared_names
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
            vectors = self._settings.vectors
            if learns_codec := vectors.bits is not None and self._codec is None:
                self._codec = builder.codec()
            if learns_quantizer := vectors.dense_bits is not None and self._quantizer is None:
                self._quantizer = builder.quantizer()
            arrays = builder.arrays(self._codec, self._quantizer)
            facts = builder.facts(arrays, self._codec, self._quantizer)
            # Errors stored with what is learned are those of the vectors that it was learned from, which
            # those of later vectors are compared with.
            if learns_codec and self._codec is not None:
                self._add_shared(self._codec.arrays(), facts, CODEC_FACTS)
            if learns_quantizer and self._quantizer is not None:
                self._add_shared(self._quantizer.arrays(), facts, QUANTIZER_FACTS)
            self._segments.append(self._writer.add_segment(len(builder), arrays, facts))
        deleted = deleted_with(self._before, self._replaced)
        none = np.empty(0, dtype=np.int64)
        shared = dict.fromkeys(self._shared_names, none)
        self.generation = self._writer.commit(shared | deleted | dict.fromkeys(self._segments, none))
        self._deleted = len(self._replaced)

    def _add_shared(
        self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], names: Sequence[str]
    ) -> None:
        """Write what was learned, with the facts of these names."""
        stored = {name: facts[name] for name in names}
        self._shared_names.append(self._writer.add_segment(0, arrays, stored))


def deleted_with(contents: Contents, numbers: Set[int]) -> dict[str, NDArray[np.int64]]:
    """The segments of a generation, each with its deleted rows and with those of further documents."""
    deleted = dict.fromkeys(contents.shared_names, np.empty(0, dtype=np.int64))
    first = 0
    for segment in contents.segments:
        rows = [number - first for number in numbers if first <= number < first + segment.rows]
        deleted[segment.name] = np.union1d(segment.deleted, np.array(rows, dtype=np.int64)).astype(np.int64)
        first += segment.rows
    return deleted


def compact(writer: Writer) -> Generation:
    """Merge all segments into one without what was deleted, and commit.

    Codes of dense vectors that are stored in float32, too, are made anew, by what a sample of all of them
    teaches: that of the first commit may have been small, or of another kind.
    """
    contents = Contents(writer.generation)
    segments = contents.segments
    if not contents.document_count:
        return writer.commit({})
    if len(segments) == 1 and not len(segments[0].deleted):
        return writer.generation
    ends = np.cumsum([segment.rows for segment in segments])[:-1]
    documents = np.split(contents.live_D, ends)
    passages = contents.live_parts()
    facts: dict[str, Any] = {"passages": contents.passage_count}
    shared = [] if contents.codec_segment is None else [contents.codec_segment.name]
    if contents.codec is not None:
        facts |= compression_facts(segments, *CODEC_FACTS)
    relearned, quantized = None, contents.quantizer_segment
    if quantized is not None and "dense/vectors" in segments[0].arrays:
        relearned, learned = _relearned(contents)
        facts |= learned
        shared.append(writer.add_segment(0, relearned.arrays(), learned))
    elif quantized is not None:
        facts |= compression_facts(segments, *QUANTIZER_FACTS)
        shared.append(quantized.name)
    arrays = merged([segment.arrays for segment in segments], documents, passages, relearned)
    name = writer.add_segment(contents.document_count, arrays, facts)
    return writer.commit(dict.fromkeys([*shared, name], np.empty(0, dtype=np.int64)))


def _relearned(contents: Contents) -> tuple[Quantizer, dict[str, Any]]:
    """A quantizer learned from a sample of all live dense vectors, and its facts, with the error of these."""
    live = np.flatnonzero(contents.live_P)
    drawn = np.random.default_rng(0).permutation(live)[:QUANTIZED_SAMPLE]
    sample_NE = Dense([segment.arrays for segment in contents.segments]).vectors(np.sort(drawn))
    assert contents.quantizer is not None
    quantizer = Quantizer.learn(sample_NE, contents.quantizer.bits)
    error = quantizer.error(sample_NE, quantizer.encode(sample_NE))
    return quantizer, dict(zip(QUANTIZER_FACTS, (len(live), error), strict=True))


CODEC_FACTS = ("vectors", "error")
"""The facts of a segment about encoded vectors of tokens: how many, and the mean error."""

QUANTIZER_FACTS = ("dense_vectors", "dense_error")
"""The facts of a segment about codes of dense vectors: how many, and the mean error."""


def compression_facts(segments: Sequence[Segment], count: str, error: str) -> dict[str, Any]:
    """The encoded vectors of segments, deleted ones too, and the mean error of their encoding.

    Args:
        segments: those with documents.
        count: the name of the fact of how many, see `CODEC_FACTS`.
        error: that of the mean error.
    """
    counts = [segment.facts[count] for segment in segments]
    errors = [segment.facts[error] for segment in segments]
    total = sum(number * mean for number, mean in zip(counts, errors, strict=True))
    return {count: sum(counts), error: total / max(1, sum(counts))}
