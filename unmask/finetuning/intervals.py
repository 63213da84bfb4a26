"""Confidence intervals of figures, for the model card of a run."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unmask.finetuning.evaluate import Scores
from unmask.finetuning.settings import Task
from unmask.optional import require

CONFIDENCE = 0.95

PROPORTIONS: Mapping[Task, str] = {"classification": "accuracy", "multi_label": "exact"}
"""The figure of each task that is a share of independent texts, to which Wilson's formula applies."""

RESAMPLES, LARGE = 1000, 5000
"""Samples of a bootstrap, a fifth of them for more than ``LARGE`` texts, whose intervals are narrow."""


@dataclass(frozen=True)
class Interval:
    """Where the figure of other texts of the same kind would be, for 95 of 100 such intervals."""

    low: float
    high: float


def intervals(scores: Scores, texts: int, task: Task) -> dict[str, Interval]:
    """The interval of every figure.

    That of a share of texts is Wilson's (1927); those of other figures are between percentiles of their
    values on samples of the texts with replacement (bootstrap).

    Args:
        scores: figures of a selection of texts.
        texts: number of texts.
        task: decides which figure is a share of texts.
    """
    whole = scores(np.arange(texts))
    draw = np.random.default_rng(0)
    count = RESAMPLES if texts <= LARGE else RESAMPLES // 5
    drawn = [scores(draw.integers(0, texts, texts)) for _ in range(count)]
    tail = (1 - CONFIDENCE) / 2
    found = {}
    for name, value in whole.items():
        if PROPORTIONS.get(task) == name:
            found[name] = _wilson(round(value * texts), texts)
        else:
            # A type of entity may be missing from a sample.
            values = [one[name] for one in drawn if name in one]
            low, high = np.quantile(values, (tail, 1 - tail))
            found[name] = Interval(float(low), float(high))
    return found


def _wilson(right: int, texts: int) -> Interval:
    require("finetune")
    test = importlib.import_module("scipy.stats").binomtest(right, texts)
    interval = test.proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(interval.low), float(interval.high))
