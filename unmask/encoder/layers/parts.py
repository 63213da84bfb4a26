"""Norms, activations, feed-forward networks and the convolution, built from their specs."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.kernels.dropout import Dropout
from unmask.spec import (
    Activation,
    Convolution,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Norm,
    PlainFeedForward,
    RMSNorm,
)
from unmask.text.batch import SequenceLayout

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": Tensor.tanh,
}


class OnePlusRMSNorm(nn.Module):
    """An RMSNorm whose scale is 1 plus its weight, see `RMSNorm`."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., width) in and out."""
        return functional.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)


def build_norm(norm: Norm | None, width: int) -> nn.Module:
    """The norm over the last axis of ``width``; `nn.Identity` for none."""
    match norm:
        case LayerNorm(eps=eps, bias=bias):
            return nn.LayerNorm(width, eps=eps, bias=bias)
        case RMSNorm(eps=eps, one_plus=one_plus):
            return OnePlusRMSNorm(width, eps) if one_plus else nn.RMSNorm(width, eps=eps)
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


class ConvolutionLayer(nn.Module):
    """``norm(layer 0 + activation(conv(embedding)))``, see `Convolution` (He, Gao & Chen 2023)."""

    def __init__(self, spec: Convolution, width: int) -> None:
        super().__init__()
        self.radius = spec.kernel // 2
        self.inner = nn.Conv1d(width, width, spec.kernel, groups=spec.groups)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)
        self.norm = build_norm(spec.norm, width)

    def forward(self, embedded_TD: Tensor, x_TD: Tensor, layout: SequenceLayout) -> Tensor:
        """All shapes are (T, D); ``x_TD`` is layer 0's output."""
        device = x_TD.device
        # Zeros between sequences, as many as half a kernel, keep the sequences independent.
        sequence_T = torch.repeat_interleave(
            torch.arange(layout.sequence_count, device=device), torch.from_numpy(layout.lengths).to(device)
        )
        places_T = torch.arange(len(x_TD), device=device) + self.radius * sequence_T
        apart_XD = x_TD.new_zeros(len(x_TD) + self.radius * (layout.sequence_count + 1), x_TD.shape[1])
        apart_XD = apart_XD.index_copy(0, places_T + self.radius, embedded_TD)
        mixed_TD = self.inner(apart_XD.T[None])[0].T[places_T]
        y_TD: Tensor = self.norm(x_TD + self.activation(self.dropout(mixed_TD)))
        return y_TD
