"""The probes of fixed features: multinomial logistic regression, and a network with one hidden layer."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

STRENGTHS = (1e-2, 1e-3, 1e-4)
"""Strengths of the penalty, strongest first; each fit starts from the previous one."""
ITERATIONS = 40
"""Maximum L-BFGS iterations for each strength."""
CHANGE = 1e-5
"""The search ends when the loss or the weights change by less than this."""

HIDDEN = 128
"""Units of the hidden layer."""
MLP_RATE = 2e-3
MLP_DECAY = 1e-2
MLP_ROWS = 128
"""Words of a step."""
STEPS_OF_ROUND = 100
"""A round is a pass over the training rows, or several passes where one has fewer steps."""
ROUNDS, PATIENCE = 30, 4
"""The most rounds, and after how many without a better accuracy on dev training ends."""


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


def moments(x_MD: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the deviation of each feature, (D,) each, with which features are standardized.

    The deviation of a constant feature is infinite: it has no information, and becomes 0 rather than noise.
    """
    mean_D = x_MD.mean(0)
    deviation_D = x_MD.std(0, correction=0)
    return mean_D, torch.where(deviation_D > 1e-6 * mean_D.abs() + 1e-12, deviation_D, torch.inf)


def fit_linear(
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
    mean_D, deviation_D = moments(x_MD)
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


@dataclass(frozen=True, eq=False)
class MlpProbe:
    """``W2 relu(W1 x + b1) + b2``."""

    network: nn.Sequential
    rounds: int
    """After how many rounds it was best on dev."""

    def right(self, x_MD: Tensor, classes_M: Tensor) -> Tensor:
        """Whether the true class of each row has the largest logit, (M,)."""
        with torch.no_grad():
            right: Tensor = self.network(x_MD).argmax(-1) == classes_M
        return right


def fit_mlp(
    x_MD: Tensor,
    classes_M: Tensor,
    dev_MD: Tensor,
    dev_M: Tensor,
    *,
    class_count: int,
    hidden: int = HIDDEN,
    seed: int = 0,
) -> MlpProbe:
    """Minimize cross-entropy by AdamW in batches, and keep the round that is best on dev.

    Features should be standardized. The seed determines weights and order, so the same rows give the same
    probe on the same machine.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(x_MD.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, class_count)
        ).to(x_MD.dtype)
    steps = torch.optim.AdamW(network.parameters(), lr=MLP_RATE, weight_decay=MLP_DECAY, fused=True)
    best, best_network, rounds = -1.0, network, 0
    passes = -(-STEPS_OF_ROUND * MLP_ROWS // len(x_MD))
    for number in range(1, ROUNDS + 1):
        order = torch.cat([torch.randperm(len(x_MD), generator=draw) for _ in range(passes)])
        for first in range(0, len(order), MLP_ROWS):
            rows = order[first : first + MLP_ROWS]
            steps.zero_grad()
            loss = functional.cross_entropy(network(x_MD[rows]), classes_M[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
        on_dev = float(MlpProbe(network, number).right(dev_MD, dev_M).double().mean())
        if on_dev > best:
            best, best_network, rounds = on_dev, copy.deepcopy(network), number
        elif number >= rounds + PATIENCE:
            break
    return MlpProbe(best_network, rounds)
