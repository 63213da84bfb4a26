"""The documents and passages of one generation of an index.

Documents and passages of all segments are numbered through, in the order of the segments.

Axes: D documents; P passages.
"""

import bisect
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.search.documents.values import Document
from unmask.search.passages import Passage, TokensIndexed
from unmask.search.store import Generation, Segment
from unmask.search.store.arrays import all_strings, encode_strings, string_at
from unmask.search.syntax import Range
from unmask.search.views.compression import Codec, Quantizer


class Place(NamedTuple):
    """Where a passage stands."""

    document: int
    start: int
    end: int


class Contents:
    """The documents and passages of one generation."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.segments = tuple(segment for segment in generation.segments if segment.rows)
        """Those with documents. Those without hold what encodes vectors, which all others share."""
        self._first_document = np.cumsum([0, *(segment.rows for segment in self.segments)]).tolist()
        sizes = [len(segment.arrays["passage/document"]) for segment in self.segments]
        self._first_passage = np.cumsum([0, *sizes]).tolist()
        self.passage_sizes: tuple[int, ...] = tuple(sizes)

    @cached_property
    def codec_segment(self) -> Segment | None:
        """What encodes vectors of tokens; None if they are not encoded, or none is stored yet."""
        return self._shared("vectors")

    @cached_property
    def quantizer_segment(self) -> Segment | None:
        """What makes the codes of dense vectors; None if there are none, or none is stored yet."""
        return self._shared("dense_vectors")

    def _shared(self, fact: str) -> Segment | None:
        """The segment without documents that was learned from vectors, which a fact counts."""
        for segment in self.generation.segments:
            if not segment.rows and segment.facts.get(fact):
                return segment
        return None

    @property
    def shared_names(self) -> list[str]:
        """The segments without documents that others need; every commit names them again."""
        shared = (self.codec_segment, self.quantizer_segment)
        return [segment.name for segment in shared if segment is not None]

    @cached_property
    def codec(self) -> Codec | None:
        """See `codec_segment`."""
        segment = self.codec_segment
        return None if segment is None else Codec.of_arrays(segment.arrays)

    @cached_property
    def quantizer(self) -> Quantizer | None:
        """See `quantizer_segment`."""
        segment = self.quantizer_segment
        return None if segment is None else Quantizer.of_arrays(segment.arrays)

    @property
    def document_count(self) -> int:
        """Documents that are not deleted."""
        return int(self.live_D.sum())

    @property
    def passage_count(self) -> int:
        """Passages of documents that are not deleted."""
        return int(self.live_P.sum())

    @cached_property
    def live_D(self) -> NDArray[np.bool_]:
        """Which documents are not deleted."""
        live = np.ones(self._first_document[-1], dtype=np.bool_)
        for first, segment in zip(self._first_document, self.segments, strict=False):
            live[first + segment.deleted] = False
        return live

    @cached_property
    def document_P(self) -> NDArray[np.int64]:
        """The document of each passage."""
        parts = [
            segment.arrays["passage/document"].astype(np.int64) + first
            for first, segment in zip(self._first_document, self.segments, strict=False)
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    @cached_property
    def live_P(self) -> NDArray[np.bool_]:
        """Which passages are of documents that are not deleted."""
        return self.live_D[self.document_P]

    def live_parts(self) -> list[NDArray[np.bool_]]:
        """`live_P` of each segment."""
        return np.split(self.live_P, self._first_passage[1:-1]) if self.segments else []

    @cached_property
    def ids(self) -> list[str]:
        """The id of every document, deleted ones too."""
        return [
            id
            for segment in self.segments
            for id in all_strings(segment.arrays["document/id"], segment.arrays["document/id_offsets"])
        ]

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of each document that is not deleted, by id."""
        return {self.ids[number]: number for number in np.flatnonzero(self.live_D).tolist()}

    def number(self, id: str) -> int:
        """The number of a document.

        Raises:
            InvalidRequest: the index has no such document.
        """
        if id not in self.numbers:
            raise InvalidRequest(f"the index has no document {id!r}; ids are those that hits give")
        return self.numbers[id]

    def digest(self, number: int) -> bytes:
        """What `digest_of` gave for a document."""
        segment, row = self._document(number)
        return bytes(segment.arrays["document/digest"][row])

    def id(self, number: int) -> str:
        """The id of a document, without reading those of all others."""
        return self._string("document/id", number)

    def text(self, number: int) -> str:
        """The text of a document."""
        return self._string("document/text", number)

    def title(self, number: int) -> str:
        """The title of a document."""
        return self._string("document/title", number)

    def facts(self, number: int) -> Mapping[str, Any]:
        """``kind``, ``pages``, ``metadata``, ``tokens`` and ``dropped`` of a document, and ``contexts``,
        characters of the contexts of its passages by their starts, if they have any."""
        stored: Mapping[str, Any] = json.loads(self._string("document/facts", number))
        return stored

    def document(self, number: int) -> Document:
        """A document as it was given."""
        facts = self.facts(number)
        return Document(
            self.id(number),
            self.text(number),
            self.title(number),
            tuple(facts["pages"]),
            facts["kind"],
            facts["metadata"],
        )

    def page(self, number: int, character: int) -> int | None:
        """The page of a document on which a character stands, from 1; None without pages."""
        return page_at(self.facts(number)["pages"], character)

    def place(self, passage: int) -> Place:
        """The document, the start and the end of a passage."""
        which = bisect.bisect_right(self._first_passage, passage) - 1
        arrays, row = self.segments[which].arrays, passage - self._first_passage[which]
        return Place(
            int(arrays["passage/document"][row]) + self._first_document[which],
            int(arrays["passage/start"][row]),
            int(arrays["passage/end"][row]),
        )

    def context(self, place: Place) -> list[Range]:
        """The characters that were embedded before a passage, see `Passage.context`."""
        contexts = self.facts(place.document).get("contexts", {})
        return [Range(*part) for part in contexts.get(str(place.start), ())]

    def tie_key(self, passage: int) -> tuple[str, int]:
        """The order of passages with equal scores: by document id, then by place."""
        place = self.place(passage)
        return self.ids[place.document], place.start

    def among(self, ids: Iterable[str]) -> NDArray[np.bool_]:
        """Which passages are of these documents, (P,); ids that the index does not have are passed over."""
        chosen = np.zeros(len(self.live_D), dtype=np.bool_)
        chosen[[self.numbers[id] for id in ids if id in self.numbers]] = True
        return chosen[self.document_P]

    def matching(self, accept: Callable[[Mapping[str, Any]], bool]) -> NDArray[np.bool_]:
        """Which passages are of live documents whose metadata are accepted, (P,)."""
        accepted = np.zeros(len(self.live_D), dtype=np.bool_)
        for number in np.flatnonzero(self.live_D).tolist():
            accepted[number] = accept(self._metadata[number])
        return accepted[self.document_P]

    @cached_property
    def metadata_keys(self) -> tuple[str, ...]:
        """The keys that metadata of live documents have, in order."""
        live = np.flatnonzero(self.live_D).tolist()
        return tuple(sorted({key for number in live for key in self._metadata[number]}))

    @cached_property
    def _metadata(self) -> list[Mapping[str, Any]]:
        return [self.facts(number)["metadata"] for number in range(len(self.live_D))]

    def _document(self, number: int) -> tuple[Segment, int]:
        which = bisect.bisect_right(self._first_document, number) - 1
        return self.segments[which], number - self._first_document[which]

    def _string(self, name: str, number: int) -> str:
        segment, row = self._document(number)
        return string_at(segment.arrays[name], segment.arrays[f"{name}_offsets"], row)


def page_at(pages: Sequence[int], character: int) -> int | None:
    """The page of a character, from 1, by the characters at which pages begin; None without pages."""
    return bisect.bisect_right(pages, character) if pages else None


def digest_of(document: Document) -> bytes:
    """SHA-256 of everything that is stored of a document; 32 bytes."""
    parts = [document.id, document.text, document.title, list(document.pages), document.kind]
    stored = json.dumps([*parts, dict(document.metadata)], ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(stored.encode()).digest()


class ContentsBuilder:
    """Collects documents and the places of their passages, in order."""

    def __init__(self) -> None:
        self._documents: list[Document] = []
        self._facts: list[str] = []
        self._passages: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def passages(self) -> int:
        """The number of passages so far."""
        return len(self._passages)

    def add(self, document: Document, passages: Sequence[Passage], counts: TokensIndexed) -> None:
        """Add a document, its passages, and how many of its tokens are in them."""
        number = len(self._documents)
        facts: dict[str, Any] = {
            "kind": document.kind,
            "pages": list(document.pages),
            "metadata": dict(document.metadata),
            "tokens": counts.tokens,
            "dropped": counts.dropped,
        }
        contexts = {str(passage.start): passage.context for passage in passages if passage.context}
        if contexts:
            facts["contexts"] = contexts
        self._facts.append(json.dumps(facts, ensure_ascii=False, allow_nan=False))
        self._documents.append(document)
        self._passages += [(number, passage.start, passage.end, passage.tokens) for passage in passages]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of a segment."""
        documents = self._documents
        strings = {
            "document/id": [document.id for document in documents],
            "document/text": [document.text for document in documents],
            "document/title": [document.title for document in documents],
            "document/facts": self._facts,
        }
        arrays: dict[str, NDArray[Any]] = {}
        for name, values in strings.items():
            arrays[name], arrays[f"{name}_offsets"] = encode_strings(values)
        digests = b"".join(map(digest_of, documents))
        arrays["document/digest"] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
        places = np.array(self._passages, dtype=np.int32).reshape(-1, 4)
        for column, name in enumerate(("document", "start", "end", "tokens")):
            arrays[f"passage/{name}"] = np.ascontiguousarray(places[:, column])
        return arrays
