"""What one search was asked for."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import Model
from unmask.search.options import Mode, Unit, View
from unmask.search.ranking import FusionSettings
from unmask.search.searcher import DEFAULT_FUSION, FUSED_DEPTH
from unmask.spec import PairScore

RERANKED = 50
"""Hits of the first stage that a reranker scores."""


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
        reranker = self.reranker
        scores_pairs = isinstance(reranker, Model) and isinstance(reranker.checkpoint.head, PairScore)
        if reranker is not None and not scores_pairs:
            raise InvalidRequest(
                f"reranker is {quoted(reranker)}; give a loaded cross-encoder, which scores pairs of texts"
            )


def check_candidates(
    candidates: int | None,
    modes: Collection[Mode],
    views: Collection[View],
    reranker: Model | None,
    *,
    fused: int | None = FUSED_DEPTH,
) -> None:
    """Refuse candidates that no search would use.

    Args:
        candidates: see `Index.search`.
        modes: those of the searches.
        views: those of the index.
        reranker: what scores the candidates again, if anything does.
        fused: the length of the rankings that hybrid search fuses, which more candidates extend; None if
            they do not.

    Raises:
        InvalidRequest: they would have no effect.
    """
    if candidates is None or reranker is not None:
        return
    if "multi_vector" in modes and len(views) > 1:
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
