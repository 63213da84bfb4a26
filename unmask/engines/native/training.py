"""Attention and the ends of residuals of training steps in the native library.

Attention is one call for a batch, which keeps nothing per score: the backward pass computes probabilities
again. A residual sum with dropout and norm is one pass over its rows. What is dropped follows from a hash of
places and of a seed that torch's generator draws, so no masks are kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.parts import AutocastLayerNorm
from unmask.engines.native.interface import AddNorm, Attention
from unmask.engines.native.library import call, library_reason
from unmask.engines.native.threads import thread_count
from unmask.errors import KernelError
from unmask.kernels.dropout import WORDS, kept_share
from unmask.kernels.interface import AttentionCall, AttentionOutput, AttentionRequest, Capability, Kernel
from unmask.kernels.tile import AttentionBias
from unmask.spec import AttentionPattern, CausalAttention, FullAttention, NoPosition, SlidingWindow
from unmask.text.batch import SequenceLayout

NAMES = ("queries", "keys", "values", "mixed", "softmax")
GRADIENTS = ("gradient", "d_queries", "d_keys", "d_values")
"""Tensors of `Attention`."""

LONGEST_IN_BINS = 256

SHARE = 64
"""Rows whose gradients of a norm are summed together."""


class _Capability(Capability):
    """Preferred wherever it is faster, by measurement."""

    def is_preferred(self, request: AttentionRequest) -> bool:
        """In bfloat16 and without dropout, short texts are faster in bins."""
        return request.dropout or request.dtype != "bfloat16" or request.longest > LONGEST_IN_BINS


class NativeTrainingKernel(Kernel):
    """One call of the native library for all sequences and heads, computed in float32."""

    capability: Capability = _Capability(
        name="native-training",
        computes="the native library, one head of one text at a time, probabilities computed again backward",
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float32", "bfloat16"}),
        patterns=frozenset({FullAttention, CausalAttention, SlidingWindow}),
        positions=frozenset({NoPosition}),
        gradients=True,
        dropout=True,
        log_sum_exp=False,
        head_widths=frozenset(range(16, 513, 16)),
        dilation=False,
    )

    def plan(
        self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device
    ) -> NDArray[np.int64]:
        """The offsets of the sequences."""
        return np.ascontiguousarray(layout.offsets, dtype=np.int64)

    def compute(self, call: AttentionCall, plan: NDArray[np.int64]) -> AttentionOutput:
        """All heads of all sequences."""
        q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp = call
        if log_sum_exp or type(pattern) not in self.capability.patterns or bias != AttentionBias():
            raise KernelError("the native kernel was called for something its record does not list")
        if isinstance(pattern, SlidingWindow):
            radius = pattern.radius
        else:
            radius = -2 if isinstance(pattern, CausalAttention) else -1
        work = _Work(plan, radius, _seed(dropout), _kept(dropout))
        exact = (x_THK.float() for x_THK in (q_THK, k_THK, v_THK))
        o_THK: Tensor = _Attention.apply(*exact, work)  # type: ignore[no-untyped-call]
        return AttentionOutput(o_THK.to(q_THK.dtype), None)


@dataclass(frozen=True, eq=False)
class _Work:
    """Inputs of a pass other than queries, keys and values."""

    offsets: NDArray[np.int64]
    radius: int
    seed: int
    """Draws what is dropped."""
    kept: int
    """How many of 65,536 probabilities are not dropped."""


class _Attention(torch.autograd.Function):
    """Attention by the library."""

    @staticmethod
    def forward(ctx: Any, q_THK: Tensor, k_THK: Tensor, v_THK: Tensor, work: _Work) -> Tensor:
        parts = [q_THK, k_THK, v_THK]
        if len({x_THK.stride() for x_THK in parts}) > 1 or not q_THK[0].is_contiguous():
            parts = [x_THK.contiguous() for x_THK in parts]
        parts += [torch.empty(q_THK.shape), torch.empty(*q_THK.shape[:2], 2)]
        _call(work, dict(zip(NAMES, parts, strict=True)))
        ctx.work = work
        ctx.save_for_backward(*parts)
        return parts[3]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do_THK: Tensor) -> tuple[Tensor | None, ...]:
        tokens, heads, width = do_THK.shape
        gradients = torch.empty(tokens, 3, heads, width).unbind(1)
        tensors = dict(zip(NAMES, ctx.saved_tensors, strict=True))
        tensors |= dict(zip(GRADIENTS, (do_THK.contiguous(), *gradients), strict=True))
        _call(ctx.work, tensors)
        return *gradients, None


def _call(work: _Work, tensors: dict[str, Tensor]) -> None:
    _, heads, width = tensors["queries"].shape
    what = Attention(
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        offsets=work.offsets.ctypes.data,
        sequences=len(work.offsets) - 1,
        stride=tensors["queries"].stride(0),
        gradient_stride=3 * heads * width,
        heads=heads,
        width=width,
        threads=thread_count(),
        seed=work.seed,
        radius=work.radius,
        kept=work.kept,
    )
    call("native_attention", what)


def normalized_sum(x_TD: Tensor, added_TD: Tensor, norm: nn.Module, dropout: float) -> Tensor | None:
    """``norm(x + dropout(added))`` in one pass forward and one backward; None where the library cannot."""
    takes = (
        not torch.compiler.is_compiling()
        and isinstance(norm, nn.LayerNorm)
        and not (isinstance(norm, AutocastLayerNorm) and norm.low_precision)
        and norm.bias is not None
        and {x_TD.dtype, norm.weight.dtype, norm.bias.dtype} == {torch.float32}
        and added_TD.dtype in (torch.float32, torch.bfloat16)
        and x_TD.device.type == "cpu"
        and x_TD.shape[-1] % 16 == 0
        and torch.is_grad_enabled()
    )
    if not takes:
        return None
    assert isinstance(norm, nn.LayerNorm)
    how = {"seed": _seed(dropout), "kept": _kept(dropout), "eps": norm.eps}
    y_TD: Tensor = _AddNorm.apply(how, x_TD, added_TD, norm.weight, norm.bias)  # type: ignore[no-untyped-call]
    return y_TD


class _AddNorm(torch.autograd.Function):
    """``norm(x + dropout(h))`` by the library."""

    @staticmethod
    def forward(ctx: Any, how: dict[str, Any], *terms: Tensor) -> Tensor:
        x_TD, h_TD, weight_D, bias_D = (term.contiguous() for term in terms)
        sums_TD, results_TD = torch.empty_like(x_TD), torch.empty_like(x_TD)
        moments_T2 = torch.empty(len(x_TD), 2)
        parts = {"x": x_TD, "h": h_TD, "weight": weight_D, "bias": bias_D}
        parts |= {"sums": sums_TD, "results": results_TD, "moments": moments_T2}
        _add_norm(parts, how)
        ctx.save_for_backward(sums_TD, moments_T2, weight_D)
        ctx.how, ctx.dtype = how, h_TD.dtype
        return results_TD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Tensor | None, ...]:
        sums_TD, moments_T2, weight_D = ctx.saved_tensors
        dx_TD, dh_TD = torch.empty_like(sums_TD), torch.empty_like(sums_TD, dtype=ctx.dtype)
        d_norm_S2D = torch.empty(-(-len(sums_TD) // SHARE), 2, sums_TD.shape[1])
        parts = {"sums": sums_TD, "moments": moments_T2, "weight": weight_D, "gradient": dy_TD.contiguous()}
        parts |= {"d_x": dx_TD, "d_h": dh_TD, "d_norm": d_norm_S2D}
        _add_norm(parts, ctx.how)
        dweight_D, dbias_D = d_norm_S2D.sum(0)
        return None, dx_TD, dh_TD, dweight_D, dbias_D


def _add_norm(parts: dict[str, Tensor], how: dict[str, Any]) -> None:
    rows, width = parts["sums"].shape
    halves = parts["h" if "h" in parts else "d_h"].dtype == torch.bfloat16
    sizes = {"rows": rows, "width": width, "halves": halves, "threads": thread_count(), "share": SHARE}
    pointers = {name: tensor.data_ptr() for name, tensor in parts.items()}
    call("native_add_norm", AddNorm(**pointers, **sizes, **how))


def _seed(dropout: float) -> int:
    """Of what is dropped; from torch's generator, so that a resumed run drops the same."""
    return int(torch.randint(-(1 << 63), (1 << 63) - 1, ())) if dropout else 0


def _kept(dropout: float) -> int:
    """How many of 65,536 numbers are not dropped."""
    return round(kept_share(dropout) * WORDS)


def train_natively(module: nn.Module) -> int:
    """Let layers below ``module`` use the native library in training steps that it can compute.

    Returns the number of attention layers, or 0 without the library.
    """
    if library_reason("float32") is not None:
        return 0
    for block in module.modules():
        if isinstance(block, Block):
            block.fused_add_norm = normalized_sum
    mixers = [layer for layer in module.modules() if isinstance(layer, SoftmaxMixer)]
    for mixer in mixers:
        mixer.training_kernel = NativeTrainingKernel()
    return len(mixers)
