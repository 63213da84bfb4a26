"""Layers that train faster in float32 on a CPU: linear ones through oneDNN, embeddings in the same memory.

Torch uses MKL for float32 products on a CPU. On AMD processors oneDNN takes half the time, forward and
backward. Torch already uses oneDNN for products in bfloat16.

Torch makes a new gradient of an embedding in every step. Where it has more than 32 MiB, glibc takes its
memory from the system and gives it back each time, and each page of it is cleared and faulted in again.
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
        y_MN: Tensor = _product(x.flatten(0, -2), self.weight, self.bias)
        return y_MN.view(*x.shape[:-1], -1)


class TrainedEmbedding(nn.Embedding):
    """An `nn.Embedding` whose gradient is in the same memory in every step, which it holds between steps.

    The backward pass adds to ``weight.grad`` itself, with torch's own sums, so `torch.autograd.grad` has no
    gradient of the weight. In other dtypes than float32 and on other devices than a CPU it behaves like
    `nn.Embedding`.
    """

    held: Tensor | None = None
    """The last gradient."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape (...) ids in, (..., E) out."""
        weight = self.weight
        plain = type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.device.type == "cpu"
        if not plain or not weight.requires_grad or not torch.is_grad_enabled():
            return super().forward(input)
        rows: Tensor = _Rows.apply(weight, input, self)  # type: ignore[no-untyped-call]
        return rows

    def add_to_gradient(self, ids_T: Tensor, g_TE: Tensor) -> None:
        """Add rows to the gradient, which is zero before the first of a step."""
        gradient = self.weight.grad
        if gradient is None:
            held = self.held
            fits = held is not None and held.shape == self.weight.shape
            gradient = held.zero_() if held is not None and fits else torch.zeros_like(self.weight)
            self.weight.grad = gradient
        gradient.index_add_(0, ids_T, g_TE)
        self.held = gradient


class _Rows(torch.autograd.Function):
    """The rows of an embedding, whose backward pass is `TrainedEmbedding.add_to_gradient`."""

    @staticmethod
    def forward(ctx: Any, weight_VE: Tensor, ids: Tensor, layer: TrainedEmbedding) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.layer = layer
        return functional.embedding(ids, weight_VE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.layer.add_to_gradient(ids.flatten(), gradients[0].flatten(0, -2))
        return None, None, None


def train_with_onednn(module: nn.Module) -> int:
    """Turn every `nn.Linear` below ``module`` into a `TrainedLinear`, in place, and return how many.

    Every `nn.Embedding` becomes a `TrainedEmbedding`.

    Parameters, their names and their values stay the same. Layers of a subclass are left unchanged, and if
    this torch has no oneDNN, so are all layers.
    """
    if not onednn_takes(torch.float32):
        return 0
    linears = [layer for layer in module.modules() if type(layer) is nn.Linear]
    for layer in linears:
        layer.__class__ = TrainedLinear
    for part in module.modules():
        if type(part) is nn.Embedding and part.padding_idx is None and part.max_norm is None:
            part.__class__ = TrainedEmbedding
    return len(linears)


# A custom operator, so that compiled layers call it unchanged.
@torch.library.custom_op("unmask::product", mutates_args=())
def _product(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return linear(x_MK, w_NK, bias_N)


@torch.library.custom_op("unmask::outer_product", mutates_args=())
def _outer(g_MN: Tensor, x_MK: Tensor) -> Tensor:
    return outer(g_MN, x_MK)


@_product.register_fake
def _(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return x_MK.new_empty(len(x_MK), len(w_NK))


@_outer.register_fake
def _(g_MN: Tensor, x_MK: Tensor) -> Tensor:
    return g_MN.new_empty(g_MN.shape[1], x_MK.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, g_MN: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x_MK, w_NK = ctx.saved_tensors
    need_x, need_w, need_bias = ctx.needs_input_grad
    dx_MK = _product(g_MN, w_NK.t(), None) if need_x else None
    return dx_MK, _outer(g_MN, x_MK) if need_w else None, g_MN.sum(0) if need_bias else None


_product.register_autograd(_backward, setup_context=_keep)
