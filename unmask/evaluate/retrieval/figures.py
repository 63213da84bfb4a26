"""Figures of retrieval: nDCG, recall, reciprocal rank and average precision, with intervals.

Axes: Q queries; M measures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from unmask.base.intervals import percentile_interval, samples
from unmask.base.optional import require
from unmask.errors import InvalidRequest
from unmask.evaluate.retrieval.collection import Judgments

Run = Mapping[str, Mapping[str, float]]
"""For each query the score of each document that was found."""

CUTOFFS = (10, 100)


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
        return {one.name: one.value for one in self.figures}[name]


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
    wanted = {
        **{f"nDCG@{cutoff}": measures.nDCG @ cutoff for cutoff in cutoffs},
        **{f"recall@{cutoff}": measures.R @ cutoff for cutoff in cutoffs},
        **{f"MRR@{cutoff}": measures.RR @ cutoff for cutoff in cutoffs},
        "MAP": measures.AP,
    }
    names = {str(measure): name for name, measure in wanted.items()}
    # Ranks instead of scores: libraries break ties in different ways, and compare scores in float32.
    strict = {
        query: {document: float(-rank) for rank, document in enumerate(documents)}
        for query, documents in ranked.items()
        if documents
    }
    per_query = {query: dict.fromkeys(wanted, 0.0) for query in judgments}
    grades = {query: dict(grades) for query, grades in judgments.items()}
    for one in measures.iter_calc(list(wanted.values()), grades, strict):
        per_query[one.query_id][names[str(one.measure)]] = float(one.value)
    return Figures(
        queries=len(judgments),
        without_results=len(judgments) - len(strict),
        figures=_means(per_query, list(wanted)),
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
    found = []
    for place, name in enumerate(names):
        interval = percentile_interval(drawn[:, place].tolist())
        found.append(Figure(name, float(values_QM[:, place].mean()), interval.low, interval.high))
    return tuple(found)


def _ties(run: Run, ranked: Mapping[str, Sequence[str]], cutoff: int) -> int:
    return sum(
        len(documents) > cutoff and run[query][documents[cutoff - 1]] == run[query][documents[cutoff]]
        for query, documents in ranked.items()
    )
