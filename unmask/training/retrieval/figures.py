"""Figures of a ranking on dev data: nDCG@10, MRR@10 and recall@10.

Axes: P documents.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

CUT = 10
"""The documents of a ranking that count."""

FIGURES = (f"ndcg@{CUT}", f"mrr@{CUT}", f"recall@{CUT}")
"""The figures of a retriever on dev data; the first is the default metric."""


def best_of(scores_P: NDArray[np.float32], count: int = CUT) -> NDArray[np.int64]:
    """The places of the highest scores, the highest first; of equal scores the first place."""
    return np.argsort(-scores_P, kind="stable")[:count]


def ranking_figures(
    rankings: Sequence[Sequence[int]], answers: Sequence[Mapping[int, int]]
) -> dict[str, float]:
    """Means over queries.

    Args:
        rankings: for each query, the places of documents, the best first; `CUT` of them count.
        answers: for each query, the relevance of documents by place.
    """
    figures: list[tuple[float, float, float]] = []
    discounts = 1 / np.log2(np.arange(CUT) + 2)
    for ranking, relevant in zip(rankings, answers, strict=True):
        gains = np.array([relevant.get(int(place), 0) for place in ranking[:CUT]], dtype=np.float64)
        ideal = np.sort(np.array(list(relevant.values()), dtype=np.float64))[::-1][:CUT]
        hits = np.flatnonzero(gains)
        figures.append(
            (
                float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)])),
                1 / (hits[0] + 1) if len(hits) else 0.0,
                len(hits) / len(relevant),
            )
        )
    means = np.array(figures).mean(0)
    return dict(zip(FIGURES, means.tolist(), strict=True))
