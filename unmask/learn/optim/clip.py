"""The norm of all gradients, and clipping it."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unmask.learn.optim.dtensor import full_tensors


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> Tensor:
    """Scale all gradients by one factor, so that their Euclidean norm is at most ``limit``.

    Args:
        parameters: those without a gradient are skipped.
        limit: None only measures the norm.

    Returns:
        The norm before: a scalar on the gradients' device, float32 or, as they are, float64; 0 without any.
        Where it is infinite or not-a-number, gradients are left as they are and the caller must decide what
        becomes of the step.
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
        # Decided on the device, so that nothing waits for it.
        torch._foreach_mul_(gradients, torch.where(torch.isfinite(total), shorter, 1.0))
    return total
