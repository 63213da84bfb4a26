"""The 95 % confidence intervals of the scores of a model on a file.

Axes: S texts; C classes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import Interval, percentile_interval, sample_counts
from unmask.training.finetune.calibration import calibration_figures
from unmask.training.finetune.evaluate import entity_scorer, intervals
from unmask.training.finetune.metrics import class_figures


def class_intervals(
    p_SC: NDArray[np.float64], gold_S: NDArray[np.int64], labels: Sequence[str]
) -> dict[str, Interval]:
    """Those of `class_figures` and of two of `calibration_figures`, over texts; of accuracy Wilson's."""
    found_S = p_SC.argmax(-1)

    def scores(some: NDArray[np.int64]) -> dict[str, float]:
        fit = calibration_figures(p_SC[some], gold_S[some])
        # A bootstrap of the calibration error is biased: it grows with the repeats of a sample.
        del fit["ece"]
        return class_figures(gold_S[some], found_S[some], labels) | fit

    return dict(intervals(scores, len(gold_S), "classification"))


def entity_intervals(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> dict[str, Interval]:
    """Those of the accuracy of words and of entities, over sentences."""
    return dict(intervals(entity_scorer(gold, found), len(gold), "tagging")) if gold else {}


def mean_intervals(columns: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Those of the means of some values, over the texts that have them."""
    found = {}
    for name, values in columns.items():
        if len(values):
            means = sample_counts(len(values)) @ np.asarray(values, dtype=np.float64) / len(values)
            found[name] = percentile_interval(means.tolist())
    return found
