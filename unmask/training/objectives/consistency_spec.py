"""The settings of virtual adversarial training, as in a run file."""

import math
from dataclasses import dataclass

from unmask.errors import InvalidRequest


@dataclass(frozen=True)
class SiftSpec:
    """Scale-invariant fine-tuning (SiFT, He et al. 2021): virtual adversarial training on embeddings.

    Raises:
        InvalidRequest: a number is out of range.
    """

    weight: float
    """The factor of the divergence between predictions with and without the perturbation, ``vat_lambda`` in
    DeBERTa's code, whose scripts have 3 and 5."""
    learning_rate: float = 1e-4
    """How far the perturbation moves along its gradient, whose largest element in each token is 1."""
    initial_perturbation: float = 1e-2
    """The standard deviation of the random perturbation at first, which is limited to two of them."""

    def __post_init__(self) -> None:
        for name in ("weight", "learning_rate", "initial_perturbation"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InvalidRequest(f"{name} is {value:g}; it must be above 0 and finite")
