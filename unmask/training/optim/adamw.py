"""AdamW and StableAdamW as in-place functions on lists of tensors."""

import torch
from torch import Tensor

from unmask.training.optim.dtensor import full_tensors, local_tensors


def adamw(
    values: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    *,
    step: int,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019), in one fused kernel.

    ``m = b1 m + (1 - b1) g``, ``v = b2 v + (1 - b2) g^2``, then with ``M = m / (1 - b1^step)`` and
    ``V = v / (1 - b2^step)``: ``p = (1 - decay) p - rate M / (sqrt(V) + eps)``.

    Args:
        values: p, all on one device and of one dtype, like the next three.
        gradients: g, with the memory layout of their values.
        firsts: m.
        seconds: v.
        step: the number of this step, from 1.
        rate: the learning rate of this step.
        betas: b1 and b2.
        eps: see above.
        decay: the fraction of p that is subtracted.
    """
    # Filled on the device rather than copied to it, which would synchronize.
    count = torch.full((), float(step), dtype=torch.float32, device=values[0].device)
    torch._fused_adamw_(
        local_tensors(values),
        local_tensors(gradients),
        local_tensors(firsts),
        local_tensors(seconds),
        [],
        [count] * len(values),
        lr=rate,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=decay / rate if rate > 0 else 0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def stable_adamw(
    values: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    *,
    step: int,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One step of StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW with Adafactor's update clipping.

    With ``r = max(1, sqrt(mean(g^2 / max(V, eps^2))))`` for each tensor separately, the rate and decay of
    that tensor are divided by r: if gradients are suddenly larger than V suggests, the step is shorter. The
    arguments are those of `adamw`, without the requirement on memory layout. The paper's moments with
    changing betas equal M and V.
    """
    if values[0].device.type == "cpu" and len(values) > 1:
        # One tensor at a time, so that it stays in the processor's cache between operations.
        for value, gradient, first, second in zip(values, gradients, firsts, seconds, strict=True):
            stable_adamw(
                [value],
                [gradient],
                [first],
                [second],
                step=step,
                rate=rate,
                betas=betas,
                eps=eps,
                decay=decay,
            )
        return
    b1, b2 = betas
    torch._foreach_lerp_(firsts, gradients, 1 - b1)
    torch._foreach_mul_(seconds, b2)
    torch._foreach_addcmul_(seconds, gradients, gradients, 1 - b2)
    roots = torch._foreach_sqrt(seconds)
    torch._foreach_mul_(roots, (1 - b2**step) ** -0.5)
    ratios = torch._foreach_div(gradients, torch._foreach_clamp_min(roots, eps))
    sizes = [value.numel() ** -0.5 for value in values]
    norms = [full_tensors(norm) for norm in torch._foreach_norm(ratios)]
    shorter = torch._foreach_clamp_min(torch._foreach_mul(norms, sizes), 1.0)
    torch._foreach_add_(roots, eps)
    updates = torch._foreach_div(firsts, roots)
    torch._foreach_mul_(updates, rate / (1 - b1**step))
    if decay:
        torch._foreach_add_(updates, values, alpha=decay)
    torch._foreach_div_(updates, shorter)
    torch._foreach_sub_(values, updates)
