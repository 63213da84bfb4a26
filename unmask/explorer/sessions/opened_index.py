"""The index that an explorer searches: opened when it is first needed, with the explorer's own models.

A hit's ``text`` begins at its ``start``, in code points of the document's text.
"""

import threading
import time
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.explorer.sessions.background import Analyses
from unmask.explorer.sessions.models import Models, ModelSlot
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.responses import Refused, cannot
from unmask.http.worker import Worker
from unmask.search.options import Mode, Unit, Why
from unmask.search.ranking import RANK_CONSTANT
from unmask.search.settings import ModelIdentity
from unmask.search.values import Explanation

if TYPE_CHECKING:
    from unmask.search.index import Index

WHY: dict[str, bool | Why] = {"no": False, "shares": "shares", "yes": True}
"""The values of a request as arguments of `Index.search`."""

INDEX_DTYPE = "float32"
"""The number format in which an index loads its models; one in another format gives other scores."""


@dataclass(frozen=True)
class IndexModel:
    """The model of one view of the index."""

    view: str
    name: str
    revision: str | None


@dataclass(frozen=True)
class SearchIndex:
    """The index of this explorer. ``modes``: what a search can rank by, the default first.

    Hybrid search adds 1 / (``rank_constant`` + rank) for each view that found a passage.
    """

    path: str
    generation: int
    documents: int
    passages: int
    views: tuple[str, ...]
    modes: tuple[str, ...]
    models: tuple[IndexModel, ...]
    rank_constant: int


@dataclass(frozen=True)
class SearchHit:
    """A passage that was found. ``matches``: where terms of the query stand, as BM25 reads both.

    ``why`` has an explanation for each view that found it, if they were asked for.
    """

    document: str
    page: int | None
    start: int
    end: int
    score: float
    text: str
    title: str
    metadata: dict[str, Any]
    matches: tuple[tuple[int, int], ...]
    why: tuple[Explanation, ...] | None


@dataclass(frozen=True)
class SearchResults:
    """The hits of a query, best first; ``seconds`` is the time of the search with its explanations."""

    query: str
    mode: str
    unit: str
    generation: int
    seconds: float
    hits: tuple[SearchHit, ...]


@dataclass(frozen=True)
class SearchRequest(PageRequest):
    """The best passages or documents for a query."""

    path = "search"
    answer = SearchResults

    text: str
    k: int = 10
    mode: Mode | None = None
    unit: Unit = "passage"
    why: Literal["no", "shares", "yes"] = "no"
    """shares: without gradient attribution, which takes most of the time."""


class OpenedIndex:
    """The index of one explorer, or none.

    Args:
        path: its folder; None refuses every request with a sentence that says how to make one.
        models: the explorer's models; the index uses one that it was made with instead of loading a copy.
        worker: runs one model at a time.
        analyses: keeps results.
    """

    def __init__(self, path: Path | None, models: Models, worker: Worker, analyses: Analyses) -> None:
        self.path = path
        self._models = models
        self._worker = worker
        self._analyses = analyses
        self._index: Index | None = None
        self._shared = False
        self._lock = threading.Lock()

    def described(self) -> SearchIndex:
        """A description of the latest committed generation.

        Raises:
            CorruptIndex: a file is damaged or missing.
            Refused: this explorer has no index.
        """
        index = self._opened()
        self._worker.ask(index.refresh)
        index = copy(index)  # keeps its generation
        views = index.settings.views
        return SearchIndex(
            path=str(index.path),
            generation=index.generation,
            documents=len(index),
            passages=index.passages,
            views=views,
            modes=("hybrid", *views) if len(views) > 1 else views,
            models=tuple(
                IndexModel(view, identity.name, identity.revision)
                for view, identity in index.settings.models.items()
            ),
            rank_constant=RANK_CONSTANT,
        )

    def search(self, request: SearchRequest) -> SearchResults:
        """The hits of a query; a query that was asked before is answered from memory.

        Raises:
            InvalidRequest: the index has no such view, or was made with a model that has changed since.
            TextError: the query is blank or too long for a model.
            Refused: this explorer has no index, or a model that both use is still being loaded.
        """
        index = self._opened()
        self._share(index)
        index = copy(index)  # keeps its generation, also in the key
        key = ("search", index.generation, request)
        return self._analyses.once(key, lambda watch: _results(index, request))

    def _opened(self) -> "Index":
        if self.path is None:
            raise cannot(
                "this explorer has no index to search; make one with: unmask index FOLDER -o INDEX, and "
                "start the explorer with: unmask explore --index INDEX"
            )
        from unmask.search.index import Index

        with self._lock:
            if self._index is None:
                self._index = Index.open(self.path)
            return self._index

    def _share(self, index: "Index") -> None:
        """Let the index use those of the explorer's models that it was made with."""
        with self._lock:
            if self._shared:
                return
            for identity in index.settings.models.values():
                for place in self._models.places:
                    if place.name == identity.name and _serves(place, identity):
                        index.use(place.need())
            self._shared = True


def _serves(place: ModelSlot, identity: ModelIdentity) -> bool:
    """Whether a model of the explorer is the one that an index was made with; waits for it to be loaded."""
    try:
        model = place.need()
    except Refused:
        if place.phase == "failed":
            return False
        raise
    here = ModelIdentity.of(model, identity.source)
    return model.dtype == INDEX_DTYPE and (here.sha256, here.revision) == (identity.sha256, identity.revision)


def _results(index: "Index", request: SearchRequest) -> SearchResults:
    began = time.perf_counter()
    hits = index.search(request.text, request.k, request.mode, unit=request.unit, why=WHY[request.why])
    search_hits = tuple(
        SearchHit(
            document=hit.document,
            page=hit.page,
            start=hit.start,
            end=hit.end,
            score=float(hit.score),
            text=hit.text,
            title=hit.title,
            metadata=dict(hit.metadata or {}),
            matches=index.matches(request.text, hit),
            why=hit.why,
        )
        for hit in hits
    )
    mode = request.mode or ("hybrid" if len(index.settings.views) > 1 else index.settings.views[0])
    seconds = time.perf_counter() - began
    return SearchResults(request.text, mode, request.unit, index.generation, seconds, search_hits)
