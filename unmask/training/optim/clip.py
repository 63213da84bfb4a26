"""Gradient clipping by the norm of all gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unmask.training.optim.dtensor import full_tensors


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> Tensor:
    """Scale all gradients by one factor, so that their Euclidean norm is at most ``limit``.

    Args:
        parameters: those without a gradient are skipped.
        limit: None only measures the norm.

    Returns:
        The norm before clipping: a scalar on the gradients' device, float64 for float64 gradients and
        otherwise float32; 0 without gradients. If it is infinite or NaN, gradients are not changed, and the
        caller decides whether to take the step.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    # A sum of squares in 16 bits would lose most of its digits.
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    norms = torch._foreach_norm(gradients, 2, dtype=wide)
    total: Tensor = torch.linalg.vector_norm(torch.stack([full_tensors(norm) for norm in norms]))
    if limit is not None:
        shorter = (limit / total).clamp(max=1.0)
        # Decided on the device, which avoids a synchronization.
        torch._foreach_mul_(gradients, torch.where(torch.isfinite(total), shorter, 1.0))
    return total
