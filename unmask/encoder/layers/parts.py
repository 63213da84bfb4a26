"""Norms, activations, feed-forward networks and the convolution, built from their specs.

Axes: W tokens of a kernel; I features of the first product of an expert, twice F with a gate.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.kernels.dropout import Dropout
from unmask.spec import (
    Activation,
    ClampedGate,
    Convolution,
    ExpertFeedForward,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    NoNorm,
    Norm,
    PlainFeedForward,
    RMSNorm,
    SoftmaxAttention,
    StackedFeedForward,
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


class ScaleAndShift(nn.Module):
    """``weight * x + bias``, see `NoNorm`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., width) in and out."""
        return torch.addcmul(self.bias, x, self.weight)


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
        case NoNorm():
            return ScaleAndShift(width)
        case None:
            return nn.Identity()
        case _:
            assert_never(norm)


def _parted(x: Tensor, parts: int) -> Tensor:
    """The last axis as so many parts of equal size, (..., parts, size)."""
    return x.view(*x.shape[:-1], parts, -1)


class GroupedLinear(nn.Module):
    """A linear map in ``groups`` parts of equal size, each of which reads its own part of the inputs."""

    def __init__(self, inputs: int, outputs: int, groups: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, inputs // groups, outputs // groups))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.normal_(self.weight, std=(inputs // groups) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., inputs) to (..., outputs)."""
        groups = self.weight.shape[0]
        y: Tensor = torch.einsum("...gi,gio->...go", _parted(x, groups), self.weight).flatten(-2)
        return y if self.bias is None else y + self.bias


def _linear(inputs: int, outputs: int, spec: PlainFeedForward) -> nn.Linear | GroupedLinear:
    if spec.groups > 1:
        return GroupedLinear(inputs, outputs, spec.groups, spec.bias)
    return nn.Linear(inputs, outputs, bias=spec.bias)


class PlainNetwork(nn.Module):
    """``out(activation(in(x)))``, (T, D) to (T, D)."""

    def __init__(self, spec: PlainFeedForward, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.inner = _linear(width, spec.width, spec)
        self.outer = _linear(spec.width, width, spec)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.outer(self.activation(self.inner(x_TD)))
        return y_TD


class EarlierNetwork(PlainNetwork):
    """A network that another follows, with its residual and norm, (T, D) to (T, D)."""

    def __init__(self, spec: PlainFeedForward, norm: Norm, width: int) -> None:
        super().__init__(spec, width)
        self.norm = build_norm(norm, width)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.norm(x_TD + super().forward(x_TD))
        return y_TD


class StackedNetwork(nn.Module):
    """Several networks, (T, D) to (T, D), see `StackedFeedForward`."""

    def __init__(self, spec: StackedFeedForward, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.earlier = nn.Sequential(
            *(EarlierNetwork(spec.network, spec.norm, width) for _ in range(spec.count - 1))
        )
        last = spec.network
        self.inner, self.outer = _linear(width, last.width, last), _linear(last.width, width, last)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        s_TD: Tensor = self.earlier(x_TD)
        y_TD: Tensor = self.outer(self.activation(self.inner(s_TD)))
        return y_TD + (s_TD - x_TD)


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
    """The matrices of all experts, one below the other, their biases, and the bias that they share."""

    inner_bias: Tensor | None
    outer_bias: Tensor | None

    def __init__(self, spec: ExpertFeedForward, width: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.empty(spec.experts * spec.inner_width, width))
        self.outer = nn.Parameter(torch.empty(spec.experts * spec.width, width))
        for name, features in (("inner_bias", spec.inner_width), ("outer_bias", width)):
            bias = nn.Parameter(torch.zeros(spec.experts * features)) if spec.expert_biases else None
            self.register_parameter(name, bias)
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
        self.router = nn.Linear(width, spec.experts, bias=spec.router_bias)
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
        inner_EID, outer_EFD = (
            matrix.view(spec.experts, -1, matrix.shape[1])
            for matrix in (self.experts.inner, self.experts.outer)
        )
        biases = map(self._biases, (self.experts.inner_bias, self.experts.outer_bias))
        parts = torch.split(x_XD, counts_E.tolist())
        y_XD = torch.cat(list(map(self._expert, parts, inner_EID, outer_EFD, *biases)))
        y_TCD = y_XD[order_X.argsort()].view(*p_TC.shape, -1)
        y_TD = (y_TCD * p_TC.to(y_TCD.dtype)[..., None]).sum(1)
        return y_TD if self.experts.bias is None else y_TD + self.experts.bias

    def _biases(self, bias: Tensor | None) -> Iterable[Tensor | None]:
        """The bias of each expert, from those of all."""
        return [None] * self.spec.experts if bias is None else bias.view(self.spec.experts, -1)

    def _expert(
        self,
        x_XD: Tensor,
        inner_ID: Tensor,
        outer_FD: Tensor,
        inner_bias_I: Tensor | None,
        outer_bias_D: Tensor | None,
    ) -> Tensor:
        """One expert on the tokens that chose it; I features, F of them after the gate."""
        h_XI = functional.linear(x_XD, inner_ID, inner_bias_I)
        h_XF = self.activation(h_XI) if self.spec.gate is None else self._gated(h_XI, self.spec.gate)
        y_XD = h_XF @ outer_FD
        return y_XD if outer_bias_D is None else y_XD + outer_bias_D

    def _gated(self, h_XI: Tensor, gate: ClampedGate) -> Tensor:
        """See `ClampedGate`."""
        a_XF, b_XF = h_XI.chunk(2, dim=-1)
        a_XF, b_XF = a_XF.clamp(max=gate.limit), b_XF.clamp(-gate.limit, gate.limit)
        return (b_XF + 1) * self.activation(gate.slope * a_XF) / gate.slope


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
        case StackedFeedForward():
            return StackedNetwork(spec, width)
        case _:
            assert_never(spec)


@dataclass(frozen=True)
class SetApart:
    """Where packed tokens stand if zeros, as many as half a kernel, are put before, between and after the
    sequences, so that a convolution keeps them independent. Axes: X places, of tokens and of zeros.
    """

    places_T: Tensor
    """The first place that the kernel of each token reads; the last is ``2 * radius`` places after it."""
    radius: int
    length: int
    """X."""

    @property
    def span(self) -> int:
        """The number of places that the kernel of a token reads."""
        return 2 * self.radius + 1

    @classmethod
    def of(cls, layout: SequenceLayout, radius: int, device: torch.device) -> "SetApart":
        """The places of a batch."""
        places_T = np.arange(layout.token_count) + radius * layout.sequence_of_T
        length = layout.token_count + radius * (layout.sequence_count + 1)
        return cls(torch.from_numpy(places_T).to(device), radius, length)

    def spread(self, x_TD: Tensor) -> Tensor:
        """Packed rows at their places, and zeros at the others, (X, D)."""
        return x_TD.new_zeros(self.length, x_TD.shape[1]).index_copy(0, self.places_T + self.radius, x_TD)


class SpanConvolutions(nn.Module):
    """The convolutions beside the heads of attention, see `SpanConvolution`.

    Their features together are ``heads`` times ``head_width``.
    """

    def __init__(self, spec: SoftmaxAttention, kernel: int, width: int) -> None:
        super().__init__()
        self.heads, self.kernel, inner = spec.heads, kernel, spec.heads * spec.head_width
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        self.pointwise = nn.Conv1d(width, inner, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(inner, 1))
        self.weights = nn.Linear(inner, spec.heads * kernel)
        self.values = nn.Linear(width, inner)

    def forward(self, x_TD: Tensor, q_THK: Tensor, apart: SetApart) -> Tensor:
        """What the layer reads and the queries of its attention to mixed values, (T, H, K)."""
        surroundings_TD = self.depthwise(apart.spread(x_TD).T[None])[0].T[apart.places_T]
        p_THW = self.weights_of(surroundings_TD, q_THK)
        v_XHK = _parted(apart.spread(self.values(x_TD)), self.heads)
        parts = (p_THW[..., at, None] * v_XHK[apart.places_T + at] for at in range(self.kernel))
        return sum(parts, torch.zeros_like(q_THK, dtype=v_XHK.dtype))

    def weights_of(self, surroundings: Tensor, q: Tensor) -> Tensor:
        """The weights of the kernel of each token and head, (..., H, W), from depthwise convolutions (..., D)
        and queries (..., H, K).
        """
        keys = functional.linear(surroundings, self.pointwise.weight[..., 0], self.bias[:, 0])
        return _parted(self.weights(keys * q.flatten(-2)), self.heads).softmax(-1)

    def padded(self, x_BND: Tensor, q_BNHK: Tensor, present_BN: Tensor) -> Tensor:
        """`forward` over padded texts, (B, N, H, K); padding counts as zeros."""
        radius, length, present_BN1 = self.kernel // 2, x_BND.shape[1], present_BN[..., None]

        def spread(x_BNF: Tensor) -> Tensor:
            return functional.pad(x_BNF * present_BN1, (0, 0, radius, radius))

        p_BNHW = self.weights_of(self.depthwise(spread(x_BND).mT).mT, q_BNHK)
        v_BXHK = _parted(spread(self.values(x_BND)), self.heads)
        parts = (p_BNHW[..., at, None] * v_BXHK[:, at : at + length] for at in range(self.kernel))
        return sum(parts, torch.zeros_like(q_BNHK))


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
        apart = SetApart.of(layout, self.radius, x_TD.device)
        mixed_TD = self.inner(apart.spread(embedded_TD).T[None])[0].T[apart.places_T]
        y_TD: Tensor = self.norm(x_TD + self.activation(self.dropout(mixed_TD)))
        return y_TD
