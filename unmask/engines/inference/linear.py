"""Linear layers in oneDNN's packed layout, in their own precision or 8-bit integers; networks of them."""

from functools import cache

import torch
from torch import Tensor, nn

from unmask.kernels.products import onednn_takes
from unmask.spec.parts import Activation

OPERATIONS: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}
"""oneDNN's operation for an activation, and its algorithm."""


def unsupported_reason(dtype: str, device: str | None = None) -> str | None:
    """Why an encoder of this dtype cannot be optimized here, as the end of "... because"; None if it can."""
    if device is not None and not device.startswith("cpu"):
        return f"the fast path runs on cpu, not on {device}"
    if dtype not in ("float32", "bfloat16", "int8"):
        return f"the fast path computes in float32, bfloat16 or int8, not in {dtype}"
    if not onednn_takes(torch.float32) or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        return "this torch was built without oneDNN"
    if dtype == "bfloat16" and not onednn_takes(torch.bfloat16):
        return "this processor has no instructions for bfloat16"
    return None


SMALLEST_SCALE = 1e-30
"""Lower bound of a scale, so that a token of zeros does not divide by 0."""


@cache
def largest_weight() -> int:
    """What the largest weight of a row becomes as an 8-bit integer: 127, or 63 where sums saturate.

    Processors without VNNI add two products in 16 bits. Those of inputs of up to 255 and weights of up to
    63 fit, so that sums are exact.
    """
    ones = torch.ones(16, 64)
    packed = torch.ops.onednn.qlinear_prepack((ones * 127).to(torch.int8), None)
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        (ones * 255).to(torch.uint8), 1.0, 128, packed, ones[:, 0], torch.zeros(16, dtype=torch.int64),
        None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return 127 if bool((product == 127 * 127 * 64).all()) else 63


class PackedLinear(nn.Module):
    """``x W^T + b`` like `nn.Linear`, with the activation; the plain weight is not kept.

    Results differ only in the order of summation.
    """

    weight_packed: Tensor
    bias: Tensor | None

    def __init__(
        self, weight_NK: Tensor, bias_N: Tensor | None, activation: Activation | None = None
    ) -> None:
        super().__init__()
        # Opaque to everything except oneDNN, so neither a parameter nor part of the state.
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK.detach().contiguous(), None)
        self.register_buffer("weight_packed", packed, persistent=False)
        self.bias = None if bias_N is None else bias_N.detach()
        self.operation, self.algorithm = OPERATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., K) in, (..., N) out, in the type of the weight."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight_packed, self.bias, self.operation, [], self.algorithm
        )
        return y


class QuantizedLinear(nn.Module):
    """A linear layer on 8-bit integers: one scale per weight row, and one per token, computed dynamically.

    Both are symmetric: the largest absolute value of a row of W becomes `largest_weight`, and of a token
    about 127. Products and sums are exact in integers. Scales and the result have the type of the input.
    """

    weight_packed: Tensor
    bias: Tensor | None

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        weight_NK = weight_NK.detach().float()
        scale_N = weight_NK.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / largest_weight()
        whole_NK = (weight_NK / scale_N[:, None]).round().to(torch.int8)
        packed: Tensor = torch.ops.onednn.qlinear_prepack(whole_NK, None)
        self.register_buffer("weight_packed", packed, persistent=False)
        # Not buffers: conversions of the model would round them.
        self.scale_N, self.zero_N = scale_N, torch.zeros(len(scale_N), dtype=torch.int64)
        self.bias = None if bias_N is None else bias_N.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., K) in, (..., N) out, in the type of ``x``."""
        rows_TK = x.flatten(0, -2)
        largest_T1 = rows_TK.abs().amax(dim=-1, keepdim=True)
        # A scale may be rounded to a type with 8 significant bits, and still nothing may exceed 127.
        scale_T1 = (largest_T1.float() / 126.5).clamp_min_(SMALLEST_SCALE).to(x.dtype)
        # oneDNN is slow on signed inputs, so 128 is added, which oneDNN subtracts again; 0.5 rounds.
        whole_TK = torch.div(rows_TK, scale_T1.float()).add_(128.5).to(torch.uint8)
        y_TN: Tensor = torch.ops.onednn.qlinear_pointwise(
            whole_TK, 1.0, 128, self.weight_packed, self.scale_N, self.zero_N,
            None, 1.0, 0, x.dtype, "none", [], "",
        )  # fmt: skip
        y_TN = y_TN.mul_(scale_T1) if self.bias is None else torch.addcmul(self.bias, y_TN, scale_T1)
        return y_TN.view(*x.shape[:-1], -1)


class FusedNetwork(nn.Module):
    """`PlainNetwork` as ``outer(inner(x))``, with the activation fused into ``inner``."""

    def __init__(self, inner: nn.Module, outer: nn.Module) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.outer(self.inner(x_TD))
        return y_TD


class FusedGatedNetwork(nn.Module):
    """`GatedNetwork` with the two halves of its first matrix separated, so that no result is sliced."""

    def __init__(self, inner: nn.Linear, activation: Activation, outer: nn.Module) -> None:
        super().__init__()
        weights = inner.weight.chunk(2)
        biases = (None, None) if inner.bias is None else inner.bias.chunk(2)
        self.activated = PackedLinear(weights[0], biases[0], activation)
        self.linear = PackedLinear(weights[1], biases[1])
        self.outer = outer

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.outer(self.activated(x_TD).mul_(self.linear(x_TD)))
        return y_TD
