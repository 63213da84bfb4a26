"""A `transformers` model as a plain function of tensors, for libraries that convert one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class StatesOnly(torch.nn.Module):
    """Inputs by place instead of by name, and the last hidden states alone.

    Args:
        model: of `transformers`.
        names: its inputs, in the order in which they are given.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Shape (B, N) each, to (B, N, D)."""
        states: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return states


def example(tokenizer: Any, names: Sequence[str]) -> tuple[Tensor, ...]:
    """Inputs of two texts of different length, from which a conversion learns which axes vary."""
    made = tokenizer(["one text", "another text of more words than that"], padding=True, return_tensors="pt")
    return tuple(made[name] for name in names)
