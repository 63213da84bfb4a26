"""Documents to the arrays of segments."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidText
from unmask.loaded import Model
from unmask.search.contents import Chunk, ContentsBuilder
from unmask.search.documents.values import Document
from unmask.search.passages import Passage, late_chunks, passages_of
from unmask.search.settings import IndexSettings
from unmask.search.options import View
from unmask.search.views.bm25 import Bm25Builder
from unmask.search.views.sparse import SparseBuilder
from unmask.search.views.vectors import VectorsBuilder
from unmask.text import Tokenizer

CHARACTERS_AT_ONCE = 1_000_000
"""Documents that are computed together: enough that passages of equal length fill every pass."""

SEGMENT_BYTES = 256_000_000
"""Bytes of texts and vectors after which a segment is written."""


@dataclass(frozen=True)
class Cut:
    """A document and its passages."""

    document: Document
    passages: tuple[Passage, ...]
    tokens: int
    dropped: int

    @property
    def texts(self) -> list[str]:
        """The text of each passage."""
        return [self.document.text[one.start : one.end] for one in self.passages]


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups of about `CHARACTERS_AT_ONCE`."""
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size >= CHARACTERS_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


class SegmentBuilder:
    """Computes the views of documents and collects them for one segment.

    Args:
        settings: what the index is made with.
        models: the model of each view.
    """

    def __init__(self, settings: IndexSettings, models: Mapping[View, Model]) -> None:
        self._settings = settings
        self._models = models
        self._contents = ContentsBuilder()
        self._bm25 = Bm25Builder()
        self._sparse = SparseBuilder()
        self._vectors = VectorsBuilder()
        self._dense: list[NDArray[np.float32]] = []
        self.bytes = 0
        """Approximate size of what is collected."""

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def passages(self) -> int:
        """The number of passages."""
        return self._contents.passages

    def add(self, documents: Sequence[Document]) -> list[Cut]:
        """Cut documents into passages, compute their views and collect them."""
        cut = [self._cut(document) for document in documents]
        for one in cut:
            chunks = [Chunk(passage.start, passage.end, passage.tokens) for passage in one.passages]
            self._contents.add(one.document, chunks, one.tokens, one.dropped)
            self.bytes += 4 * len(one.document.text)
        texts = [text for one in cut for text in one.texts]
        if self._settings.analyzer is not None:
            for text in texts:
                self._bm25.add(self._settings.analyzer.counted(text))
        if "dense" in self._models:
            self._add_dense(cut, texts)
        if "sparse" in self._models:
            for found in self._models["sparse"].sparse_vectors(texts, "document", truncation="end"):
                self._sparse.add(found.ids, found.weights)
                self.bytes += 8 * len(found.ids)
        if "multi_vector" in self._models:
            self._add_vectors(cut, texts)
        return cut

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the segment."""
        arrays = self._contents.arrays()
        if self._settings.analyzer is not None:
            arrays |= self._bm25.arrays()
        if "dense" in self._models:
            arrays["dense/vectors"] = np.concatenate(self._dense)
        if "sparse" in self._models:
            arrays |= self._sparse.arrays()
        if (model := self._models.get("multi_vector")) is not None:
            arrays |= self._vectors.arrays(model.checkpoint.head.width(model.spec))
        return arrays

    def _tokenizer(self) -> Tokenizer:
        """That of the first model, which decides where passages end."""
        return next(iter(self._models.values())).tokenizer

    def _cut(self, document: Document) -> Cut:
        settings = self._settings.passages
        try:
            document.text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(
                f"the document {document.id!r} is not Unicode text: character {error.start} is a lone "
                "surrogate; remove it"
            ) from None
        raise NotImplementedError(settings)

    def _add_dense(self, cut: Sequence[Cut], texts: Sequence[str]) -> None:
        model = self._models["dense"]
        if self._settings.passages.chunking == "late":
            found = np.concatenate([late_chunks(model, one.document.text, one.passages) for one in cut])
        else:
            found = model.embed_document(texts, normalize=True, truncation="end")
        self._dense.append(found)
        self.bytes += found.nbytes

    def _add_vectors(self, cut: Sequence[Cut], texts: Sequence[str]) -> None:
        starts = [passage.start for one in cut for passage in one.passages]
        found = self._models["multi_vector"].multi_vectors(texts, "document", truncation="end")
        for start, one in zip(starts, found, strict=True):
            spans_N2 = np.where(one.spans_N2 < 0, one.spans_N2, one.spans_N2 + start)
            self._vectors.add(one.vectors_NE, spans_N2)
            self.bytes += 2 * one.vectors_NE.size
