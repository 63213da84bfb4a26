"""A temperature that makes probabilities fit held-out labels (Guo et al. 2017), and the fit.

Axes: S texts; C classes.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unmask.finetuning.evaluate import read_examples
from unmask.finetuning.examples import Example
from unmask.model.encoder import Encoder
from unmask.model.spec import Classifier
from unmask.model.torch_engine import TorchEngine
from unmask.optional import require
from unmask.tasks.classify import probabilities
from unmask.tasks.long_texts import WindowedLogits

BINS = 15
"""Bins of the expected calibration error, of equal width, as in Guo et al."""
BOUNDS = (0.05, 20.0)
"""The lowest and the highest temperature that is tried."""
TINY = 1e-12
"""A probability of 0 counts as this in the negative log-likelihood."""


def calibrate(encoder: Encoder, dev: Sequence[Example], say: Callable[[str], None]) -> dict[str, float]:
    """Give an encoder's classifier the temperature that fits labeled examples.

    Returns:
        The temperature, and `calibration_figures` with it and, by the name ``..._uncalibrated``, without it.
    """
    texts = read_examples(TorchEngine(encoder), "sequence", dev)
    gold_S = np.array([int(example.gold) for example in dev], dtype=np.int64)
    temperature = fitted_temperature(texts, gold_S)
    if temperature is None:
        say("no dev text is classified wrongly, so no temperature can be fitted")
        temperature = 1.0
    encoder.spec = replace(
        encoder.spec,
        heads=tuple(
            replace(head, temperature=temperature)
            if isinstance(head, Classifier) and head.role == "sequence"
            else head
            for head in encoder.spec.heads
        ),
    )
    before = calibration_figures(class_probabilities(texts), gold_S)
    after = calibration_figures(class_probabilities(texts, temperature), gold_S)
    changes = ", ".join(f"{name} {before[name]:.4f} to {after[name]:.4f}" for name in after)
    say(f"calibrated with temperature {temperature:.3f}: {changes}")
    return (
        {"temperature": temperature} | after | {f"{name}_uncalibrated": one for name, one in before.items()}
    )


def class_probabilities(texts: Sequence[WindowedLogits], temperature: float = 1.0) -> NDArray[np.float64]:
    """The probabilities that `unmask.tasks.classify.classify` gives, (S, C)."""
    return np.stack(
        [
            text.shares() @ probabilities(np.stack(text.logits) / temperature, "single_label_classification")
            for text in texts
        ]
    )


def fitted_temperature(texts: Sequence[WindowedLogits], gold_S: NDArray[np.int64]) -> float | None:
    """The temperature with the smallest negative log-likelihood; None if no text is classified wrongly.

    Without a mistake the smallest temperature is the best, whatever the data, so nothing can be fitted.
    """
    if (class_probabilities(texts).argmax(-1) == gold_S).all():
        return None
    require("finetune")
    optimize = importlib.import_module("scipy.optimize")

    def loss(log_temperature: float) -> float:
        return calibration_figures(class_probabilities(texts, float(np.exp(log_temperature))), gold_S)["nll"]

    found = optimize.minimize_scalar(loss, bounds=tuple(np.log(BOUNDS)), method="bounded")
    return float(np.exp(found.x))


def calibration_figures(p_SC: NDArray[np.float64], gold_S: NDArray[np.int64]) -> dict[str, float]:
    """Negative log-likelihood, Brier score (a sum over classes, from 0 to 2) and expected calibration error.

    The last is the mean difference between the highest probability and the accuracy, over bins of the first.
    """
    texts = np.arange(len(gold_S))
    truth_SC = np.zeros_like(p_SC)
    truth_SC[texts, gold_S] = 1
    sure, right = p_SC.max(-1), p_SC.argmax(-1) == gold_S
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    error = np.abs(np.bincount(bins, sure - right, minlength=BINS)).sum() / len(gold_S)
    return {
        "nll": float(-np.log(np.maximum(p_SC[texts, gold_S], TINY)).mean()),
        "brier": float(np.square(p_SC - truth_SC).sum(-1).mean()),
        "ece": float(error),
    }
