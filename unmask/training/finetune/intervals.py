"""Confidence intervals of figures, for the model card of a run."""

import importlib
from collections.abc import Mapping

import numpy as np

from unmask.base.intervals import CONFIDENCE, Interval, percentile_interval, samples
from unmask.base.optional import require
from unmask.training.finetune.evaluate import Scores
from unmask.training.finetune.settings import Task

PROPORTIONS: Mapping[Task, str] = {"classification": "accuracy", "multi_label": "exact"}
"""The figure of each task that is a share of independent texts, to which Wilson's formula applies."""


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
    drawn = [scores(chosen) for chosen in samples(texts)]
    found = {}
    for name, value in whole.items():
        if PROPORTIONS.get(task) == name:
            found[name] = _wilson(round(value * texts), texts)
        else:
            # A type of entity may be missing from a sample.
            found[name] = percentile_interval([one[name] for one in drawn if name in one])
    return found


def _wilson(right: int, texts: int) -> Interval:
    require("finetune")
    test = importlib.import_module("scipy.stats").binomtest(right, texts)
    interval = test.proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(interval.low), float(interval.high))
