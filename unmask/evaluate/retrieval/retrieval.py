"""Score search on a test collection, mode by mode: nDCG, recall, reciprocal rank and average precision.

Axes: Q queries; M measures.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

from unmask.base.arguments import whole_number
from unmask.base.intervals import percentile_interval, samples
from unmask.base.optional import require
from unmask.base.progress import Progress
from unmask.errors import EmptyText, InvalidRequest, TextTooLong
from unmask.evaluate.retrieval.collection import (
    CollectionSettings,
    IndexedCollection,
    Judged,
    Judgments,
    PassageMode,
    add_collection,
    collection_index,
    passage_mode,
    read_beir,
)
from unmask.models.load import Model
from unmask.search.index import Index, Models
from unmask.search.options import Mode, View
from unmask.search.passages import TokensIndexed
from unmask.search.searcher import RERANKED, check_candidates

Run = Mapping[str, Mapping[str, float]]
"""For each query the score of each document that was found."""

CUTOFFS = (10, 100)

DEPTH = 1000
"""Documents that are ranked for each query, as `mteb` does."""

RERANKER_DEPTH = 100
"""Documents that the first stage ranks if a reranker is used; more if it scores more."""


@dataclass(frozen=True)
class Figure:
    """The mean of a measure over queries, with its 95 % bootstrap interval over queries."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Figures:
    """How good a run is."""

    queries: int
    """Judged queries, each of which counts the same. One without results counts as 0."""
    without_results: int
    """Judged queries that the run does not have."""
    figures: tuple[Figure, ...]
    """nDCG, recall and MRR at each cutoff, and MAP. nDCG is trec_eval's: the gain is the grade."""
    ties_at: Mapping[int, int]
    """For each cutoff the queries whose last document inside it has the same score as the first outside.

    Ties are broken by the document's id, ascending."""
    per_query: Mapping[str, Mapping[str, float]]
    """The figures of each query."""

    def __getitem__(self, name: str) -> float:
        return {figure.name: figure.value for figure in self.figures}[name]


def figures(run: Run, judgments: Judgments, cutoffs: Sequence[int] = CUTOFFS) -> Figures:
    """The figures of a run for all judged queries; queries without judgments do not count.

    Raises:
        InvalidRequest: a cutoff is below 1, or there are no judgments.
        MissingExtra: ir_measures is not installed.
    """
    require("search")
    if not judgments or not cutoffs or min(cutoffs) < 1:
        raise InvalidRequest(
            f"cutoffs are {tuple(cutoffs)}; give at least one of at least 1, and judged queries"
        )
    ranked = {query: ranking(run.get(query, {})) for query in judgments}
    measures = import_module("ir_measures")
    measure_of = {
        **{f"nDCG@{cutoff}": measures.nDCG @ cutoff for cutoff in cutoffs},
        **{f"recall@{cutoff}": measures.R @ cutoff for cutoff in cutoffs},
        **{f"MRR@{cutoff}": measures.RR @ cutoff for cutoff in cutoffs},
        "MAP": measures.AP,
    }
    names = {str(measure): name for name, measure in measure_of.items()}
    # Ranks instead of scores: libraries break ties in different ways, and compare scores in float32.
    strict = {
        query: {document: float(-rank) for rank, document in enumerate(documents)}
        for query, documents in ranked.items()
        if documents
    }
    per_query = {query: dict.fromkeys(measure_of, 0.0) for query in judgments}
    grades = {query: dict(grades) for query, grades in judgments.items()}
    for result in measures.iter_calc(list(measure_of.values()), grades, strict):
        per_query[result.query_id][names[str(result.measure)]] = float(result.value)
    return Figures(
        queries=len(judgments),
        without_results=len(judgments) - len(strict),
        figures=_means(per_query, list(measure_of)),
        ties_at={cutoff: _ties(run, ranked, cutoff) for cutoff in cutoffs},
        per_query=per_query,
    )


def ranking(scores: Mapping[str, float]) -> list[str]:
    """The documents from the best score to the worst, those of equal scores by their ids, ascending."""
    return sorted(scores, key=lambda document: (-scores[document], document))


def without_same_id(run: Run) -> dict[str, dict[str, float]]:
    """The run without documents whose id is the query's own.

    In some collections (ArguAna, Quora) the queries are documents, which would find themselves.
    """
    return {
        query: {document: score for document, score in scores.items() if document != query}
        for query, scores in run.items()
    }


def _means(per_query: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> tuple[Figure, ...]:
    values_QM = np.array([[values[name] for name in names] for values in per_query.values()])
    drawn = np.array([values_QM[chosen].mean(axis=0) for chosen in samples(len(values_QM))])
    means = []
    for place, name in enumerate(names):
        interval = percentile_interval(drawn[:, place].tolist())
        means.append(Figure(name, float(values_QM[:, place].mean()), interval.low, interval.high))
    return tuple(means)


def _ties(run: Run, ranked: Mapping[str, Sequence[str]], cutoff: int) -> int:
    return sum(
        len(documents) > cutoff and run[query][documents[cutoff - 1]] == run[query][documents[cutoff]]
        for query, documents in ranked.items()
    )


@dataclass(frozen=True)
class UsedModel:
    """A model whose search was scored."""

    view: View
    name: str
    revision: str | None
    sha256: str
    """See `ModelIdentity`."""
    dtype: str


@dataclass(frozen=True)
class ModeFigures:
    """How good the rankings of one mode are, or those of a reranker after it."""

    mode: Mode
    reranker: str | None
    """The name of the cross-encoder that ordered the documents; None for the mode alone."""
    depth: int
    """Documents that were ranked for each query; measures see no others."""
    figures: tuple[Figure, ...]
    without_results: int
    """Judged queries for which nothing was found; they count as 0."""
    ties_at: Mapping[int, int]
    """See `Figures.ties_at`."""
    per_query: Mapping[str, Mapping[str, float]]
    seconds: float
    """For all queries."""


@dataclass(frozen=True)
class RetrievalResult:
    """How well the judged documents of a collection are found."""

    data: str
    split: str
    models: tuple[UsedModel, ...]
    passage_mode: PassageMode
    passage_tokens: int
    """The longest passage that the models read, special tokens included."""
    overlap_tokens: int
    documents: int
    passages: int
    truncated_documents: int
    """Documents of which the models do not read all tokens."""
    tokens: TokensIndexed
    skipped: tuple[tuple[str, str], ...]
    """Documents without text, which cannot be found, each with the reason."""
    missing_documents: int
    """Relevant documents of the judgments that the index does not have."""
    queries: int
    truncated_queries: int
    """Queries that are too long for a model, which reads their beginning."""
    modes: tuple[ModeFigures, ...]
    """For each mode its figures, and then those of the reranker if there is one."""
    index_seconds: float

    def of(self, mode: Mode, *, reranked: bool = False) -> ModeFigures:
        """The figures of a mode."""
        return next(
            entry for entry in self.modes if (entry.mode, entry.reranker is not None) == (mode, reranked)
        )


@dataclass(frozen=True)
class Measurement:
    """What is measured on an index."""

    modes: Sequence[Mode] = ()
    """Empty for all that the index has."""
    reranker: Model | None = None
    candidates: int | None = None
    """How many documents the reranker scores (50 by default), or many vectors in their own mode (all)."""
    split: str | None = None
    """The judgments to use; None: ``test``, or the only split."""
    cutoffs: Sequence[int] = CUTOFFS
    """Of nDCG, recall and MRR."""
    drop_same_id: bool = False
    """Leave out the document whose id is the query's, as usual for ArguAna and Quora."""

    def __post_init__(self) -> None:
        if self.candidates is not None:
            whole_number("candidates", self.candidates, 1)

    def modes_of(self, index: Index) -> tuple[Mode, ...]:
        """The modes to measure on an index.

        Raises:
            InvalidRequest: the index lacks the view of one, or no mode has a use for `candidates`.
        """
        modes = tuple(dict.fromkeys(index.mode(mode) for mode in self.modes)) or index.settings.modes
        check_candidates(self.candidates, modes, index.settings.views, self.reranker, fused=None)
        return modes


def evaluate_retrieval(
    model: Models,
    data: str | Path | Judged,
    *,
    index: str | Path | None = None,
    settings: CollectionSettings | None = None,
    measurement: Measurement | None = None,
    progress: Progress | None = None,
) -> RetrievalResult:
    """Index a collection in BEIR's layout, search it for every judged query, and score what is found.

    Args:
        model: one model or several; each gives a view of the index, beside BM25. An empty list measures
            BM25 alone, or an index that exists with its own models.
        data: the folder, or what `read_beir` returned.
        index: the folder of an index that is kept, and reused if it exists; None for a temporary one.
        settings: the passages of a new index; see `CollectionSettings`.
        measurement: what is measured.
        progress: called with the number of passages indexed and 0.

    Raises:
        InvalidRequest: an argument is invalid, or a file of the collection is missing.
        TextError: the collection cannot be read.
    """
    judged = data if isinstance(data, Judged) else read_beir(Path(data))
    measurement = measurement or Measurement()
    check(measurement, judged)
    with collection_index(judged, model, index, settings) as opened:
        measurement.modes_of(opened)
        return measure(add_collection(opened, judged, progress=progress), measurement)


def check(measurement: Measurement, judged: Judged) -> None:
    """Fail before anything is computed if a collection has no judgments to measure by.

    Raises:
        InvalidRequest: it has no such split.
        InvalidText: the judgments cannot be read.
    """
    judged.judgments(_split(judged, measurement.split))


def measure(
    indexed: IndexedCollection, measurement: Measurement, *, progress: Progress | None = None
) -> RetrievalResult:
    """Search an index for all judged queries and score what is found.

    Args:
        indexed: from `collection_index`.
        measurement: what is measured.
        progress: called with (queries done, queries in all), over all modes.

    Raises:
        InvalidRequest: an argument is invalid.
        TextError: a query is blank, or not Unicode text.
    """
    index, judged = indexed.index, indexed.judged
    split = _split(judged, measurement.split)
    judgments = judged.judgments(split)
    searched = _Searches(index, {query: judged.queries[query] for query in judgments}, measurement, progress)
    modes = [entry for mode in searched.modes for entry in searched.figures(mode, judgments)]
    counts = index.token_counts()
    passages = index.settings.passages
    return RetrievalResult(
        data=judged.name,
        split=split,
        models=tuple(
            UsedModel(view, identity.name, identity.revision, identity.sha256, index.model(view).dtype)
            for view, identity in index.settings.models.items()
        ),
        passage_mode=passage_mode(passages),
        passage_tokens=passages.max_tokens,
        overlap_tokens=passages.overlap_tokens,
        documents=len(index),
        passages=index.passages,
        truncated_documents=sum(count.dropped > 0 for count in counts.values()),
        tokens=sum(counts.values(), TokensIndexed()),
        skipped=indexed.added.skipped,
        missing_documents=sum(document not in index for document in _relevant(judgments)),
        queries=len(judgments),
        truncated_queries=len(searched.truncated),
        modes=tuple(modes),
        index_seconds=indexed.seconds,
    )


class _Searches:
    """Searches for all judged queries, mode by mode."""

    def __init__(
        self,
        index: Index,
        queries: Mapping[str, str],
        measurement: Measurement,
        progress: Progress | None,
    ) -> None:
        self._index = index
        self._queries = queries
        self._measurement = measurement
        self._progress = progress
        self._done = 0
        self.modes = measurement.modes_of(index)
        self.truncated: set[str] = set()
        for query, text in queries.items():
            if not text.strip():
                raise EmptyText(f"the query {query!r} is blank; give it words, or leave out its judgments")

    def figures(self, mode: Mode, judgments: Judgments) -> Iterable[ModeFigures]:
        """The figures of a mode, and those of the reranker."""
        reranker, candidates = self._measurement.reranker, self._measurement.candidates
        if reranker is None:
            # Many vectors score no more documents than the candidates.
            bounded = candidates if mode == "multi_vector" else None
            depth = DEPTH if bounded is None else min(DEPTH, bounded)
            yield self._measured(mode, depth, judgments, None, bounded)
            return
        scored = candidates or RERANKED
        yield self._measured(mode, max(RERANKER_DEPTH, scored), judgments, None, None)
        yield self._measured(mode, scored, judgments, reranker, scored)

    def _measured(
        self, mode: Mode, depth: int, judgments: Judgments, reranker: Model | None, candidates: int | None
    ) -> ModeFigures:
        began = time.monotonic()
        run = {query: self._found(query, depth, mode, reranker, candidates) for query in self._queries}
        seconds = time.monotonic() - began
        scored_run = without_same_id(run) if self._measurement.drop_same_id else run
        results = figures(scored_run, judgments, tuple(self._measurement.cutoffs))
        return ModeFigures(
            mode,
            None if reranker is None else reranker.name,
            depth,
            results.figures,
            results.without_results,
            results.ties_at,
            results.per_query,
            round(seconds, 3),
        )

    def _found(
        self, query: str, depth: int, mode: Mode, reranker: Model | None, candidates: int | None
    ) -> Mapping[str, float]:
        """The scores of the documents found for a query; one that is too long is truncated and counted."""
        rank = partial(
            self._index.rank_documents,
            [self._queries[query]],
            depth,
            mode,
            reranker=reranker,
            candidates=candidates,
        )
        try:
            (ranking,) = rank()
        except TextTooLong:
            self.truncated.add(query)
            (ranking,) = rank(truncation="end")
        self._done += 1
        if self._progress is not None:
            stages = 1 if self._measurement.reranker is None else 2
            self._progress(self._done, len(self._queries) * len(self.modes) * stages)
        return dict(ranking)


def _split(judged: Judged, split: str | None) -> str:
    if split is not None:
        return split
    if "test" in judged.splits or len(judged.splits) == 1:
        return "test" if "test" in judged.splits else judged.splits[0]
    raise InvalidRequest(f"{judged.name} has the splits {', '.join(judged.splits)}; name one of them")


def _relevant(judgments: Judgments) -> set[str]:
    return {document for grades in judgments.values() for document, grade in grades.items() if grade > 0}
