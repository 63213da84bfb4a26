"""Searching an index: the methods of `Index` that rank and explain."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args, overload

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_flag, listed
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import Model, load
from unmask.search.analysis import Analyzer
from unmask.search.contents import Contents
from unmask.search.explain import Explainer
from unmask.search.filters import Filter, accepting
from unmask.search.options import Fusion, Mode, Unit, View, Why
from unmask.search.ranking import FusionSettings, Ranking, in_order
from unmask.search.searcher import (
    DEFAULT_FUSION,
    RERANKED,
    Query,
    Searcher,
    SearchRequest,
    check_candidates,
    scores_again,
)
from unmask.search.settings import IndexSettings, ModelIdentity, load_again, view_of
from unmask.search.values import Explanation, Hit, Span
from unmask.search.views.vectors import dense_vectors
from unmask.spec import PairScore
from unmask.tasks.pair_scores import activated
from unmask.text import Truncation

PASSAGES_AT_ONCE = 2048
"""Passages, and vectors compared with them, of one block of products, which takes 16 MB."""


class NearestPassages(NamedTuple):
    """For each of some vectors the nearest passage of an index."""

    cosines: NDArray[np.float64]
    """(S,), products in float32."""
    documents: Sequence[str]
    """The id of each passage's document."""
    texts: Sequence[str]


class SearchableIndex:
    """One generation of an index with the models that read queries.

    Other threads may open a newer generation at any time. So each method reads the generation once, and a
    shallow copy (`copy.copy`) keeps the one that it was made of.
    """

    def __init__(
        self,
        path: Path,
        settings: IndexSettings,
        models: Mapping[View, Model],
        contents: Contents,
        loader: Callable[[ModelIdentity], Model] = load_again,
    ) -> None:
        self.path = path
        self._loader = loader
        self.settings = settings
        self._models = dict(models)
        self._show(contents)

    def matches(self, query: str, hit: Hit) -> tuple[Span, ...]:
        """The characters of a hit's document whose terms are those of the query, within the passage."""
        analyzer = self.settings.analyzer or Analyzer()
        query_terms = set(analyzer.asked(query))
        terms = [term for term in analyzer.terms(hit.text) if term.term in query_terms]
        return tuple((hit.start + term.start, hit.start + term.end) for term in terms)

    def model(self, view: View) -> Model:
        """The model of a view; it is loaded when it is first needed.

        Raises:
            InvalidRequest: the index has no such view, or its model has changed since.
            CheckpointError: the model cannot be loaded.
        """
        if view not in self._models:
            if view not in self.settings.models:
                raise InvalidRequest(
                    f"the index has no view {view!r}; it has: {', '.join(self.settings.views)}"
                )
            identity = self.settings.models[view]
            self._accept(self._loader(identity), identity.source)
        return self._models[view]

    def use(self, model: Model) -> None:
        """Use a loaded model for its view, instead of loading another copy of it.

        Raises:
            InvalidRequest: the index was made with another model, or has no such view.
        """
        self._accept(model)

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        k: int = 10,
        mode: Mode | None = None,
        *,
        unit: Unit = "passage",
        filter: Filter | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        fusion: Fusion = "rrf",
        weights: Mapping[View, float] | None = None,
        approximate: bool = False,
        truncation: Truncation = "error",
        why: bool | Why = False,
    ) -> tuple[Hit, ...]: ...

    @overload
    def search(
        self,
        query: Sequence[str],
        k: int = 10,
        mode: Mode | None = None,
        *,
        unit: Unit = "passage",
        filter: Filter | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        fusion: Fusion = "rrf",
        weights: Mapping[View, float] | None = None,
        approximate: bool = False,
        truncation: Truncation = "error",
        why: bool | Why = False,
    ) -> list[tuple[Hit, ...]]: ...

    def search(
        self,
        query: str | Sequence[str],
        k: int = 10,
        mode: Mode | None = None,
        *,
        unit: Unit = "passage",
        filter: Filter | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        fusion: Fusion = "rrf",
        weights: Mapping[View, float] | None = None,
        approximate: bool = False,
        truncation: Truncation = "error",
        why: bool | Why = False,
    ) -> tuple[Hit, ...] | list[tuple[Hit, ...]]:
        """The best passages for a query, best first; for a list of queries, a list.

        Search is exact. Equal scores are ordered by document id and place, and a query gives the same hits
        alone and in a list.

        Args:
            query: one query or several.
            k: how many hits; fewer if the index has fewer, or BM25 finds fewer with a term of the query.
            mode: the view to rank by, or ``"hybrid"``, which fuses the rankings of all views; None is
                ``"hybrid"`` if there are several views.
            unit: ``"passage"`` ranks passages, ``"document"`` documents, each shown by its best passage.
            filter: which documents to search, by their metadata; see `unmask.search.filters.Filter`.
            reranker: a model that scores the best ``candidates`` hits again and orders them: a cross-encoder,
                or one that gives a vector for each text (by cosines) or each token (by late interaction).
            candidates: how many hits of a first stage are scored by the reranker (50 by default), or by many
                vectors with ``mode="multi_vector"`` (all passages by default); with ``mode="hybrid"`` how
                long the rankings are that it fuses (200 by default, and at least); with ``approximate``, how
                many passages codes or centroids propose (`unmask.search.searcher.PROPOSED_BY_CODES`).
            fusion: how hybrid search fuses rankings: ``"rrf"`` by ranks, ``"min_max"`` by scores, those of
                each view brought to the range from 0 to 1 (Bruch, Gai & Ingber 2023).
            weights: the factor of each view in hybrid search; 1 for a view that is not named.
            approximate: with ``mode="dense"`` and no filter, let a graph of neighbors propose which passages
                are scored (HNSW; needs the extra ``ann``). The graph is made at the first such search and
                kept in the folder. Worth it beyond some hundred thousand passages; scores are exact, and a
                few of the best passages can be missing. In an index with ``dense_bits`` codes propose them
                instead, also with a filter and in hybrid search, and no extra is needed. With
                ``mode="multi_vector"`` in an index with ``vector_bits``, centroids propose the passages.
            truncation: ``"error"`` refuses a query that is too long for a model, ``"end"`` drops its end.
            why: whether to explain every hit; ``"shares"`` leaves out gradient attribution, which takes most
                of the time.

        Raises:
            TextError: a query is blank, too long for the model, or not Unicode text.
            InvalidRequest: there is no such mode, the index lacks its view, the filter names no metadata, or
                an argument would have no effect.
        """
        check_choice("unit", unit, get_args(Unit))
        if why != "shares":
            check_flag("why", why)
        check_flag("approximate", approximate)
        check_choice("truncation", truncation, get_args(Truncation))
        searcher, among = self._searcher, None
        if filter is not None:
            among = searcher.contents.matching(accepting(filter, searcher.contents.metadata_keys))
        queries = [query] if isinstance(query, str) else listed("query", query)
        chosen = self.mode(mode)
        if approximate:
            self._check_approximate(chosen, filtered=filter is not None)
        proposing = self.settings.proposing if approximate else ()
        check_candidates(candidates, [chosen], self.settings.views, reranker, proposing=proposing)
        mixed = self._fusion(chosen, fusion, weights or {})
        request = SearchRequest(k, chosen, unit, among, reranker, candidates, bool(approximate), mixed)
        results = [
            self._search(searcher, searcher.query(query, truncation), request, why=why) for query in queries
        ]
        return results[0] if isinstance(query, str) else results

    def _check_approximate(self, mode: Mode, *, filtered: bool) -> None:
        """Refuse approximate search where nothing proposes passages.

        Raises:
            InvalidRequest: names the mode and what the index lacks.
        """
        vectors = self.settings.vectors
        if mode == "multi_vector":
            if vectors.bits is None:
                raise InvalidRequest(
                    "approximate search by many vectors needs the centroids of compressed vectors, and this "
                    "index has float16; leave approximate out, or index again with vector_bits"
                )
        elif mode not in ("dense", "hybrid") or (
            vectors.dense_bits is None and (mode != "dense" or filtered)
        ):
            raise InvalidRequest(
                f"approximate search is for mode dense without a filter, dense or hybrid with dense_bits, or "
                f"multi_vector with vector_bits, and mode is {mode}{' with a filter' if filtered else ''}; "
                "leave approximate out"
            )

    def rank_documents(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: Mode | None = None,
        *,
        among: Collection[str] | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        truncation: Truncation = "error",
    ) -> list[list[tuple[str, float]]]:
        """The ids and scores of the best documents for each query, best first.

        They are those of the hits of `search` with ``unit="document"``; those of a cross-encoder are its
        logits, so that they order documents whose scores are equal after its sigmoid. No texts are read,
        so that rankings of a thousand documents are quick.

        Args:
            queries: several queries.
            k: how many documents.
            mode: see `search`.
            among: the ids of the documents to rank; None for all. Unknown ids are passed over.
            reranker: see `search`.
            candidates: see `search`.
            truncation: ``"error"`` refuses a query that is too long for a model, ``"end"`` drops its end.

        Raises:
            TextError: a query is blank, too long for the model, or not Unicode text.
            InvalidRequest: there is no such mode, or the index lacks its view.
        """
        check_choice("truncation", truncation, get_args(Truncation))
        searcher = self._searcher
        allowed = None if among is None else searcher.contents.among(among)
        chosen = self.mode(mode)
        check_candidates(candidates, [chosen], self.settings.views, reranker)
        request = SearchRequest(k, chosen, "document", allowed, reranker, candidates)
        ids, document_P = searcher.contents.ids, searcher.contents.document_P
        ranked = []
        for text in listed("queries", queries):
            ranking, _, _ = self._ranked(searcher, searcher.query(text, truncation), request)
            documents = document_P[ranking.passages].tolist()
            ranked.append(
                [
                    (ids[document], score)
                    for document, score in zip(documents, ranking.scores.tolist(), strict=True)
                ]
            )
        return ranked

    def _ranked(
        self, searcher: Searcher, query: Query, request: SearchRequest
    ) -> tuple[Ranking, Ranking, Mapping[View, Ranking]]:
        """The ranking that was asked for, that of the first stage, and that of each view."""
        k, reranker = request.k, request.reranker
        depth = k if reranker is None else max(k, request.candidates or RERANKED)
        first, views = searcher.rank(
            query,
            request.mode,
            depth,
            unit=request.unit,
            among=request.among,
            candidates=request.candidates if reranker is None else None,
            approximate=request.approximate,
            fusion=request.fusion,
        )
        best = first if reranker is None else _reranked(searcher.contents, query, first, reranker)
        return Ranking(best.passages[:k], best.scores[:k]), first, views

    def _search(
        self, searcher: Searcher, query: Query, request: SearchRequest, *, why: bool | Why
    ) -> tuple[Hit, ...]:
        ranking, first, views = self._ranked(searcher, query, request)
        before: dict[int, float] = {}
        scores = ranking.scores
        if request.reranker is not None:
            head = request.reranker.checkpoint.head
            scores = activated(scores, head.activation) if isinstance(head, PairScore) else scores
            before = dict(zip(first.passages.tolist(), first.scores.tolist(), strict=True))
        analyzer = self.settings.analyzer or Analyzer()
        explainer = Explainer(
            searcher,
            query,
            views,
            analyzer,
            attributes=why != "shares",
            compressed=self.settings.compressed,
            proposing=self.settings.proposing if request.approximate else frozenset(),
        )
        return tuple(
            _hit(
                searcher.contents,
                passage,
                score,
                explainer.explain(passage) if why else None,
                before.get(passage),
            )
            for passage, score in zip(ranking.passages.tolist(), scores.tolist(), strict=True)
        )

    def _fusion(self, mode: Mode, kind: Fusion, weights: Mapping[View, float]) -> FusionSettings:
        """Settings of hybrid search; refuses those that would have no effect.

        Raises:
            InvalidRequest: the mode is another, or a weight is of no view of the index.
        """
        settings = FusionSettings(kind, weights)
        if settings != DEFAULT_FUSION and mode != "hybrid":
            raise InvalidRequest(
                f"fusion and weights are for hybrid search and mode is {mode}; leave them out"
            )
        for view in weights:
            if view not in self.settings.views:
                raise InvalidRequest(
                    f"weights names {quoted(view)} and the index has the views "
                    f"{', '.join(self.settings.views)}; name one of them"
                )
        return settings

    def nearest_passages(self, vectors_SE: NDArray[np.float32]) -> NearestPassages:
        """The passage with the highest cosine for each of some vectors of length 1.

        Args:
            vectors_SE: vectors of the model of the dense view, (S, E); they are multiplied in blocks.

        Raises:
            InvalidRequest: the index has no dense view or no passage.
        """
        contents = self._contents
        if "dense" not in self.settings.models or not contents.passage_count:
            raise InvalidRequest(f"the index {self.path} has no passage with one vector; add documents to it")
        best_S = np.full(len(vectors_SE), -np.inf)
        passages_S = np.zeros(len(vectors_SE), np.int64)
        first = 0
        for segment, live_P in zip(contents.segments, contents.live_parts(), strict=True):
            rows = np.flatnonzero(live_P)
            for begin in range(0, len(rows), PASSAGES_AT_ONCE):
                chosen = rows[begin : begin + PASSAGES_AT_ONCE]
                block_PE = dense_vectors(segment.arrays, chosen, contents.quantizer)
                for start in range(0, len(vectors_SE), PASSAGES_AT_ONCE):
                    part = slice(start, start + PASSAGES_AT_ONCE)
                    products_SP = np.asarray(vectors_SE[part]) @ block_PE.T
                    highest = products_SP.max(axis=1)
                    better = start + np.flatnonzero(highest > best_S[part])
                    best_S[better] = highest[better - start]
                    passages_S[better] = first + chosen[products_SP.argmax(axis=1)[better - start]]
            first += len(live_P)
        ids = [contents.ids[contents.place(int(passage)).document] for passage in passages_S]
        return NearestPassages(best_S, ids, [_text(contents, int(passage)) for passage in passages_S])

    def mode(self, mode: Mode | None) -> Mode:
        """The mode of a search for which this one is given; None is ``"hybrid"`` if there are several views.

        Raises:
            InvalidRequest: there is no such mode, or the index lacks its view.
        """
        views = self.settings.views
        if mode is None:
            return "hybrid" if len(views) > 1 else views[0]
        check_choice("mode", mode, get_args(Mode))
        if mode != "hybrid" and mode not in views:
            raise InvalidRequest(f"mode is {mode!r} and the index has the views {', '.join(views)}; take one")
        return mode

    def _accept(self, model: str | Path | Model, source: str | Path | None = None) -> None:
        """Use a model for its view.

        Raises:
            InvalidRequest: the index was made with another one, or without such a view.
        """
        loaded = model if isinstance(model, Model) else load(model)
        view = view_of(loaded)
        if view not in self.settings.models:
            raise InvalidRequest(
                f"{loaded.name} gives the view {view}, which the index does not have; it has: "
                f"{', '.join(self.settings.views)}"
            )
        loaded = loaded.reading(self.settings.models[view].special_tokens)
        identity = ModelIdentity.of(loaded, source or loaded.checkpoint.source.folder)
        self.settings.models[view].require(identity)
        self._models[view] = loaded

    @property
    def _contents(self) -> Contents:
        return self._searcher.contents

    def _show(self, contents: Contents) -> None:
        # One assignment, so that no thread sees parts of two generations.
        self._searcher = Searcher(contents, self.settings, self.model)

    def _show_prepared(self, searcher: Searcher) -> None:
        if searcher.contents.generation.number >= self._contents.generation.number:
            self._searcher = searcher


def _reranked(contents: Contents, query: Query, ranking: Ranking, reranker: Model) -> Ranking:
    """The ranking by another model's scores, see `scores_again`."""
    if not len(ranking.passages):
        return ranking
    texts = [_text(contents, passage) for passage in ranking.passages.tolist()]
    scores = scores_again(reranker, query.text, texts)
    order = in_order(contents, ranking.passages, scores)
    return Ranking(ranking.passages[order], scores[order])


def _text(contents: Contents, passage: int) -> str:
    place = contents.place(passage)
    return contents.text(place.document)[place.start : place.end]


def _hit(
    contents: Contents,
    passage: int,
    score: float,
    why: tuple[Explanation, ...] | None,
    before: float | None,
) -> Hit:
    place = contents.place(passage)
    facts = contents.facts(place.document)
    return Hit(
        contents.ids[place.document],
        contents.page(place.document, place.start),
        place.start,
        place.end,
        score,
        contents.text(place.document)[place.start : place.end],
        contents.title(place.document),
        facts["metadata"],
        why,
        before,
    )
