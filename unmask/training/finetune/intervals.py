"""Confidence intervals of the figures of a task."""

import numpy as np

from unmask.base.intervals import Interval, percentile_interval, samples, wilson_interval
from unmask.training.finetune.evaluate import Scores
from unmask.training.finetune.tasks import TASKS, Task


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
        if TASKS[task].share == name:
            found[name] = wilson_interval(value, texts)
        else:
            # A type of entity may be missing from a sample.
            found[name] = percentile_interval([one[name] for one in drawn if name in one])
    return found
