"""Models as `mteb` drives them, so that its benchmarks measure what users run.

The classes have the methods of mteb's protocols (version 2) and need mteb only for `mteb_model_meta`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, MissingExtra
from unmask.loaded import Model
from unmask.search.documents import Document
from unmask.search.documents.rows import joined
from unmask.search.evaluation.dense import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    DenseSettings,
    dense_run,
    prompt_of,
)
from unmask.search.evaluation.figures import Run, ranking
from unmask.tasks.similarity import Metric, similarity
from unmask.text import Encoding


class MtebEncoder:
    """An embedding model with the methods of mteb's ``EncoderProtocol``."""

    def __init__(self, model: Model, *, metric: Metric = "cosine") -> None:
        self.model, self.metric = model, metric
        self.head = model.embedding_head()

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **_: Any,
    ) -> NDArray[np.float32]:
        """The vectors of all texts of the batches, (S, E).

        Queries and documents of retrieval tasks get the checkpoint's prompt of their side, if it has one. The
        end of a text that is too long is dropped, as mteb expects, and a text without words has the vector 0.
        """
        side = getattr(prompt_type, "value", prompt_type)
        names = {"query": QUERY_PROMPTS, "document": DOCUMENT_PROMPTS}.get(side or "", ())
        prompt = prompt_of(self.head, names)
        vectors: list[NDArray[np.float32]] = [np.empty((0, self.head.width(self.model.spec)), np.float32)]
        vectors += [self._embedded([prompt + text for text in batch["text"]]) for batch in inputs]
        return np.concatenate(vectors)

    def _embedded(self, texts: Sequence[str]) -> NDArray[np.float32]:
        found: list[Encoding] = []
        places: list[int] = []
        for place, text in enumerate(texts):
            try:
                found += self.model.tokenizer.encode_batch(
                    [text], max_tokens=self.model.max_tokens, truncation="end"
                )
                places.append(place)
            except EmptyText:
                continue
        vectors_SE = np.zeros((len(texts), self.head.width(self.model.spec)), dtype=np.float32)
        if found:
            vectors_SE[places] = self.model.embed_encodings(found, self.head)
        return vectors_SE

    def similarity(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """The similarity of every vector with every other, (A, B)."""
        return similarity(np.asarray(embeddings1), np.asarray(embeddings2), metric=self.metric)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """The similarity of the vectors of each pair."""
        pairs = zip(np.asarray(embeddings1), np.asarray(embeddings2), strict=True)
        return np.array([similarity(a, b, metric=self.metric)[0, 0] for a, b in pairs], dtype=np.float32)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb records of the model."""
        return _meta(
            self.model.name,
            self.model.revision,
            max_tokens=self.model.max_tokens,
            embed_dim=self.head.width(self.model.spec),
            n_parameters=self.model.parameter_count,
            similarity_fn_name=self.metric,
            use_instructions=bool(self.head.prompts),
        )


class SearchEngine(Protocol):
    """What `MtebSearch` drives: any way to index documents and search them."""

    @property
    def name(self) -> str:
        """What results are reported under, such as the model's name."""

    @property
    def revision(self) -> str | None:
        """The model's revision, if it has one."""

    def index(self, documents: Iterable[Document]) -> None:
        """Replace what is indexed by these documents."""

    def search(
        self, queries: Mapping[str, str], depth: int, among: Mapping[str, Collection[str]] | None = None
    ) -> Run:
        """The best ``depth`` documents for each query, or the best of those named by ``among``."""


class DenseEngine:
    """Exact search by one vector per text, or by the best passage of each document."""

    def __init__(self, model: Model, settings: DenseSettings | None = None) -> None:
        self.model, self.settings = model, settings or DenseSettings()
        self.documents: list[Document] = []

    @property
    def name(self) -> str:
        """See `SearchEngine`."""
        return self.model.name

    @property
    def revision(self) -> str | None:
        """See `SearchEngine`."""
        return self.model.revision

    def index(self, documents: Iterable[Document]) -> None:
        """See `SearchEngine`."""
        self.documents = list(documents)

    def search(
        self, queries: Mapping[str, str], depth: int, among: Mapping[str, Collection[str]] | None = None
    ) -> Run:
        """See `SearchEngine`."""
        kept = depth if among is None else max(len(self.documents), 1)
        found = dense_run(self.model, queries, self.documents, replace(self.settings, depth=kept)).scores
        if among is None:
            return found
        return {
            query: _best({one: scores[one] for one in among.get(query, ()) if one in scores}, depth)
            for query, scores in found.items()
        }


class MtebSearch:
    """A search engine with the methods of mteb's ``SearchProtocol``."""

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        encode_kwargs: Any = None,
        num_proc: int | None = None,
        **_: Any,
    ) -> None:
        """Index the rows of a corpus, whose titles stand before their texts."""
        self.engine.index(
            Document(str(row["id"]), joined(row.get("title") or "", row["text"]), row.get("title") or "")
            for row in corpus
        )

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        top_k: int,
        encode_kwargs: Any = None,
        top_ranked: Mapping[str, Collection[str]] | None = None,
        num_proc: int | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """For each query the scores of its best documents, or of those of ``top_ranked`` to be reranked."""
        asked = {str(row["id"]): str(row["text"]) for row in queries}
        found = self.engine.search(asked, top_k, top_ranked)
        return {query: dict(scores) for query, scores in found.items()}

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb records of the engine."""
        return _meta(self.engine.name, self.engine.revision)


def _best(scores: Mapping[str, float], depth: int) -> dict[str, float]:
    return {document: scores[document] for document in ranking(scores)[:depth]}


def _meta(name: str, revision: str | None, **values: Any) -> Any:
    try:
        kind = import_module("mteb.models.model_meta").ModelMeta
    except ImportError:
        raise MissingExtra("mteb is needed to be driven by it: pip install mteb") from None
    named = name if "/" in name else f"unmask/{name}"  # mteb's names are organization/model
    return kind.create_empty({"name": named, "revision": revision, **values})
