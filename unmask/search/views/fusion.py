"""Several rankings as one.

Axes: P ranked passages or documents.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest, quoted
from unmask.search.options import FUSIONS, Fusion, View

RANK_CONSTANT = 60
"""k of reciprocal rank fusion, as in the paper."""


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
