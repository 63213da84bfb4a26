"""From scores of passages to a ranking of passages or documents.

Axes: P passages.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unmask.search.contents import Contents
from unmask.search.options import Unit

Floats = NDArray[np.float32]


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
