"""A query as each view reads it, and search over one generation of an index.

Axes: P passages; Q vectors of the query.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.errors import EmptyText, InvalidRequest, InvalidText, quoted
from unmask.models.load import Model
from unmask.search.analysis import Analyzer
from unmask.search.ann import ApproximateSearch
from unmask.search.contents import Contents
from unmask.search.options import Mode, Unit, View
from unmask.search.ranking import FusionSettings, Ranking, fused, ranked
from unmask.search.settings import IndexSettings
from unmask.search.views.bm25 import Bm25
from unmask.search.views.sparse import Sparse
from unmask.search.views.vectors import Dense, Vectors
from unmask.spec import MultiVector, PairScore, PooledVector
from unmask.tasks.late_interaction import late_interaction
from unmask.text import Truncation

if TYPE_CHECKING:
    from unmask.encoder.encoder import Encoder

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

FUSED_DEPTH = 200
"""The length of the rankings that are fused, at least."""

DEFAULT_FUSION = FusionSettings()
"""Reciprocal rank fusion, all views alike."""

APPROXIMATE_FACTOR = 4
"""In approximate search, how many passages are proposed for each one that is asked for."""

PROPOSED = 512
"""Passages that centroids propose, at least."""

PROPOSED_BY_CODES = {8: (100, 4), 1: (2000, 32)}
"""Passages that codes of so many bits propose: at least, and for each one that is asked for. Of a million
vectors these have 0.99 of the ten best (docs/log/2026.md)."""

ROUNDING = 1e-5
"""Relative error of float32 products; passages this close to the last rank are computed again in float64."""

FEW = 32768
"""Fewer passages, if they are less than an eighth of all, are scored without a look at the others."""

RERANKED = 50
"""Hits of the first stage that a reranker scores."""


@dataclass(frozen=True, eq=False)
class TokenQuery:
    """The vectors of a query's tokens, and how each is called in an explanation."""

    vectors_QE: Floats
    labels: tuple[str, ...]
    special: NDArray[np.bool_]
    """Which stand for no characters of the query."""


class Query:
    """One query. Each model reads it alone, so that its vector depends on no other query.

    Args:
        text: what is asked.
        model_of: loads the model of a view.
        analyzer: the terms of BM25.
        truncation: what a model does with a query that it cannot read whole, see `Model.tokenize`.

    Raises:
        TextError: the query is not text, or blank.
    """

    def __init__(
        self,
        text: str,
        model_of: Callable[[View], Model],
        analyzer: Analyzer,
        truncation: Truncation = "error",
    ) -> None:
        if not isinstance(text, str):
            raise InvalidText(f"the query is {quoted(text)}; give a string")
        if not text.strip():
            raise EmptyText("the query is blank; write what to search for")
        self.text = text
        self._model_of = model_of
        self._analyzer = analyzer
        self._truncation = truncation

    @cached_property
    def terms(self) -> list[str]:
        """The terms that BM25 looks for."""
        return self._analyzer.asked(self.text)

    @cached_property
    def vector_E(self) -> Floats:
        """The unit vector of the query, read after the checkpoint's prompt for queries."""
        return self._model_of("dense").embed_query(self.text, normalize=True, truncation=self._truncation)

    @cached_property
    def sparse(self) -> tuple[NDArray[np.int64], Floats]:
        """Ids of words and their weights."""
        (vector,) = self._model_of("sparse").sparse_vectors([self.text], "query", truncation=self._truncation)
        return vector.ids, vector.weights

    @cached_property
    def tokens(self) -> TokenQuery:
        """The vectors of the query's tokens."""
        model = self._model_of("multi_vector")
        (vectors,) = model.multi_vectors([self.text], "query", truncation=self._truncation)
        special = vectors.spans_N2[:, 0] < 0
        labels = [
            str(model.tokenizer.engine.id_to_token(int(id))) if lone else self.text[start:end]
            for id, lone, (start, end) in zip(vectors.ids_N, special, vectors.spans_N2.tolist(), strict=True)
        ]
        head = model.checkpoint.head
        # The mean over the query's vectors is the sum over vectors of that share of their length.
        shared = isinstance(head, MultiVector) and head.mean_score
        vectors_QE = vectors.vectors_NE / np.float32(len(vectors) if shared else 1)
        return TokenQuery(vectors_QE, tuple(labels), special)

    def word(self, id: int) -> str:
        """The spelling of a word of the sparse model's vocabulary."""
        return str(self._model_of("sparse").tokenizer.engine.id_to_token(id))


class Searcher:
    """Ranks the passages of one generation.

    Args:
        contents: its documents and passages.
        settings: what the index was made with.
        model_of: loads the model of a view when it is first needed.
    """

    def __init__(
        self, contents: Contents, settings: IndexSettings, model_of: Callable[[View], Model]
    ) -> None:
        self.contents = contents
        self._settings = settings
        self.model_of = model_of

    def prepare(self) -> None:
        """Make what the first search would make: lists of passages by centroid, which passages are live, and
        the places of the arrays of every view. No model is loaded."""
        _ = self.contents.live_P, self.contents.ids
        for view in self._settings.views:
            scorer = {"bm25": "bm25", "dense": "dense", "sparse": "sparse", "multi_vector": "vectors"}[view]
            getattr(self, scorer)
        if "multi_vector" in self._settings.proposing and self.contents.codec is not None:
            _ = self.vectors.lists

    def query(self, text: str, truncation: Truncation = "error") -> Query:
        """A query for `rank`; its vectors are computed once."""
        return Query(text, self.model_of, self._settings.analyzer or Analyzer(), truncation)

    def rank(
        self,
        query: Query,
        mode: Mode,
        depth: int,
        *,
        unit: Unit = "passage",
        among: Mask | None = None,
        candidates: int | None = None,
        approximate: bool = False,
        fusion: FusionSettings = DEFAULT_FUSION,
    ) -> tuple[Ranking, Mapping[View, Ranking]]:
        """The best ``depth`` passages (or documents), and the ranking of each view that was asked.

        Args:
            query: what is asked.
            mode: one view, or all of them fused.
            depth: how many to rank.
            unit: what is ranked.
            among: the passages to search; None for all that are not deleted.
            candidates: for many vectors, how many of the best passages of the other views are scored; None
                scores every passage, or in hybrid search `FUSED_DEPTH` of each other view. For one vector in
                approximate search, how many passages codes propose; None for `PROPOSED_BY_CODES`.
            approximate: score only those passages that are proposed: for one vector by codes, or else by a
                graph of neighbors; for many by the centroids of an index with compressed vectors.
            fusion: how hybrid search makes one ranking of several.
        """
        eligible_P = self.contents.live_P if among is None else among & self.contents.live_P
        if mode == "hybrid":
            reach = max(FUSED_DEPTH, depth, candidates or 0)
            dense_P = self._proposed(query, reach, eligible_P) if approximate else eligible_P
            return self._fused(
                query,
                self._settings.views,
                unit,
                eligible_P,
                dense_P,
                depth=depth,
                reach=reach,
                fusion=fusion,
            )
        if approximate and mode == "multi_vector":
            count = max(candidates or PROPOSED, APPROXIMATE_FACTOR * depth)
            proposed = self.vectors.proposed(query.tokens.vectors_QE, eligible_P, count)
            eligible_P = _mask(proposed, len(eligible_P))
        elif approximate:
            eligible_P = self._proposed(query, depth, eligible_P, candidates)
        elif mode == "multi_vector" and candidates is not None:
            others = [view for view in self._settings.views if view != "multi_vector"]
            if others:
                reach = max(FUSED_DEPTH, candidates)
                first, _ = self._fused(
                    query, others, "passage", eligible_P, eligible_P, depth=candidates, reach=reach
                )
                eligible_P = _mask(first.passages, len(eligible_P))
        ranking = self._view(query, mode, depth, unit, eligible_P)
        return ranking, {mode: ranking}

    def _fused(
        self,
        query: Query,
        views: Sequence[View],
        unit: Unit,
        eligible_P: Mask,
        dense_P: Mask,
        *,
        depth: int,
        reach: int,
        fusion: FusionSettings = DEFAULT_FUSION,
    ) -> tuple[Ranking, Mapping[View, Ranking]]:
        """One ranking of several.

        Args:
            query: what is asked.
            views: those to rank by. Passages for many vectors are those that the others found.
            unit: what is ranked.
            eligible_P: the passages to search.
            dense_P: those of them to search by one vector.
            depth: the length of the ranking.
            reach: that of the rankings that are fused.
            fusion: how they are fused.
        """
        by_view: dict[View, Ranking] = {}
        for view in views:
            if view != "multi_vector":
                by_view[view] = self._view(
                    query, view, reach, unit, dense_P if view == "dense" else eligible_P
                )
        if "multi_vector" in views:
            ranked_passages = [ranking.passages for ranking in by_view.values()]
            eligible = (
                _mask(np.concatenate(ranked_passages), len(eligible_P)) if ranked_passages else eligible_P
            )
            by_view["multi_vector"] = self._view(query, "multi_vector", reach, unit, eligible)
        if len(by_view) == 1:
            (only,) = by_view.values()
            return Ranking(only.passages[:depth], only.scores[:depth]), by_view
        points = [fusion.points(view, ranking.scores) for view, ranking in by_view.items()]
        rankings = [ranking.passages for ranking in by_view.values()]
        if unit == "passage":
            best = fused(zip(rankings, points, strict=True))
        else:
            best = self._fused_documents(rankings, points)
        scores_P = np.zeros(len(eligible_P), dtype=np.float32)
        passages = np.array(sorted(best), dtype=np.int64)
        scores_P[passages] = [best[passage] for passage in passages.tolist()]
        return ranked(self.contents, scores_P, _mask(passages, len(scores_P)), "passage", depth), by_view

    def _fused_documents(
        self, rankings: Sequence[NDArray[np.int64]], points: Sequence[NDArray[np.float64]]
    ) -> Mapping[int, float]:
        """Fused scores of documents, each by the passage that has the best rank in any view."""
        documents = [self.contents.document_P[passages] for passages in rankings]
        scores = fused(zip(documents, points, strict=True))
        best_of: dict[int, tuple[int, int, int]] = {}
        for number, (passages, documents_of_view) in enumerate(zip(rankings, documents, strict=True)):
            for rank, (passage, document) in enumerate(
                zip(passages.tolist(), documents_of_view.tolist(), strict=True)
            ):
                best_of[document] = min(
                    best_of.get(document, (rank, number, passage)), (rank, number, passage)
                )
        return {best_of[document][2]: score for document, score in scores.items()}

    def _view(self, query: Query, view: View, depth: int, unit: Unit, eligible_P: Mask) -> Ranking:
        match view:
            case "bm25":
                scores_P = self.bm25.scores(query.terms)
                eligible_P = eligible_P & (scores_P > 0)
            case "sparse":
                scores_P = self.sparse.scores(*query.sparse)
                eligible_P = eligible_P & (scores_P > 0)
            case "dense":
                scores_P = self._dense_scores(query, depth, unit, eligible_P)
            case "multi_vector":
                scores_P = np.full(len(eligible_P), -np.inf, dtype=np.float32)
                eligible = np.flatnonzero(eligible_P)
                scores_P[eligible] = self.vectors.scores(query.tokens.vectors_QE, eligible)
                eligible_P = eligible_P & np.isfinite(scores_P)
            case _:
                assert_never(view)
        return ranked(self.contents, scores_P, eligible_P, unit, depth)

    def _dense_scores(self, query: Query, depth: int, unit: Unit, eligible_P: Mask) -> Floats:
        """Dot products; those that may be among the best are computed exactly.

        So neither the order nor the scores of what is found depend on how passages are stored.
        """
        eligible = np.flatnonzero(eligible_P)
        if len(eligible) < min(FEW, len(eligible_P) // 8):
            scores_P = np.full(len(eligible_P), -np.inf, dtype=np.float32)
            scores_P[eligible] = self.dense.vectors(eligible) @ query.vector_E
        else:
            scores_P = self.dense.scores(query.vector_E)
        best = ranked(self.contents, scores_P, eligible_P, unit, depth)
        if len(best.scores):
            least = best.scores[-1] - ROUNDING * max(1.0, float(np.abs(best.scores[-1])))
            near = np.flatnonzero(eligible_P & (scores_P >= least))
            scores_P[near] = self.dense.exact(query.vector_E, near)
        return scores_P

    def _proposed(self, query: Query, depth: int, eligible_P: Mask, count: int | None = None) -> Mask:
        """The eligible passages that codes propose, or else a graph; more than ``depth``."""
        bits = self._settings.vectors.dense_bits
        if bits is None:
            _, rows = self._graphs.search(query.vector_E[None], APPROXIMATE_FACTOR * depth)
            return _mask(rows[rows >= 0], len(eligible_P)) & eligible_P
        least, factor = PROPOSED_BY_CODES[bits]
        wanted = max(least, factor * depth) if count is None else max(count, depth)
        return _mask(self.dense.proposed(query.vector_E, eligible_P, wanted), len(eligible_P))

    @cached_property
    def _graphs(self) -> ApproximateSearch:
        deleted = [np.flatnonzero(~live_P) for live_P in self.contents.live_parts()]
        return ApproximateSearch(self.contents.generation, "dense/vectors", "dot", deleted=deleted)

    @cached_property
    def bm25(self) -> Bm25:
        """The view of terms."""
        return Bm25([segment.arrays for segment in self.contents.segments], self.contents.live_parts())

    @cached_property
    def dense(self) -> Dense:
        """The view of one vector per passage."""
        return Dense([segment.arrays for segment in self.contents.segments], self.contents.quantizer)

    @cached_property
    def trainable_encoder(self) -> "Encoder":
        """The encoder of the dense view in modules that support gradients, for attribution."""
        return self.model_of("dense").trainable_encoder(replace=False)

    @cached_property
    def sparse(self) -> Sparse:
        """The view of weights of words."""
        segments = self.contents.segments
        return Sparse([segment.arrays for segment in segments], self.contents.passage_sizes)

    @cached_property
    def vectors(self) -> Vectors:
        """The view of a vector per token."""
        return Vectors([segment.arrays for segment in self.contents.segments], self.contents.codec)


def _mask(passages: NDArray[np.int64], count: int) -> Mask:
    mask = np.zeros(count, dtype=np.bool_)
    mask[passages] = True
    return mask


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """The arguments of one search; see `Index.search`."""

    k: int
    mode: Mode
    unit: Unit
    among: NDArray[np.bool_] | None
    reranker: Model | None
    candidates: int | None
    approximate: bool = False
    fusion: FusionSettings = DEFAULT_FUSION

    def __post_init__(self) -> None:
        whole_number("k", self.k, 1)
        if self.candidates is not None:
            whole_number("candidates", self.candidates, self.k)
        if self.reranker is not None and not can_rerank(self.reranker):
            raise InvalidRequest(f"reranker is {quoted(self.reranker)}; give a loaded {RERANKERS}")


RERANKERS = "cross-encoder with one score, or model of one vector per text or per token"
"""What `can_rerank`, in words."""


def can_rerank(reranker: object) -> bool:
    """Whether this is a model that `scores_again` takes: in Python, on the command line and in the server."""
    if not isinstance(reranker, Model):
        return False
    match reranker.checkpoint.head:
        case PairScore(labels=labels):
            return labels == 1
        case head:
            return isinstance(head, PooledVector | MultiVector)


def scores_again(reranker: Model, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
    """How well texts fit a query by another model: the logits of a cross-encoder, cosines, or MaxSim.

    A text that is too long for the model is truncated. Only these texts are read, so a model that is too slow
    for all documents can score the candidates of a faster one.

    Args:
        reranker: a model that `can_rerank`.
        query: the query.
        texts: the texts; at least one.
    """
    if isinstance(reranker.checkpoint.head, PairScore):
        queries = [query] * len(texts)
        return reranker.score_pairs(queries, texts, activation="identity", truncation="end")
    if isinstance(reranker.checkpoint.head, MultiVector):
        asked_QE = reranker.multi_vectors(query, "query", truncation="end").vectors_NE
        read = reranker.multi_vectors(texts, "document", truncation="end")
        return np.array([late_interaction(asked_QE, document.vectors_NE) for document in read], np.float32)
    asked_E = reranker.embed_query(query, normalize=True, truncation="end")
    documents_PE = reranker.embed_document(texts, normalize=True, truncation="end")
    cosines_P: NDArray[np.float32] = documents_PE @ asked_E
    return cosines_P


def check_candidates(
    candidates: int | None,
    modes: Collection[Mode],
    views: Collection[View],
    reranker: Model | None,
    *,
    fused: int | None = FUSED_DEPTH,
    proposing: Collection[View] = (),
) -> None:
    """Refuse candidates that no search would use.

    Args:
        candidates: see `Index.search`.
        modes: those of the searches.
        views: those of the index.
        reranker: what scores the candidates again, if anything does.
        fused: the length of the rankings that hybrid search fuses, which more candidates extend; None if
            they do not.
        proposing: the views of whose passages so many are proposed, by codes or centroids.

    Raises:
        InvalidRequest: they would have no effect.
    """
    if candidates is None or reranker is not None:
        return
    if any(mode in proposing for mode in modes) or ("multi_vector" in modes and len(views) > 1):
        return
    more = ""
    if fused is not None and "hybrid" in modes:
        if candidates > fused:
            return
        more = f", or more than {fused}"
    raise InvalidRequest(
        f"candidates is {candidates} and has no effect with mode {', '.join(modes)} without a reranker; "
        f"leave it out, or give a reranker{more}"
    )
