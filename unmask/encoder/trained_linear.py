"""Linear layers that train in float32 through oneDNN, which is twice as fast as torch's own on some CPUs.

Torch uses MKL for float32 products on a CPU. On AMD processors oneDNN takes half the time, forward and
backward. Torch already uses oneDNN for products in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.kernels.products import linear, onednn_takes, outer


class TrainedLinear(nn.Linear):
    """An `nn.Linear` whose three products of a training step run through oneDNN where supported.

    Results differ only in the order of summation. Under autocast, in other dtypes and on other devices it
    behaves like `nn.Linear`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., K) in, (..., N) out."""
        exact = x.dtype == self.weight.dtype == torch.float32
        if not exact or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return functional.linear(x, self.weight, self.bias)
        y_MN: Tensor = _product(x.flatten(0, -2), self.weight)
        y_MN = y_MN if self.bias is None else y_MN + self.bias
        return y_MN.view(*x.shape[:-1], -1)


def train_with_onednn(module: nn.Module) -> int:
    """Turn every `nn.Linear` below ``module`` into a `TrainedLinear`, in place, and return how many.

    Parameters, their names and their values stay the same. Layers of a subclass are left unchanged, and if
    this torch has no oneDNN, so are all layers.
    """
    if not onednn_takes(torch.float32):
        return 0
    linears = [layer for layer in module.modules() if type(layer) is nn.Linear]
    for layer in linears:
        layer.__class__ = TrainedLinear
    return len(linears)


# A custom operator, so that compiled layers call it unchanged.
@torch.library.custom_op("unmask::product", mutates_args=())
def _product(x_MK: Tensor, w_NK: Tensor) -> Tensor:
    return linear(x_MK, w_NK)


@torch.library.custom_op("unmask::outer_product", mutates_args=())
def _outer(g_MN: Tensor, x_MK: Tensor) -> Tensor:
    return outer(g_MN, x_MK)


@_product.register_fake
def _(x_MK: Tensor, w_NK: Tensor) -> Tensor:
    return x_MK.new_empty(len(x_MK), len(w_NK))


@_outer.register_fake
def _(g_MN: Tensor, x_MK: Tensor) -> Tensor:
    return g_MN.new_empty(g_MN.shape[1], x_MK.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g_MN: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x_MK, w_NK = ctx.saved_tensors
    need_x, need_w = ctx.needs_input_grad
    dx_MK = _product(g_MN, w_NK.t()) if need_x else None
    return dx_MK, _outer(g_MN, x_MK) if need_w else None


_product.register_autograd(_backward, setup_context=_keep)
