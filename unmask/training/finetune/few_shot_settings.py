"""The settings of few-shot classification in a run file, and what they exclude."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import InvalidRequest
from unmask.training.data.pairs import SamplingStrategy
from unmask.training.run.loop_settings import at_least

FEW_SHOT: Mapping[str, Any] = {"epochs": 1.0, "batch_size": 16}
"""Values that a run file with ``[few_shot]`` need not repeat: those of SetFit 1.2."""


@dataclass(frozen=True)
class FewShotSettings:
    """Classification from a few texts of each label, as in SetFit (Tunstall et al. 2022)."""

    shots: int | None = None
    """Training texts of each label, drawn with ``seed`` from the training data; None takes all."""
    sampling_strategy: SamplingStrategy = "oversampling"
    """How many pairs of one label and of two labels an epoch has: the larger of both numbers, by repeating
    pairs; the smaller, by leaving pairs out; or each pair once."""
    num_iterations: int | None = None
    """Instead of ``sampling_strategy``: the pairs of one label, and those of two labels, are this many for
    each text."""
    max_pairs: int | None = None
    """Half of it is the most different pairs of one label, and of two labels; None for no limit."""
    head_c: float = 1.0
    """The ``C`` of scikit-learn's LogisticRegression, the inverse of the strength of the head's
    regularization."""

    def __post_init__(self) -> None:
        for name, least in (("shots", 2), ("num_iterations", 1), ("max_pairs", 2)):
            at_least(name, getattr(self, name), least)
        if not 0 < self.head_c < float("inf"):
            raise InvalidRequest(f"head_c is {self.head_c:g}; it must be above 0 and finite")
        if self.num_iterations is not None and self.sampling_strategy != "oversampling":
            raise InvalidRequest(
                f"num_iterations is {self.num_iterations} and sampling_strategy is {self.sampling_strategy}; "
                "give one of the two"
            )
