"""Documents to the arrays of segments, in passages that every model of an index reads whole.

Passages are cut by the tokens of one model. Another model, or the same one after a prompt, can make more
tokens of a passage than it reads; then the passage is cut once more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import TextError
from unmask.models.load import Model
from unmask.search.contents import ContentsBuilder
from unmask.search.documents.values import Document
from unmask.search.late_chunks import late_chunks
from unmask.search.options import View
from unmask.search.passages import (
    Passage,
    TokensIndexed,
    context_of,
    cut_in_two,
    passage_encodings,
    passages_of,
    words_of,
)
from unmask.search.settings import IndexSettings, tokens_of_prompt
from unmask.search.syntax import Syntax, syntax_of
from unmask.search.views.bm25 import Bm25Builder
from unmask.search.views.compression import Codec, Quantizer, pooled
from unmask.search.views.sparse import SparseBuilder
from unmask.search.views.vectors import VectorsBuilder
from unmask.spec import MultiVector, PooledVector
from unmask.tasks.late_texts import limit_of, with_markers
from unmask.tasks.multi_vectors import TokenVectors
from unmask.tasks.prompts import encoded_after, prompt_of
from unmask.tasks.sparse_vectors import WordWeights
from unmask.text import Encoding, Tokenizer
from unmask.text.windows import truncated

CHARACTERS_AT_ONCE = 200_000
"""Documents that are computed together: enough to fill several passes, and few enough for a commit every few
minutes on a slow machine. A million is no faster (docs/log/2026.md)."""


@dataclass(frozen=True, eq=False)
class Reader:
    """How a model reads a passage as a text of its own."""

    tokenizer: Tokenizer
    prompt: str
    max_tokens: int | None
    """The most that it reads, the prompt and special tokens included; None for any number."""
    context: bool = False
    """Whether it reads the context of a passage before it."""

    @classmethod
    def of(cls, model: Model, *, context: bool = False) -> "Reader":
        """The reader of a model that gives a view."""
        head = model.checkpoint.head
        tokenizer, limit = model.tokenizer, model.max_tokens
        if isinstance(head, MultiVector):
            tokenizer = with_markers(tokenizer, head.markers)
            limit = limit_of(head, "document", limit, None)
        return cls(tokenizer, prompt_of(getattr(head, "prompts", ()), "document"), limit, context)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Which texts have more tokens than the model reads.

        Raises:
            TextError: one has no word for this model.
        """
        encodings = encoded_after(
            self.tokenizer,
            self.prompt,
            texts,
            max_tokens=None,
            truncation="error",
            name=lambda _: "a passage of it",
        )
        return [self.max_tokens is not None and len(encoding) > self.max_tokens for encoding in encodings]


def readers_of(models: Mapping[View, Model], *, late: bool) -> list[Reader]:
    """The readers of an index's models, without those that read passages as tokens of the whole document.

    Args:
        models: the model of each view.
        late: whether vectors of passages are made by late chunking.
    """
    readers = []
    for view, model in models.items():
        reader = Reader.of(model, context=view == "dense")
        if view != "dense" or (reader.prompt and not late):
            readers.append(reader)
    return readers


def fitted(
    readers: Sequence[Reader],
    encoding: Encoding,
    passages: Sequence[Passage],
    kind: str = "text",
    syntax: Syntax | None = None,
    *,
    whole: bool = False,
) -> list[Passage]:
    """The passages of a document, each cut in two until every model reads it whole.

    One that is a single token stays as it is: the model reads its beginning.

    Args:
        readers: see `readers_of`.
        encoding: the whole document.
        passages: those that `passages_of` made of it.
        kind: that of the document, see `Document.kind`.
        syntax: that of source code.
        whole: cut nothing, and only see that every model can read something.

    Raises:
        TextError: a passage has no word for one of the models.
    """
    cut = list(passages)
    for reader in readers:
        while True:
            texts = [_read(encoding.text, passage, context=reader.context) for passage in cut]
            flags = reader.too_long(texts)
            cuttable = zip(flags, cut, strict=True)
            which = {at for at, (long, passage) in enumerate(cuttable) if long and passage.tokens > 1}
            if whole or not which:
                break
            cut = cut_in_two(encoding, cut, which, kind, syntax)
    return cut


def _read(text: str, passage: Passage, *, context: bool) -> str:
    """The text of a passage, after that of its context if it is read."""
    return (context_of(text, passage.context) if context else "") + text[passage.start : passage.end]


@dataclass(frozen=True, eq=False)
class CutDocument:
    """A document and its passages."""

    document: Document
    encoding: Encoding
    """What models read of it: all, unless a whole document is too long."""
    passages: tuple[Passage, ...]
    counts: TokensIndexed
    embedded: tuple[Encoding, ...] = ()
    """What the model of one vector reads of each passage, its prompt included."""

    @property
    def texts(self) -> list[str]:
        """The text of each passage."""
        return [self.document.text[passage.start : passage.end] for passage in self.passages]


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


@dataclass(frozen=True, eq=False)
class ComputedDocuments:
    """Documents that were computed together, with the views of their passages."""

    cut: list[CutDocument]
    skipped: list[tuple[str, str]]
    """The ids of documents that cannot be read, with the reason."""
    terms: list[list[str]]
    dense_PE: NDArray[np.float32] | None
    sparse: list[WordWeights]
    vectors: list[TokenVectors]


class SegmentBuilder:
    """Computes the views of documents and collects them for one segment.

    Args:
        settings: what the index is made with.
        models: the model of each view. Passages are counted in tokens of the one of the dense view, which
            reads these tokens, else of the first one, or in words if there is none.
    """

    def __init__(self, settings: IndexSettings, models: Mapping[View, Model]) -> None:
        self._settings = settings
        self._models = models
        first = models.get("dense") or next(iter(models.values()), None)
        self._tokenizer = None if first is None else first.tokenizer
        self._readers = readers_of(models, late=settings.passages.chunking == "late")
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

    def compute(self, documents: Sequence[Document]) -> ComputedDocuments:
        """Cut documents into passages and compute their views; nothing is collected."""
        cut, skipped = self._cut(documents)
        texts = [text for document in cut for text in document.texts]
        analyzer = self._settings.analyzer
        terms = [] if analyzer is None else [analyzer.counted(text) for text in texts]
        dense_PE, sparse, vectors = None, list[WordWeights](), list[TokenVectors]()
        if "dense" in self._models and cut:
            dense_PE = self._dense_vectors(cut)
        if "sparse" in self._models:
            sparse = self._models["sparse"].sparse_vectors(texts, "document", truncation="end")
            cut = _with_dropped(cut, [vector.truncated_tokens for vector in sparse])
        if "multi_vector" in self._models:
            vectors = self._models["multi_vector"].multi_vectors(texts, "document", truncation="end")
            cut = _with_dropped(cut, [vector.truncated_tokens for vector in vectors])
            vectors = [pooled(vector, self._settings.vectors.pooling) for vector in vectors]
        return ComputedDocuments(cut, skipped, terms, dense_PE, sparse, vectors)

    def add(self, computed: ComputedDocuments) -> None:
        """Collect documents whose views are computed."""
        for terms in computed.terms:
            self._bm25.add(terms)
        if computed.dense_PE is not None:
            self._dense.append(computed.dense_PE)
            self.bytes += computed.dense_PE.nbytes
        for weights in computed.sparse:
            self._sparse.add(weights.ids, weights.weights)
            self.bytes += 8 * len(weights.ids)
        passages = (
            [passage for document in computed.cut for passage in document.passages]
            if computed.vectors
            else []
        )
        for passage, vector in zip(passages, computed.vectors, strict=True):
            spans_N2 = np.where(vector.spans_N2 < 0, vector.spans_N2, vector.spans_N2 + passage.start)
            self._vectors.add(vector.vectors_NE, spans_N2)
            self.bytes += 2 * vector.vectors_NE.size
        for document in computed.cut:
            self._contents.add(document.document, document.passages, document.counts)
            self.bytes += 4 * len(document.document.text)

    def codec(self) -> Codec:
        """A codec of vectors of tokens that is learned from those collected."""
        assert self._settings.vectors.bits is not None
        return Codec.learn(self._token_vectors(), self._settings.vectors.bits)

    def quantizer(self) -> Quantizer:
        """A quantizer of dense vectors that is learned from those collected."""
        assert self._settings.vectors.dense_bits is not None
        return Quantizer.learn(np.concatenate(self._dense), self._settings.vectors.dense_bits)

    def facts(
        self,
        arrays: Mapping[str, NDArray[Any]],
        codec: Codec | None = None,
        quantizer: Quantizer | None = None,
    ) -> dict[str, Any]:
        """What else belongs to the segment: its number of passages, and how well vectors are encoded."""
        facts: dict[str, Any] = {"passages": self.passages}
        if codec is not None:
            codes_N, packed_NB = arrays["vectors/codes"], arrays["vectors/residuals"]
            error = codec.error(self._token_vectors(), codes_N, packed_NB)
            facts |= {"vectors": len(codes_N), "error": error}
        if quantizer is not None:
            codes_NB = arrays["dense/codes"]
            error = quantizer.error(np.concatenate(self._dense), codes_NB)
            facts |= {"dense_vectors": len(codes_NB), "dense_error": error}
        return facts

    def _token_vectors(self) -> NDArray[np.float16]:
        model = self._models["multi_vector"]
        return self._vectors.values(model.checkpoint.head.width(model.spec))

    def arrays(
        self, codec: Codec | None = None, quantizer: Quantizer | None = None
    ) -> dict[str, NDArray[Any]]:
        """The arrays of the segment.

        Args:
            codec: what encodes vectors of tokens; None stores float16.
            quantizer: what makes the codes of dense vectors; None stores none.
        """
        arrays = self._contents.arrays()
        if self._settings.analyzer is not None:
            arrays |= self._bm25.arrays()
        if "dense" in self._models:
            vectors_PE = np.concatenate(self._dense)
            if self._settings.vectors.dense_floats:
                arrays["dense/vectors"] = vectors_PE
            if quantizer is not None:
                arrays["dense/codes"] = quantizer.encode(vectors_PE)
        if "sparse" in self._models:
            arrays |= self._sparse.arrays()
        if (model := self._models.get("multi_vector")) is not None:
            arrays |= self._vectors.arrays(model.checkpoint.head.width(model.spec), codec)
        return arrays

    def _cut(self, documents: Sequence[Document]) -> tuple[list[CutDocument], list[tuple[str, str]]]:
        settings = self._settings.passages
        cut, skipped = [], []
        for document, encoding in zip(documents, self._encodings(documents), strict=True):
            if isinstance(encoding, TextError):
                skipped.append((document.id, str(encoding)))
                continue
            syntax = self._syntax(document)
            passages = passages_of(encoding, **self._limits, kind=document.kind, syntax=syntax)
            read = encoding
            try:
                passages = fitted(
                    self._readers, encoding, passages, document.kind, syntax, whole=settings.whole
                )
            except TextError as error:
                skipped.append((document.id, str(error)))
                continue
            if settings.whole and len(encoding) > settings.max_tokens:
                read = truncated(encoding, settings.max_tokens)
            counts = TokensIndexed.of(read, None if settings.whole else passages)
            cut.append(self._with_parts(CutDocument(document, read, tuple(passages), counts)))
        return cut, skipped

    def _with_parts(self, cut: CutDocument) -> CutDocument:
        """The document with what the model of one vector reads of its passages.

        A prompt can change how the text after it is split. If a whole document, or a passage of one token, is
        then too long, its end is dropped and counted.
        """
        settings = self._settings.passages
        if "dense" not in self._models or settings.chunking == "late":
            return cut
        prompt = self._document_prompt
        if not prompt:
            parts = [cut.encoding] if settings.whole else passage_encodings(cut.encoding, cut.passages)
            return replace(cut, embedded=tuple(parts))
        model = self._models["dense"]
        limit = model.max_tokens
        if settings.whole:
            most = settings.max_tokens + tokens_of_prompt(model, prompt)
            limit = most if limit is None else min(limit, most)
        parts = model.tokenizer.encode_batch(
            [prompt + _read(cut.document.text, passage, context=True) for passage in cut.passages],
            max_tokens=limit,
            truncation="end",
        )
        dropped = sum(part.truncated_tokens for part in parts)
        return replace(cut, embedded=tuple(parts), counts=cut.counts.at_least_dropped(dropped))

    def _syntax(self, document: Document) -> Syntax | None:
        """The syntax of source code by which passages are cut; with headers if they are embedded, too."""
        settings = self._settings.passages
        if document.kind != "code" or settings.code != "syntax" or settings.whole:
            return None
        syntax = syntax_of(document.id, document.text)
        headers = "dense" in self._models and settings.chunking == "windows"
        return syntax if syntax is None or headers else syntax.without_headers()

    @property
    def _document_prompt(self) -> str:
        """What the model of one vector reads before every passage."""
        head = self._models["dense"].checkpoint.head
        return prompt_of(head.prompts, "document") if isinstance(head, PooledVector) else ""

    @property
    def _limits(self) -> dict[str, Any]:
        """How long passages are, as arguments of `passages_of`."""
        settings = self._settings.passages
        if settings.whole:
            return {"max_tokens": None}
        return {"max_tokens": settings.max_tokens, "overlap_tokens": settings.overlap_tokens}

    def _encodings(self, documents: Sequence[Document]) -> list[Encoding | TextError]:
        """Each document tokenized whole, or the reason why it cannot be."""
        encodings: list[Encoding | TextError] = []
        if self._tokenizer is not None:
            try:
                texts = [document.text for document in documents]
                return [*self._tokenizer.encode_batch(texts, max_tokens=None)]
            except TextError:
                pass
        for document in documents:
            try:
                encodings.append(_encoded(self._tokenizer, document.text))
            except TextError as error:
                encodings.append(error)
        return encodings

    def _dense_vectors(self, cut: Sequence[CutDocument]) -> NDArray[np.float32]:
        """The vector of each passage, (P, E)."""
        model = self._models["dense"]
        head = model.embedding_head(normalize=True)
        if self._settings.passages.chunking == "late":
            return np.concatenate(
                late_chunks(model, head, [(document.encoding, document.passages) for document in cut])
            )
        encodings = [part for document in cut for part in document.embedded]
        # Equal passages get equal vectors, and so equal scores: that of one computation.
        first = {part.ids.tobytes(): number for number, part in reversed(list(enumerate(encodings)))}
        rows = {number: row for row, number in enumerate(sorted(first.values()))}
        vectors_PE = model.embed_encodings(
            [encodings[number] for number in rows], head, prompt=self._document_prompt
        )
        return vectors_PE[[rows[first[part.ids.tobytes()]] for part in encodings]]


def _encoded(tokenizer: Tokenizer | None, text: str) -> Encoding:
    if tokenizer is None:
        return words_of(text)
    (encoding,) = tokenizer.encode_batch([text], max_tokens=None, name=lambda _: "it")
    return encoding


def _with_dropped(cut: Sequence[CutDocument], dropped: Sequence[int]) -> list[CutDocument]:
    """Whole documents, or passages of one token, that lost as many tokens at their ends in one view."""
    rest = iter(dropped)
    return [
        replace(document, counts=document.counts.at_least_dropped(sum(islice(rest, len(document.passages)))))
        for document in cut
    ]
