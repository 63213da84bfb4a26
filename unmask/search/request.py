"""What one search was asked for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.arguments import whole_number
from unmask.errors import InvalidRequest, quoted
from unmask.loaded import Model
from unmask.model.spec import PairScore
from unmask.search.options import Mode, Unit
from unmask.search.searcher import DEFAULT_FUSION
from unmask.search.views.fusion import FusionSettings

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
            if self.reranker is None and self.mode not in ("multi_vector", "hybrid"):
                raise InvalidRequest(
                    f"candidates is {self.candidates} and has no effect with mode {self.mode} without a "
                    "reranker; leave it out, or give a reranker"
                )
        reranker = self.reranker
        scores_pairs = isinstance(reranker, Model) and isinstance(reranker.checkpoint.head, PairScore)
        if reranker is not None and not scores_pairs:
            raise InvalidRequest(
                f"reranker is {quoted(reranker)}; give a loaded cross-encoder, which scores pairs of texts"
            )
