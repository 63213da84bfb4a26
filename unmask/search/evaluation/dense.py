"""Exact search by vectors without an index: every query against every document.

Axes: Q queries; W documents of one part of the corpus; P passages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest
from unmask.loaded import Model
from unmask.model.spec import PooledVector
from unmask.search.documents import Document, Skipped
from unmask.search.evaluation.figures import ranking
from unmask.search.late_chunks import check_late_chunks, late_chunks
from unmask.search.passages import Passage, TokensIndexed, passage_encodings, passages_of
from unmask.tasks.progress import Progress
from unmask.tasks.similarity import Metric, similarity
from unmask.text import Encoding

PassageMode = Literal["none", "window", "late"]
"""How a long document becomes vectors: its beginning alone; passages embedded each on its own; or passages by
late chunking. A document's score is that of its best passage."""

DEPTH = 1000
"""Documents that are kept for each query, as `mteb` does."""
LATE_TOKENS = 256
"""Tokens of a passage by late chunking, unless another number is given."""
PART = 256
"""Documents that are embedded together."""
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""Names of the prompts of each side, the first that the checkpoint has."""


@dataclass(frozen=True)
class DenseSettings:
    """How documents are embedded and compared."""

    passages: PassageMode = "none"
    passage_tokens: int | None = None
    """The tokens of a passage, special tokens included; None: as many as the model reads, or 256 by late
    chunking."""
    overlap_tokens: int = 0
    metric: Metric = "cosine"
    depth: int = DEPTH


@dataclass
class DenseRun:
    """The documents found for each query, and how much of the documents was read."""

    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each query the scores of its best documents."""
    documents: int = 0
    passages: int = 0
    truncated: int = 0
    """Documents of which tokens were dropped."""
    tokens: TokensIndexed = field(default_factory=TokensIndexed)
    skipped: list[Skipped] = field(default_factory=list)


def dense_run(
    model: Model,
    queries: Mapping[str, str],
    corpus: Iterable[Document | Skipped],
    settings: DenseSettings | None = None,
    *,
    progress: Progress | None = None,
) -> DenseRun:
    """Search the corpus for every query; the corpus is read once, a part at a time.

    Raises:
        InvalidRequest: the checkpoint gives no single vector per text, or no late chunking is possible.
        TextError: a query is empty.
    """
    settings = settings or DenseSettings()
    head = model.embedding_head()
    if settings.passages == "late":
        check_late_chunks(head)
    longest, wanted = model.max_tokens, settings.passage_tokens
    if settings.passages == "window" and longest is not None and wanted is not None and wanted > longest:
        raise InvalidRequest(f"passage_tokens is {wanted}, and the model reads at most {longest}; give fewer")
    reader = _Reader(model, head, settings)
    run = DenseRun({query: {} for query in queries})
    names = list(queries)
    queries_QE = reader.queries(list(queries.values()), names)
    for part in _parts(corpus, run):
        documents, vectors_PE, counts = reader.documents(part, run)
        if not documents:
            continue
        scores_QP = similarity(queries_QE, vectors_PE, metric=settings.metric)
        starts = np.cumsum([0, *counts[:-1]])
        _keep_best(
            run.scores, names, documents, np.maximum.reduceat(scores_QP, starts, axis=1), settings.depth
        )
        run.documents += len(documents)
        run.passages += len(vectors_PE)
        if progress is not None:
            progress(run.documents, 0)
    if not run.documents:
        raise InvalidRequest("the corpus holds no documents; name another folder")
    return run


def _parts(corpus: Iterable[Document | Skipped], run: DenseRun) -> Iterator[list[Document]]:
    read = iter(corpus)
    while some := list(islice(read, PART)):
        documents = [one for one in some if isinstance(one, Document)]
        run.skipped += [one for one in some if isinstance(one, Skipped)]
        if documents:
            yield documents


def _keep_best(
    found: dict[str, dict[str, float]],
    queries: Sequence[str],
    documents: Sequence[Document],
    scores_QW: NDArray[np.float32],
    depth: int,
) -> None:
    """Add a part's scores to those found, of which the best ``depth`` are kept."""
    ids = [one.id for one in documents]
    for query, scores_W in zip(queries, scores_QW.tolist(), strict=True):
        mine = found[query]
        mine.update(zip(ids, scores_W, strict=True))
        if len(mine) > depth:
            found[query] = {document: mine[document] for document in ranking(mine)[:depth]}


@dataclass(frozen=True, eq=False)
class _Reader:
    """Embeds queries and documents."""

    model: Model
    head: PooledVector
    settings: DenseSettings

    def queries(self, texts: Sequence[str], names: Sequence[str]) -> NDArray[np.float32]:
        """One vector per query, (Q, E); a query that is too long is an error."""
        prompt = prompt_of(self.head, QUERY_PROMPTS)
        encodings = self.model.tokenizer.encode_batch(
            [prompt + text for text in texts],
            max_tokens=self.model.max_tokens,
            name=lambda index: f"the query {names[index]!r}",
        )
        return self.model.embed_encodings(encodings, self.head)

    def documents(
        self, part: Sequence[Document], run: DenseRun
    ) -> tuple[list[Document], NDArray[np.float32], list[int]]:
        """The documents that have words, the vectors of their passages, (P, E), and how many each has."""
        whole = self.settings.passages == "none"
        prompt = "" if self.settings.passages == "window" else self._document_prompt
        read: list[Document] = []
        encodings: list[Encoding] = []
        for one in part:
            try:
                encodings += self.model.tokenizer.encode_batch(
                    [prompt + one.text],
                    max_tokens=self.model.max_tokens if whole else None,
                    truncation="end" if whole else "error",
                    with_details=True,
                )
                read.append(one)
            except EmptyText:
                run.skipped.append(Skipped(one.id, "it has no words that the tokenizer knows"))
        for encoding in encodings:
            run.tokens += TokensIndexed.of(encoding)
            run.truncated += encoding.truncated_tokens > 0
        pairs = list(zip(encodings, read, strict=True))
        if self.settings.passages == "late":
            parts = [self._late(one, document.kind) for one, document in pairs]
            vectors_PE = np.concatenate(parts) if parts else np.empty((0, self.head.width(self.model.spec)))
            return read, vectors_PE.astype(np.float32), [len(one) for one in parts]
        inputs = [[one] if whole else self._windows(one, document.kind) for one, document in pairs]
        flat = [one for some in inputs for one in some]
        return read, self.model.embed_encodings(flat, self.head), [len(some) for some in inputs]

    def _windows(self, encoding: Encoding, kind: str) -> list[Encoding]:
        """The passages of a document, each tokenized with the prompt if there is one."""
        tokenizer, prompt = self.model.tokenizer, self._document_prompt
        taken = len(tokenizer.encode(prompt)) - int(encoding.special.sum()) if prompt else 0
        most = self.settings.passage_tokens or self.model.max_tokens
        passages = self._passages(encoding, None if most is None else most - taken, kind)
        if not prompt:
            return passage_encodings(encoding, passages)
        texts = [prompt + encoding.text[one.start : one.end] for one in passages]
        return tokenizer.encode_batch(texts, max_tokens=self.model.max_tokens, truncation="end")

    def _late(self, encoding: Encoding, kind: str) -> NDArray[np.float32]:
        passages = self._passages(encoding, self.settings.passage_tokens or LATE_TOKENS, kind)
        return late_chunks(self.model, self.head, encoding, passages)

    def _passages(self, encoding: Encoding, most: int | None, kind: str) -> list[Passage]:
        overlap = self.settings.overlap_tokens
        return passages_of(encoding, max_tokens=most, overlap_tokens=overlap, kind=kind)

    @property
    def _document_prompt(self) -> str:
        return prompt_of(self.head, DOCUMENT_PROMPTS)


def prompt_of(head: PooledVector, names: Sequence[str]) -> str:
    """The checkpoint's prompt with the first of these names that it has; empty if it has none."""
    prompts = dict(head.prompts)
    return next((prompts[name] for name in names if name in prompts), "")
