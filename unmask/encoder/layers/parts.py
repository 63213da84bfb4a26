"""Norms, activations and feed-forward networks, built from their specs."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from torch import Tensor, nn
from torch.nn import functional

from unmask.spec import (
    Activation,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Norm,
    PlainFeedForward,
    RMSNorm,
)

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": Tensor.tanh,
}


def build_norm(norm: Norm | None, width: int) -> nn.Module:
    """The norm over the last axis of ``width``; `nn.Identity` for none."""
    match norm:
        case LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case RMSNorm(eps=eps):
            return nn.RMSNorm(width, eps=eps)
        case None:
            return nn.Identity()
        case _:
            assert_never(norm)


class PlainNetwork(nn.Module):
    """``out(activation(in(x)))``, (T, D) to (T, D)."""

    def __init__(self, spec: PlainFeedForward, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.inner = nn.Linear(width, spec.width, bias=spec.bias)
        self.outer = nn.Linear(spec.width, width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.outer(self.activation(self.inner(x_TD)))
        return y_TD


class GatedNetwork(nn.Module):
    """``out(activation(a) * b)`` with ``a | b = in(x)``, (T, D) to (T, D)."""

    def __init__(self, spec: GatedFeedForward, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.inner = nn.Linear(width, 2 * spec.width, bias=spec.in_bias)
        self.outer = nn.Linear(spec.width, width, bias=spec.out_bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        a_TF, b_TF = self.inner(x_TD).chunk(2, dim=-1)
        y_TD: Tensor = self.outer(self.activation(a_TF) * b_TF)
        return y_TD


def build_feedforward(spec: FeedForward, width: int) -> nn.Module:
    """The network that ``spec`` describes."""
    match spec:
        case PlainFeedForward():
            return PlainNetwork(spec, width)
        case GatedFeedForward():
            return GatedNetwork(spec, width)
        case _:
            assert_never(spec)
