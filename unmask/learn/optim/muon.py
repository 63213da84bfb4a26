"""Muon (Jordan et al. 2024): momentum whose every matrix is made orthogonal before it is applied.

Axes: P matrices of one shape; R their rows; C their columns; N their shorter side.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.learn.optim.dtensor import distribute_like, full_tensors

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of ``a x + b x^3 + c x^5``, the authors' choice: steep at 0, and not settling at 1 but between about
0.7 and 1.2, which training does not mind."""

MATCH = 0.2
"""AdamW's updates have a root mean square of 0.2 to 0.4; see `muon`."""

SMALLEST_NORM = 1e-20
"""So that a matrix of zeros divides by something."""


def newton_schulz(x_PRC: Tensor, iterations: int = 5) -> Tensor:
    """Each matrix with its singular values moved near 1, directions kept: about ``U V^T`` of its SVD.

    Args:
        x_PRC: P matrices, wide or tall.
        iterations: of the quintic polynomial.

    Returns:
        The same shape and dtype. Singular values that begin above about 2e-3 of the matrix's norm end
        between 0.68 and 1.21 after 5 iterations; a matrix of zeros remains one.
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
    """What `newton_schulz` runs in: bfloat16, which it bears, where processors multiply it fast.

    That is CUDA, and CPUs with AVX-512 BF16: there a 256 x 704 matrix takes a quarter of float32's time.
    Float64 stays float64.
    """
    if values.dtype == torch.float64:
        return torch.float64
    on_cpu = values.device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if on_cpu or values.device.type == "cuda" else torch.float32


def orthogonalize(matrices: Sequence[Tensor], parts: Sequence[int], iterations: int = 5) -> list[Tensor]:
    """About ``U V^T`` for every matrix, in its shape; those whose parts have one shape run as one batch.

    Args:
        matrices: (N, C) each.
        parts: how many matrices each is, stacked along the first axis; each is made orthogonal by itself.
        iterations: of `newton_schulz`.

    Returns:
        One for each matrix, of the dtype that they are computed in.
    """
    stacks = [matrix.view(count, -1, matrix.shape[1]) for matrix, count in zip(matrices, parts, strict=True)]
    batches: dict[torch.Size, list[int]] = {}
    for index, stack_PRC in enumerate(stacks):
        batches.setdefault(stack_PRC.shape[1:], []).append(index)
    directions = list(matrices)
    for members in batches.values():
        batch_PRC = torch.cat([stacks[index].to(computing_dtype(stacks[index])) for index in members])
        done = torch.split(newton_schulz(batch_PRC, iterations), [parts[index] for index in members])
        for index, done_PRC in zip(members, done, strict=True):
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

    ``m = momentum m + (1 - momentum) g``; ``u = momentum m + (1 - momentum) g`` with Nesterov's look ahead,
    else m; ``p = (1 - decay) p - rate * 0.2 sqrt(max(R, C)) * orthogonal(u)``.

    The scale is that of Liu et al. 2025: an orthogonal R x C matrix has a root mean square of
    1 / sqrt(max(R, C)), so the step has one of 0.2 whatever the shape, which is about AdamW's, and learning
    rates and decay found for AdamW can be used. (Jordan's scale is ``sqrt(max(1, R / C))``.)

    Args:
        values: p, matrices of one device and dtype.
        gradients: g.
        momenta: m.
        parts: of each, see `orthogonalize`.
        rate: the learning rate of this step.
        momentum: see above.
        nesterov: see above.
        iterations: of `newton_schulz`.
        decay: the share of p that is taken off.
    """
    torch._foreach_lerp_(momenta, gradients, 1 - momentum)
    ahead = torch._foreach_lerp(gradients, momenta, momentum) if nesterov else list(momenta)
    # What is spread over processes is gathered, and each keeps its own share of the same result.
    directions = orthogonalize([full_tensors(one) for one in ahead], parts, iterations)
    directions = [distribute_like(one, value) for one, value in zip(directions, values, strict=True)]
    if decay:
        torch._foreach_mul_(values, 1 - decay)
    for value, direction, count in zip(values, directions, parts, strict=True):
        value.add_(direction, alpha=-rate * MATCH * max(len(value) // count, value.shape[1]) ** 0.5)
