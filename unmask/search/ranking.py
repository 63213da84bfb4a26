"""From scores of passages to a ranking of passages or documents, and several rankings as one.

Axes: P passages, or ranked passages or documents.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest, quoted
from unmask.search.contents import Contents
from unmask.search.options import FUSIONS, Fusion, Unit, View

RANK_CONSTANT = 60
"""k of reciprocal rank fusion, as in the paper."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FusionSettings:
    """How the rankings of several views are fused."""

    kind: Fusion = "rrf"
    weights: Mapping[View, float] = field(default_factory=dict)
    """The factor of a view's points; 1 for a view that is not named."""

    def __post_init__(self) -> None:
        check_choice("fusion", self.kind, FUSIONS)
        for view, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < np.inf:
                raise InvalidRequest(
                    f"the weight of {view} is {quoted(weight)}; it must be at least 0 and finite"
                )

    def points(self, view: View, scores_P: NDArray[np.float32]) -> NDArray[np.float64]:
        """The points of each place of a view's ranking, (P,), which are added up over views.

        ``"rrf"``: ``1 / (60 + rank)``, ranks counted from 1 (Cormack, Clarke & Büttcher 2009). ``"min_max"``:
        the score, moved and scaled to the range from 0 (the last of the ranking) to 1 (Bruch, Gai & Ingber
        2023); 1 if all are equal.
        """
        weight = float(self.weights.get(view, 1.0))
        if self.kind == "rrf":
            return weight / (RANK_CONSTANT + 1 + np.arange(len(scores_P), dtype=np.float64))
        exact_P = scores_P.astype(np.float64)
        low, high = (exact_P.min(), exact_P.max()) if len(exact_P) else (0.0, 0.0)
        scaled_P = np.ones_like(exact_P) if high == low else (exact_P - low) / (high - low)
        return np.asarray(weight * scaled_P, dtype=np.float64)


def fused(rankings: Iterable[tuple[NDArray[np.int64], NDArray[np.float64]]]) -> Mapping[int, float]:
    """The sum of the points of each passage (or document) over rankings; one that lacks it gives nothing."""
    scores: dict[int, float] = {}
    for passages, points in rankings:
        for passage, point in zip(passages.tolist(), points.tolist(), strict=True):
            scores[passage] = scores.get(passage, 0.0) + point
    return scores


@dataclass(frozen=True, eq=False)
class Ranking:
    """The best passages (or the best passage of each of the best documents), best first."""

    passages: NDArray[np.int64]
    scores: Floats

    def rank_of(self, passage: int) -> int | None:
        """The rank of a passage, from 1; None if it is not in the ranking."""
        at = np.flatnonzero(self.passages == passage)
        return int(at[0]) + 1 if len(at) else None


def ranked(
    contents: Contents, scores_P: Floats, eligible_P: NDArray[np.bool_], unit: Unit, depth: int
) -> Ranking:
    """The best ``depth`` eligible passages or documents.

    Equal scores are ordered by document id and place.
    """
    passages = np.flatnonzero(eligible_P)
    if unit == "document":
        passages = _best_of_each(contents, scores_P, passages)
    scores = scores_P[passages]
    if len(passages) > depth:
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        passages, scores = passages[scores >= least], scores[scores >= least]
    order = in_order(contents, passages, scores)[:depth]
    return Ranking(passages[order], scores[order])


def in_order(contents: Contents, passages: NDArray[np.int64], scores: Floats) -> NDArray[np.int64]:
    """The positions of passages from the highest score to the lowest; see `ranked` for equal scores."""
    order = np.argsort(-scores, kind="stable")
    sorted_scores = scores[order]
    borders = np.flatnonzero(np.diff(sorted_scores, prepend=np.nan, append=np.nan) != 0)
    for start, end in pairwise(borders.tolist()):
        if end - start > 1:
            equal = order[start:end].tolist()
            order[start:end] = sorted(equal, key=lambda i: contents.tie_key(int(passages[i])))
    return order


def _best_of_each(contents: Contents, scores_P: Floats, passages: NDArray[np.int64]) -> NDArray[np.int64]:
    """The best passage of each document; of equal ones the first in the document."""
    documents = contents.document_P[passages]
    # By document, then by score from the highest, then as they follow in the document.
    order = np.lexsort((passages, -scores_P[passages], documents))
    first = np.flatnonzero(np.diff(documents[order], prepend=-1))
    return np.sort(passages[order[first]])
