"""A probe with one hidden layer: what a non-linear readout finds in fixed features."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = 128
"""Units of the hidden layer."""
RATE = 2e-3
DECAY = 1e-2
ROWS = 128
"""Words of a step."""
STEPS_OF_ROUND = 100
"""A round is a pass over the training rows, or several passes where one has fewer steps."""
ROUNDS, PATIENCE = 30, 4
"""The most rounds, and after how many without a better accuracy on dev training ends."""


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
    steps = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    best, kept, rounds = -1.0, network, 0
    passes = -(-STEPS_OF_ROUND * ROWS // len(x_MD))
    for number in range(1, ROUNDS + 1):
        order = torch.cat([torch.randperm(len(x_MD), generator=draw) for _ in range(passes)])
        for first in range(0, len(order), ROWS):
            rows = order[first : first + ROWS]
            steps.zero_grad()
            loss = functional.cross_entropy(network(x_MD[rows]), classes_M[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
        on_dev = float(MlpProbe(network, number).right(dev_MD, dev_M).double().mean())
        if on_dev > best:
            best, kept, rounds = on_dev, copy.deepcopy(network), number
        elif number >= rounds + PATIENCE:
            break
    return MlpProbe(kept, rounds)
