"""Cross-entropy over the vocabulary, with only a few rows of logits in memory at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmask.kernels.products import linear, outer

LOGITS_AT_ONCE = 1 << 21
"""Elements that fit a core's share of the cache in float32. On a GPU the matrix products decide, see
`_rows`."""


def selected_cross_entropy(
    x_ME: Tensor, words_VE: Tensor, bias_V: Tensor | None, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum of ``-log softmax(x words^T + bias)[target]`` over tokens, in nats, and the number correct.

    Exact; the gradient is computed in the forward pass, a few rows of logits at a time, so that the (M, V)
    logits and their softmax are never held (the idea of Hsu et al. 2024, "Liger Kernel"). Logits are products
    in the type of ``x_ME`` (of autocast, where it is on), probabilities and sums in float32 or better.

    Args:
        x_ME: states that predict, shape (M, E).
        words_VE: a vector per word, shape (V, E).
        bias_V: a number per word, or None.
        targets_M: the correct word's id for each.

    Returns:
        Two scalars: the sum (differentiable once) and the number of targets with the largest logit.
    """
    kind = x_ME.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return _run(x_ME.to(dtype), words_VE, bias_V, targets_M)
    return _run(x_ME, words_VE, bias_V, targets_M)


def _run(x_ME: Tensor, words_VE: Tensor, bias_V: Tensor | None, targets_M: Tensor) -> tuple[Tensor, Tensor]:
    loss, right = _CrossEntropy.apply(x_ME, words_VE, bias_V, targets_M)  # type: ignore[no-untyped-call]
    return loss, right


def _rows(vocabulary: int, device: torch.device) -> int:
    return max(1, (LOGITS_AT_ONCE if device.type == "cpu" else 64 * LOGITS_AT_ONCE) // vocabulary)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ME: Tensor, words_VE: Tensor, bias_V: Tensor | None, targets_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(x_ME.dtype, torch.float32)
        matrix_VE = words_VE.detach().to(x_ME.dtype)
        bias = None if bias_V is None else bias_V.detach().to(exact)
        need_x, need_words, need_bias, _ = ctx.needs_input_grad
        dx_ME = torch.empty_like(x_ME) if need_x else None
        dwords_VE = torch.zeros_like(matrix_VE, dtype=exact) if need_words else None
        dbias_V = torch.zeros_like(bias_V, dtype=exact) if need_bias and bias_V is not None else None
        loss = torch.zeros((), dtype=exact, device=x_ME.device)
        right = torch.zeros((), dtype=torch.int64, device=x_ME.device)
        step = _rows(len(words_VE), x_ME.device)
        for first in range(0, len(x_ME), step):
            rows = slice(first, first + step)
            x_RE, target_R1 = x_ME[rows], targets_M[rows, None]
            logits_RV = linear(x_RE, matrix_VE).to(exact)
            if bias is not None:
                logits_RV += bias
            word_R1 = logits_RV.argmax(-1, keepdim=True)
            loss += (torch.logsumexp(logits_RV, -1, keepdim=True) - logits_RV.gather(1, target_R1)).sum()
            right += (word_R1 == target_R1).sum()
            if dx_ME is None and dwords_VE is None and dbias_V is None:
                continue
            p_RV = torch.softmax(logits_RV, -1)
            p_RV.scatter_add_(1, target_R1, torch.full_like(target_R1, -1, dtype=exact))
            if dbias_V is not None:
                dbias_V += p_RV.sum(0)
            g_RV = p_RV.to(x_ME.dtype)
            if dx_ME is not None:
                dx_ME[rows] = linear(g_RV, matrix_VE.t())
            if dwords_VE is not None:
                dwords_VE += outer(g_RV, x_RE)
        ctx.save_for_backward(
            dx_ME,
            None if dwords_VE is None else dwords_VE.to(words_VE.dtype),
            None if dbias_V is None or bias_V is None else dbias_V.to(bias_V.dtype),
        )
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        saved_tensors = ctx.saved_tensors
        return *(None if tensor is None else tensor * grad.to(tensor.dtype) for tensor in saved_tensors), None
