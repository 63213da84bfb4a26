"""From hidden states to one vector a text: pooling and unit length, as published with a checkpoint."""

from dataclasses import dataclass
from typing import Literal

PoolingMode = Literal["mean", "first", "max", "mean_sqrt"]
"""Over a sequence's tokens: their mean, the first one, the largest of each feature, or the sum divided
by the square root of their number."""


@dataclass(frozen=True)
class EmbeddingHead:
    """How a checkpoint turns the last hidden states into its sentence embedding."""

    pooling: tuple[PoolingMode, ...] = ("mean",)
    """More than one: their vectors side by side, in the order mean, first, max and so on as given."""
    unit_length: bool = False
    """Divide each embedding by its Euclidean length."""
