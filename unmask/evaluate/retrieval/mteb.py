"""Models and indexes as `mteb` drives them, so that its benchmarks measure what users run.

The classes have the methods of mteb's protocols (version 2) and need mteb only for `mteb_model_meta`.
"""

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest, MissingExtra
from unmask.evaluate.retrieval.collection import CollectionSettings, passage_mode
from unmask.models.load import Model
from unmask.search.documents import Document
from unmask.search.documents.rows import joined
from unmask.search.index import Index, Models
from unmask.search.options import Mode
from unmask.search.searcher import check_candidates
from unmask.spec import PairScore
from unmask.tasks.embed import Metric, similarity
from unmask.tasks.prompts import prompt_of

Batches = Iterable[Mapping[str, Sequence[str]]]
"""What mteb's data loaders give: batches of texts under ``text``."""


class MtebEncoder:
    """An embedding model with the methods of mteb's ``EncoderProtocol``."""

    def __init__(self, model: Model, *, metric: Metric = "cosine") -> None:
        self.model, self.metric = model, metric
        self.head = model.embedding_head()

    def encode(
        self,
        inputs: Batches,
        *,
        prompt_type: Any = None,
        **_: Any,
    ) -> NDArray[np.float32]:
        """The vectors of all texts of the batches, (S, E).

        Queries and documents of retrieval tasks get the checkpoint's prompt of their side, if it has one, and
        other texts its default prompt. The end of a text that is too long is dropped, as mteb expects, and a
        text without words has the vector 0.
        """
        side = getattr(prompt_type, "value", prompt_type)
        prompt = prompt_of(self.head.prompts, side) if side in ("query", "document") else None
        vectors: list[NDArray[np.float32]] = [np.empty((0, self.head.width(self.model.spec)), np.float32)]
        vectors += [self._embedded(batch["text"], prompt) for batch in inputs]
        return np.concatenate(vectors)

    def _embedded(self, texts: Sequence[str], prompt: str | None) -> NDArray[np.float32]:
        vectors_SE = np.zeros((len(texts), self.head.width(self.model.spec)), dtype=np.float32)
        places = [place for place, text in enumerate(texts) if self._has_words(text)]
        if places:
            some = [texts[place] for place in places]
            vectors_SE[places] = self.model.embed(some, prompt=prompt, truncation="end")
        return vectors_SE

    def _has_words(self, text: str) -> bool:
        try:
            self.model.tokenizer.encode(text)
        except EmptyText:
            return False
        return True

    def similarity(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """The similarity of every vector with every other, (A, B)."""
        return similarity(np.asarray(embeddings1), np.asarray(embeddings2), metric=self.metric)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """The similarity of the vectors of each pair, (pairs,)."""
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


class MtebCrossEncoder:
    """A model that scores pairs, with the methods of mteb's ``CrossEncoderProtocol``.

    Raises:
        InvalidRequest: the model does not score pairs.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model.checkpoint.head, PairScore):
            raise InvalidRequest(f"{model.name} does not score pairs of texts; give a cross-encoder")
        self.model = model

    def predict(
        self,
        inputs1: Batches,
        inputs2: Batches,
        **_: Any,
    ) -> NDArray[np.float32]:
        """The logit of each query with the document at its place, (P,); a pair that is too long is cut."""
        queries = [text for batch in inputs1 for text in batch["text"]]
        documents = [text for batch in inputs2 for text in batch["text"]]
        return self.model.score_pairs(queries, documents, activation="identity", truncation="end")

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb records of the model."""
        return _meta(
            self.model.name,
            self.model.revision,
            max_tokens=self.model.max_tokens,
            n_parameters=self.model.parameter_count,
        )


class MtebSearch:
    """An index in a temporary folder, with the methods of mteb's ``SearchProtocol``.

    Args:
        model: one model or several; each gives a view of the index, beside BM25.
        mode: how documents are ranked; None is ``"hybrid"``.
        reranker: a model that orders the best documents again, see `unmask.Index.search`.
        candidates: how many it orders, or many vectors score; None for as many as mteb asks for.
        settings: the passages of documents.

    Raises:
        InvalidRequest: the models lack the view of the mode, or ``candidates`` has no effect.
    """

    def __init__(
        self,
        model: Models,
        mode: Mode | None = None,
        *,
        reranker: Model | None = None,
        candidates: int | None = None,
        settings: CollectionSettings | None = None,
    ) -> None:
        self.model = model
        self.reranker, self.candidates = reranker, candidates
        self.settings = settings or CollectionSettings()
        self._folder = Path(mkdtemp(prefix="unmask-mteb-"))
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._index = self._new()
        self.mode = self._index.mode(mode)
        check_candidates(candidates, [self.mode], self._index.settings.views, reranker, fused=None)

    def _new(self) -> Index:
        """An empty index in the place of the one before."""
        path = self._folder / "index"
        shutil.rmtree(path, ignore_errors=True)
        return Index.create(path, self.model, **self.settings.named())

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        **_: Any,
    ) -> None:
        """Index the rows of a corpus, whose titles stand before their texts, instead of those before."""
        if len(self._index):
            self._index = self._new()
        self._index.add(
            Document(str(row["id"]), joined(row.get("title") or "", row["text"]), row.get("title") or "")
            for row in corpus
        )

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, Collection[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """For each query the scores of its best documents, or of those of ``top_ranked`` to be reranked.

        A query that is too long is truncated, and one without words finds nothing.
        """
        scores_of = {}
        for row in queries:
            query = str(row["id"])
            among = None if top_ranked is None else top_ranked.get(query, ())
            scores_of[query] = self._found(str(row["text"]), top_k, among)
        return scores_of

    def _found(self, text: str, top_k: int, among: Collection[str] | None) -> dict[str, float]:
        bounded = self.reranker is not None or self.mode == "multi_vector"
        candidates = self.candidates if bounded else None
        try:
            (ranking,) = self._index.rank_documents(
                [text],
                top_k if candidates is None else min(top_k, candidates),
                self.mode,
                among=among,
                reranker=self.reranker,
                candidates=candidates,
                truncation="end",
            )
        except EmptyText:
            return {}
        return dict(ranking)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb records; each way of searching has a name of its own, since mteb keeps results by it."""
        models = [*self._index.settings.models.values()]
        names = [model.name for model in models] + ([] if self.reranker is None else [self.reranker.name])
        settings = [self.mode, passage_mode(self._index.settings.passages)]
        name = "-".join(
            [*filter(None, ["+".join(full_name.split("/")[-1] for full_name in names)]), *settings]
        )
        return _meta(name, models[0].revision if len(models) == 1 == len(names) else None)


def _meta(name: str, revision: str | None, **values: Any) -> Any:
    try:
        kind = import_module("mteb.models.model_meta").ModelMeta
    except ImportError:
        raise MissingExtra("mteb is needed to be driven by it: pip install mteb") from None
    full_name = name if "/" in name else f"unmask/{name}"  # mteb's names are organization/model
    return kind.create_empty({"name": full_name, "revision": revision, **values})
