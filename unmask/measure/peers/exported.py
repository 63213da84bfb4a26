"""A `transformers` model as a plain function of tensors, for libraries that convert models."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class StatesOnly(torch.nn.Module):
    """A model that takes positional inputs and returns only the last hidden states.

    Args:
        model: a model of `transformers`.
        names: names of its inputs, in positional order.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map inputs of shape (B, N) to states of shape (B, N, D)."""
        states: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return states


def example(tokenizer: Any, names: Sequence[str]) -> tuple[Tensor, ...]:
    """Inputs of two texts of different length, which show a converter the axes that vary."""
    made = tokenizer(["one text", "another text of more words than that"], padding=True, return_tensors="pt")
    return tuple(made[name] for name in names)
