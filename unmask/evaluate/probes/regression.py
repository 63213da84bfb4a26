"""Multinomial logistic regression on fixed features: the linear probe."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

STRENGTHS = (1e-2, 1e-3, 1e-4)
"""Strengths of the penalty, strongest first; each fit starts from the previous one."""
ITERATIONS = 40
"""Maximum L-BFGS iterations for each strength."""
CHANGE = 1e-5
"""The search ends when the loss or the weights change by less than this."""


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """Logits are ``(x - mean) / deviation`` times the weights, plus the biases."""

    mean_D: Tensor
    deviation_D: Tensor
    weight_CD: Tensor
    bias_C: Tensor
    strength: float

    def logits(self, x_MD: Tensor) -> Tensor:
        """Map features (M, D) to logits (M, C)."""
        # Dividing the weights is cheaper than dividing the features.
        scaled_CD = self.weight_CD / self.deviation_D
        return functional.linear(x_MD, scaled_CD, self.bias_C - scaled_CD @ self.mean_D)

    def accuracy(self, x_MD: Tensor, classes_M: Tensor) -> float:
        """The share of rows whose true class has the largest logit."""
        return float((self.logits(x_MD).argmax(-1) == classes_M).double().mean())


def fit(
    x_MD: Tensor,
    classes_M: Tensor,
    dev_MD: Tensor,
    dev_M: Tensor,
    *,
    class_count: int,
    strengths: Sequence[float] = STRENGTHS,
) -> LinearProbe:
    """The probe that minimizes mean cross-entropy plus ``strength / 2`` times the sum of squared weights.

    Features are standardized with the mean and deviation of the training rows. Full-batch L-BFGS starts from
    zero weights; nothing is random, so the same rows give the same probe. The strength with the best accuracy
    on the dev rows is used, the stronger one if two are equal. ``x_MD`` is overwritten with the standardized
    features to save memory.
    """
    mean_D = x_MD.mean(0)
    deviation_D = x_MD.std(0, correction=0)
    # A constant feature has no information; it becomes 0 rather than noise.
    deviation_D = torch.where(deviation_D > 1e-6 * mean_D.abs() + 1e-12, deviation_D, torch.inf)
    x_MD.sub_(mean_D).div_(deviation_D)
    weight_CD = x_MD.new_zeros(class_count, x_MD.shape[1], requires_grad=True)
    bias_C = x_MD.new_zeros(class_count, requires_grad=True)
    probes = []
    for strength in sorted(strengths, reverse=True):
        _minimize(x_MD, classes_M, weight_CD, bias_C, strength)
        probes.append(
            LinearProbe(mean_D, deviation_D, weight_CD.detach().clone(), bias_C.detach().clone(), strength)
        )
    return max(probes, key=lambda probe: probe.accuracy(dev_MD, dev_M))


def _minimize(x_MD: Tensor, classes_M: Tensor, weight_CD: Tensor, bias_C: Tensor, strength: float) -> None:
    search = torch.optim.LBFGS(
        [weight_CD, bias_C],
        max_iter=ITERATIONS,
        history_size=10,
        tolerance_change=CHANGE,
        tolerance_grad=CHANGE,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        search.zero_grad()
        value = functional.cross_entropy(functional.linear(x_MD, weight_CD, bias_C), classes_M)
        value = value + strength / 2 * weight_CD.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(loss)  # type: ignore[no-untyped-call]
