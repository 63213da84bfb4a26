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
    ExpertFeedForward,
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


class AutocastLayerNorm(nn.LayerNorm):
    """A LayerNorm that computes as torch does or, with ``low_precision``, in the dtype of autocast.

    Torch computes norms in float32 under autocast: it converts the input on a GPU, and on a CPU the input is
    float32 already. MosaicBERT computed them in bfloat16 (Portes et al. 2023).
    """

    low_precision = False

    def forward(self, input: Tensor) -> Tensor:
        """Shape (..., width) in and out."""
        kind = input.device.type
        if not (self.low_precision and torch.is_autocast_enabled(kind)):
            return super().forward(input)
        dtype = torch.get_autocast_dtype(kind)
        bias = None if self.bias is None else self.bias.to(dtype)
        with torch.autocast(kind, enabled=False):
            return functional.layer_norm(
                input.to(dtype), self.normalized_shape, self.weight.to(dtype), bias, self.eps
            )


def lower_norms(module: nn.Module) -> int:
    """Let every LayerNorm in a module whose weights are trained compute in the dtype of autocast.

    Returns:
        Their number.
    """
    norms = [part for part in module.modules() if isinstance(part, AutocastLayerNorm)]
    trained = [norm for norm in norms if norm.weight.requires_grad]
    for norm in trained:
        norm.low_precision = True
    return len(trained)


def build_norm(norm: Norm | None, width: int) -> nn.Module:
    """The norm over the last axis of ``width``; `nn.Identity` for none."""
    match norm:
        case LayerNorm(eps=eps, bias=bias):
            return AutocastLayerNorm(width, eps=eps, bias=bias)
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


class Experts(nn.Module):
    """The matrices of all experts, one below the other, and the bias that they share."""

    def __init__(self, spec: ExpertFeedForward, width: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.empty(spec.experts * spec.width, width))
        self.outer = nn.Parameter(torch.empty(spec.experts * spec.width, width))
        self.bias = nn.Parameter(torch.zeros(width)) if spec.bias else None
        for matrix in (self.inner, self.outer):
            nn.init.normal_(matrix, std=width**-0.5)


class ExpertNetwork(nn.Module):
    """A mixture of experts, (T, D) to (T, D), see `ExpertFeedForward`.

    Tokens are sorted by expert, so that each expert computes one product with all tokens that chose it.
    """

    balance_loss: Tensor | None = None
    """Of the last forward pass in training; None without one."""

    def __init__(self, spec: ExpertFeedForward, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.router = nn.Linear(width, spec.experts, bias=False)
        self.experts = Experts(spec, width)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out; X tokens and experts that chose each other, in the order of experts."""
        spec = self.spec
        logits_TE: Tensor = self.router(x_TD)
        p_TE = logits_TE.softmax(-1, dtype=torch.promote_types(logits_TE.dtype, torch.float32))
        p_TC, expert_TC = p_TE.topk(spec.chosen, dim=-1)
        counts_E = torch.bincount(expert_TC.flatten(), minlength=spec.experts)
        if self.training and spec.balance:
            share_E = counts_E / counts_E.sum()
            self.balance_loss = spec.balance * spec.experts * (share_E * p_TE.mean(0)).sum()
        if spec.normalize:
            p_TC = p_TC / p_TC.sum(-1, keepdim=True)
        order_X = expert_TC.flatten().argsort(stable=True)
        x_XD = x_TD[order_X // spec.chosen]
        inner_EFD, outer_EFD = (
            matrix.view(spec.experts, spec.width, -1) for matrix in (self.experts.inner, self.experts.outer)
        )
        y_XD = torch.cat(
            [
                self.activation(part_XD @ inner_FD.T) @ outer_FD
                for part_XD, inner_FD, outer_FD in zip(
                    torch.split(x_XD, counts_E.tolist()), inner_EFD, outer_EFD, strict=True
                )
            ]
        )
        y_TCD = y_XD[order_X.argsort()].view(*p_TC.shape, -1)
        y_TD = (y_TCD * p_TC.to(y_TCD.dtype)[..., None]).sum(1)
        return y_TD if self.experts.bias is None else y_TD + self.experts.bias


def balance_loss(module: nn.Module) -> Tensor | None:
    """The sum of the losses that keep experts equally busy, of the last forward pass; None without any.

    The networks forget them, with the graph that they hold.
    """
    losses = []
    for network in module.modules():
        if isinstance(network, ExpertNetwork) and network.balance_loss is not None:
            losses.append(network.balance_loss)
            network.balance_loss = None
    return torch.stack(losses).sum() if losses else None


def build_feedforward(spec: FeedForward, width: int) -> nn.Module:
    """The network that ``spec`` describes."""
    match spec:
        case PlainFeedForward():
            return PlainNetwork(spec, width)
        case GatedFeedForward():
            return GatedNetwork(spec, width)
        case ExpertFeedForward():
            return ExpertNetwork(spec, width)
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
