"""The updates of AdamW, StableAdamW, LAMB and Muon, in place on lists of tensors.

Muon (Jordan et al. 2024) is momentum whose matrices are orthogonalized before they are applied.

Axes: P matrices of equal shape; R rows; C columns; N the shorter side.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether each process holds a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def full_tensors(tensor: Tensor) -> Tensor:
    """The full tensor, on every process; a plain tensor is returned unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This process's shard of each tensor, sharing memory; a plain tensor is returned unchanged.

    For elementwise work: operations on lists of tensors support shards better than DTensors.
    """
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def distribute_like(whole: Tensor, other: Tensor) -> Tensor:
    """Shard a tensor that every process holds in full in the same way as ``other``, without communication."""
    if not is_dtensor(other):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(whole, other.device_mesh, other.placements, src_data_rank=None)


class MomentStep(NamedTuple):
    """One step of an optimizer with two moments of each value."""

    step: int
    """The number of this step, from 1."""
    rate: float
    """The learning rate of this step."""
    betas: tuple[float, float]
    """b1 and b2."""
    eps: float
    """See `adamw`."""
    decay: float
    """The fraction of p that is subtracted."""


def adamw(
    values: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    of: MomentStep,
) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019), in one fused kernel.

    ``m = b1 m + (1 - b1) g``, ``v = b2 v + (1 - b2) g^2``, then with ``M = m / (1 - b1^step)`` and
    ``V = v / (1 - b2^step)``: ``p = (1 - decay) p - rate M / (sqrt(V) + eps)``.

    Args:
        values: p, all on one device and of one dtype, like the next three.
        gradients: g, with the memory layout of their values.
        firsts: m.
        seconds: v.
        of: the numbers above; ``rate`` is that of this step.
    """
    # Filled on the device rather than copied to it, which would synchronize.
    count = torch.full((), float(of.step), dtype=torch.float32, device=values[0].device)
    torch._fused_adamw_(
        local_tensors(values),
        local_tensors(gradients),
        local_tensors(firsts),
        local_tensors(seconds),
        [],
        [count] * len(values),
        lr=of.rate,
        beta1=of.betas[0],
        beta2=of.betas[1],
        weight_decay=of.decay / of.rate if of.rate > 0 else 0.0,
        eps=of.eps,
        amsgrad=False,
        maximize=False,
    )


def stable_adamw(
    values: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    of: MomentStep,
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
            stable_adamw([value], [gradient], [first], [second], of)
        return
    roots = _root_of_second(gradients, firsts, seconds, of)
    ratios = torch._foreach_div(gradients, torch._foreach_clamp_min(roots, of.eps))
    sizes = [value.numel() ** -0.5 for value in values]
    norms = [full_tensors(norm) for norm in torch._foreach_norm(ratios)]
    shorter = torch._foreach_clamp_min(torch._foreach_mul(norms, sizes), 1.0)
    torch._foreach_add_(roots, of.eps)
    updates = torch._foreach_div(firsts, roots)
    torch._foreach_mul_(updates, of.rate / (1 - of.betas[0] ** of.step))
    if of.decay:
        torch._foreach_add_(updates, values, alpha=of.decay)
    torch._foreach_div_(updates, shorter)
    torch._foreach_sub_(values, updates)


def _root_of_second(
    gradients: list[Tensor], firsts: list[Tensor], seconds: list[Tensor], of: MomentStep
) -> list[Tensor]:
    """Bring both moments to this step, in place; ``sqrt(V)`` of each."""
    b1, b2 = of.betas
    torch._foreach_lerp_(firsts, gradients, 1 - b1)
    torch._foreach_mul_(seconds, b2)
    torch._foreach_addcmul_(seconds, gradients, gradients, 1 - b2)
    roots: list[Tensor] = list(torch._foreach_sqrt(seconds))
    torch._foreach_mul_(roots, (1 - b2**of.step) ** -0.5)
    return roots


def lamb(
    values: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    of: MomentStep,
) -> None:
    """One step of LAMB (You et al. 2020, algorithm 2), for batches of tens of thousands of texts.

    With AdamW's ``u = M / (sqrt(V) + eps) + decay / rate p``, each tensor moves by ``rate`` times its norm:
    ``p = p - rate |p| / |u| u``. Where either norm is 0, the factor is 1. The arguments are those of `adamw`,
    without the requirement on memory layout.
    """
    roots = _root_of_second(gradients, firsts, seconds, of)
    torch._foreach_add_(roots, of.eps)
    updates = torch._foreach_div(firsts, roots)
    torch._foreach_mul_(updates, 1 / (1 - of.betas[0] ** of.step))
    if of.decay and of.rate:
        torch._foreach_add_(updates, values, alpha=of.decay / of.rate)
    sizes, moves = ([full_tensors(norm) for norm in torch._foreach_norm(them)] for them in (values, updates))
    for value, update, size, move in zip(values, updates, sizes, moves, strict=True):
        value.sub_(update * torch.where((size > 0) & (move > 0), size / move, 1.0), alpha=of.rate)


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of ``a x + b x^3 + c x^5``, chosen by the authors: steep at 0; converges not to 1 but to
between about 0.7 and 1.2, which does not harm training."""

MATCH = 0.2
"""AdamW's updates have a root mean square of 0.2 to 0.4; see `muon`."""

SMALLEST_NORM = 1e-20
"""Avoids division by zero for a matrix of zeros."""


def newton_schulz(x_PRC: Tensor, iterations: int = 5) -> Tensor:
    """Move the singular values of each matrix near 1 and keep its singular vectors: approximately ``U V^T``.

    Args:
        x_PRC: P matrices, wide or tall.
        iterations: iterations of the quintic polynomial.

    Returns:
        The same shape and dtype. Singular values above about 2e-3 of the matrix's norm end between 0.68
        and 1.21 after 5 iterations; a matrix of zeros is unchanged.
    """
    a, b, c = COEFFICIENTS
    norms_P11 = torch.linalg.vector_norm(x_PRC, dim=(-2, -1), keepdim=True, dtype=_wide(x_PRC.dtype))
    x_PRC = x_PRC / norms_P11.clamp_min(SMALLEST_NORM).to(x_PRC.dtype)
    tall = x_PRC.shape[1] > x_PRC.shape[2]
    for _ in range(iterations):
        # The product with itself over the longer axis is the smaller one; the polynomial is the same.
        gram_PNN = torch.bmm(x_PRC.mT, x_PRC) if tall else torch.bmm(x_PRC, x_PRC.mT)
        odd_PNN = torch.baddbmm(gram_PNN, gram_PNN, gram_PNN, beta=b, alpha=c)
        left, right = (x_PRC, odd_PNN) if tall else (odd_PNN, x_PRC)
        x_PRC = torch.baddbmm(x_PRC, left, right, beta=a)
    return x_PRC


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def computing_dtype(values: Tensor) -> torch.dtype:
    """The dtype of `newton_schulz`: bfloat16, which it tolerates, on processors that multiply it fast.

    These are CUDA devices and CPUs with AVX-512 BF16, where a 256 x 704 matrix takes a quarter of the time of
    float32. Float64 stays float64.
    """
    if values.dtype == torch.float64:
        return torch.float64
    on_cpu = values.device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if on_cpu or values.device.type == "cuda" else torch.float32


def orthogonalize(matrices: Sequence[Tensor], parts: Sequence[int], iterations: int = 5) -> list[Tensor]:
    """Approximately ``U V^T`` for every matrix; matrices whose parts have equal shape run in one batch.

    Args:
        matrices: (N, C) each.
        parts: number of matrices stacked along the first axis of each; each part is orthogonalized
            separately.
        iterations: iterations of `newton_schulz`.

    Returns:
        One result per matrix, in the dtype of the computation.
    """
    stacks = [matrix.view(count, -1, matrix.shape[1]) for matrix, count in zip(matrices, parts, strict=True)]
    batches: dict[torch.Size, list[int]] = {}
    for index, stack_PRC in enumerate(stacks):
        batches.setdefault(stack_PRC.shape[1:], []).append(index)
    directions = list(matrices)
    for members in batches.values():
        batch_PRC = torch.cat([stacks[index].to(computing_dtype(stacks[index])) for index in members])
        orthogonal = torch.split(newton_schulz(batch_PRC, iterations), [parts[index] for index in members])
        for index, done_PRC in zip(members, orthogonal, strict=True):
            directions[index] = done_PRC.flatten(0, 1)
    return directions


def muon(
    values: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    parts: Sequence[int],
    *,
    rate: float,
    momentum: float,
    nesterov: bool,
    iterations: int,
    decay: float,
) -> None:
    """One step of Muon, in place.

    ``m = momentum m + (1 - momentum) g``; ``u = momentum m + (1 - momentum) g`` with Nesterov momentum,
    otherwise m; ``p = (1 - decay) p - rate * 0.2 sqrt(max(R, C)) * orthogonal(u)``.

    The scale is that of Liu et al. 2025: an orthogonal R x C matrix has a root mean square of
    1 / sqrt(max(R, C)), so the step's root mean square is 0.2 for every shape, about that of AdamW. Learning
    rates and decay tuned for AdamW can therefore be used. (Jordan's scale is ``sqrt(max(1, R / C))``.)

    Args:
        values: p, matrices on one device and of one dtype.
        gradients: g.
        momenta: m.
        parts: see `orthogonalize`.
        rate: the learning rate of this step.
        momentum: see above.
        nesterov: see above.
        iterations: iterations of `newton_schulz`.
        decay: the fraction of p that is subtracted.
    """
    torch._foreach_lerp_(momenta, gradients, 1 - momentum)
    ahead = torch._foreach_lerp(gradients, momenta, momentum) if nesterov else list(momenta)
    # Sharded tensors are gathered, and each process keeps its shard of the same result.
    directions = orthogonalize([full_tensors(gradient) for gradient in ahead], parts, iterations)
    directions = [
        distribute_like(direction, value) for direction, value in zip(directions, values, strict=True)
    ]
    if decay:
        torch._foreach_mul_(values, 1 - decay)
    for value, direction, count in zip(values, directions, parts, strict=True):
        value.add_(direction, alpha=-rate * MATCH * max(len(value) // count, value.shape[1]) ** 0.5)
