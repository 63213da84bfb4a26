"""A temperature that makes probabilities fit held-out labels (Guo et al. 2017), and the fit.

Axes: S texts; C classes.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.optional import require
from unmask.encoder.encoder import Encoder
from unmask.engines.torch_engine import TorchEngine
from unmask.spec import ProblemType
from unmask.tasks.classify import THRESHOLD, classifier_of, probabilities, problem_of
from unmask.tasks.logits import WindowedLogits
from unmask.training.finetune.evaluate import read_examples
from unmask.training.finetune.examples import Example

BINS = 15
"""Bins of the expected calibration error, of equal width, as in Guo et al."""
BOUNDS = (0.05, 20.0)
"""The lowest and the highest temperature that is tried."""
TINY = 1e-12
"""A probability of 0 counts as this in the negative log-likelihood."""


def calibrate(encoder: Encoder, dev: Sequence[Example], say: Callable[[str], None]) -> dict[str, float]:
    """Give an encoder's classifier the temperature that fits labeled examples.

    Returns:
        The temperature, and `figures_of` with it and, by the name ``..._uncalibrated``, without it.
    """
    texts = read_examples(TorchEngine(encoder), "sequence", dev)
    head = classifier_of(encoder.spec, "sequence", "the model")
    problem = problem_of(head)
    gold = np.array([example.gold for example in dev])
    gold = gold > 0.5 if problem == "multi_label_classification" else gold.astype(np.int64)
    temperature = fitted_temperature(texts, gold, problem)
    if temperature is None:
        say("no dev text is classified wrongly, so no temperature can be fitted")
        temperature = 1.0
    fitted = replace(head, temperature=temperature)
    encoder.spec = replace(
        encoder.spec, heads=tuple(fitted if other is head else other for other in encoder.spec.heads)
    )
    before = figures_of(class_probabilities(texts, 1.0, problem), gold)
    after = figures_of(class_probabilities(texts, temperature, problem), gold)
    changes = ", ".join(f"{name} {before[name]:.4f} to {after[name]:.4f}" for name in after)
    say(f"calibrated with temperature {temperature:.3f}: {changes}")
    return (
        {"temperature": temperature}
        | after
        | {f"{name}_uncalibrated": value for name, value in before.items()}
    )


def class_probabilities(
    texts: Sequence[WindowedLogits],
    temperature: float = 1.0,
    problem: ProblemType = "single_label_classification",
) -> NDArray[np.float64]:
    """The probabilities that `unmask.tasks.classify.classify` gives, (S, C)."""
    return np.stack(
        [text.shares() @ probabilities(np.stack(text.logits) / temperature, problem) for text in texts]
    )


def fitted_temperature(
    texts: Sequence[WindowedLogits],
    gold: NDArray[Any],
    problem: ProblemType = "single_label_classification",
) -> float | None:
    """The temperature with the smallest loss; None if no text is classified wrongly.

    The loss is the negative log-likelihood of the labels, (S,), or, where several labels may apply, (S, C),
    the mean binary cross-entropy. Without a mistake the smallest temperature is the best, whatever the data,
    so nothing can be fitted.
    """
    plain = class_probabilities(texts, 1.0, problem)
    predicted = plain.argmax(-1) if gold.ndim == 1 else plain >= THRESHOLD
    if (predicted == gold).all():
        return None
    require("finetune")
    optimize = importlib.import_module("scipy.optimize")

    def loss(log_temperature: float) -> float:
        p_SC = class_probabilities(texts, float(np.exp(log_temperature)), problem)
        return next(iter(figures_of(p_SC, gold).values()))

    best = optimize.minimize_scalar(loss, bounds=tuple(np.log(BOUNDS)), method="bounded")
    return float(np.exp(best.x))


def figures_of(p_SC: NDArray[np.float64], gold: NDArray[Any]) -> dict[str, float]:
    """The loss and other figures of probabilities, with one label of each text, (S,), or several, (S, C)."""
    return calibration_figures(p_SC, gold) if gold.ndim == 1 else multi_label_calibration(p_SC, gold)


def multi_label_calibration(p_SC: NDArray[np.float64], gold_SC: NDArray[np.bool_]) -> dict[str, float]:
    """Binary cross-entropy, Brier score and expected calibration error of labels that apply independently.

    Each is a mean over all labels of all texts. The last is the mean difference between the probability of a
    label and the share of texts that have it, over bins of the first.
    """
    right_SC = np.where(gold_SC, p_SC, 1 - p_SC)
    return {
        "bce": float(-np.log(np.maximum(right_SC, TINY)).mean()),
        "brier": float(np.square(p_SC - gold_SC).mean()),
        "ece": _binned_error(p_SC.ravel(), gold_SC.ravel()),
    }


def calibration_figures(p_SC: NDArray[np.float64], gold_S: NDArray[np.int64]) -> dict[str, float]:
    """Negative log-likelihood, Brier score (a sum over classes, from 0 to 2) and expected calibration error.

    The last is the mean difference between the highest probability and the accuracy, over bins of the first.
    """
    texts = np.arange(len(gold_S))
    truth_SC = np.zeros_like(p_SC)
    truth_SC[texts, gold_S] = 1
    sure, right = p_SC.max(-1), p_SC.argmax(-1) == gold_S
    return {
        "nll": float(-np.log(np.maximum(p_SC[texts, gold_S], TINY)).mean()),
        "brier": float(np.square(p_SC - truth_SC).sum(-1).mean()),
        "ece": _binned_error(sure, right),
    }


def _binned_error(p: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """The mean difference between probabilities and how often they are right, over bins of the first."""
    bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, p - right, minlength=BINS)).sum() / len(p))
