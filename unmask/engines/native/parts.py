"""Norms, activations, dense layers and pooling in numpy, for what stands outside of layers. Free of torch.

Axes: N rows; K inputs; J outputs of a dense layer.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, assert_never

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

from unmask.spec import Activation, LayerNorm, NoNorm, Norm, PoolingMode, RMSNorm
from unmask.text.batch import SequenceLayout

Float32s = NDArray[np.float32]
Weights = Mapping[str, Float32s]
"""The tensors of an encoder by the names of its ``state_dict``."""

SMALLEST_LENGTH = 1e-12
"""A vector shorter than this is divided by it instead of by its length, as torch does."""


def unit_length(x_NK: NDArray[Any]) -> Float32s:
    """Each row divided by its Euclidean norm."""
    lengths_N1 = np.maximum(np.linalg.norm(x_NK, axis=1, keepdims=True), SMALLEST_LENGTH)
    shortened: Float32s = np.divide(x_NK, lengths_N1, dtype=np.float32)
    return shortened


def norm_scale(norm: Norm, name: str, weights: Weights) -> Float32s:
    """What a norm multiplies with; ``name`` begins the names of its tensors."""
    weight = weights[f"{name}.weight"]
    return weight + np.float32(1) if isinstance(norm, RMSNorm) and norm.one_plus else weight


def normalized(norm: Norm | None, name: str, x_NK: Float32s, weights: Weights) -> Float32s:
    """Each row after a norm, which is computed in float64; ``name`` begins the names of its tensors."""
    if norm is None:
        return x_NK
    if isinstance(norm, NoNorm):
        return x_NK * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    centered = x_NK.astype(np.float64)
    if isinstance(norm, LayerNorm):
        centered -= centered.mean(1, keepdims=True)
    centered /= np.sqrt((centered**2).mean(1, keepdims=True) + norm.eps)
    centered *= norm_scale(norm, name, weights)
    if isinstance(norm, LayerNorm) and norm.bias:
        centered += weights[f"{name}.bias"]
    return centered.astype(np.float32)


def dense(name: str, x_NK: Float32s, weights: Weights, *, bias: bool = True) -> Float32s:
    """A dense layer, (N, J)."""
    y_NJ: Float32s = x_NK @ weights[f"{name}.weight"].T
    if bias:
        y_NJ += weights[f"{name}.bias"]
    return y_NJ


@np.errstate(over="ignore", invalid="ignore")  # limits are right, and NaN stays
def activated(activation: Activation, x: Float32s) -> Float32s:
    """Each number after an activation, of the same shape."""
    return ACTIVATIONS[activation](x)


def _relu(x: Float32s) -> Float32s:
    result: Float32s = np.maximum(x, np.float32(0))
    return result


def _silu(x: Float32s) -> Float32s:
    result: Float32s = x / (1 + np.exp(-x))
    return result


def _gelu_tanh(x: Float32s) -> Float32s:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    result: Float32s = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result


def _gelu(x: Float32s) -> Float32s:
    """``x * P(X <= x)`` of a normal X: half of erfc(-x / sqrt 2), which numpy does not have.

    For z >= 0, erfc(z) is ``t * exp(-z^2 + p(t))`` with ``t = 2 / (2 + z)`` and a smooth p, whose polynomial
    is accurate to 1e-8 of the value up to z = 9; beyond it the value is below 1e-36.
    """
    far = np.abs(x.astype(np.float64)) * math.sqrt(0.5)
    nearness = 2 / (2 + far)
    tails = nearness * np.exp(_tail_exponent()(nearness) - far * far) / 2
    result: Float32s = (x * np.where(x < 0, tails, 1 - tails)).astype(np.float32)
    return result


FARTHEST = 9.0
"""The largest z for which the exponent of `_gelu` is fitted."""


@cache
def _tail_exponent() -> Polynomial:
    """p(t) = log(erfc(z) / t) + z^2 of `_gelu`, interpolated between values of `math.erfc`."""

    def exponents(places: NDArray[np.float64]) -> NDArray[np.float64]:
        found = [(math.erfc(2 / t - 2), t, 2 / t - 2) for t in places.tolist()]
        return np.array([math.log(tail / t) + z * z for tail, t, z in found])

    fitted = Chebyshev.interpolate(exponents, 12, domain=[2 / (2 + FARTHEST), 1.0])
    return Polynomial(fitted.convert(kind=Polynomial).convert().coef)


ACTIVATIONS: dict[Activation, Callable[[Float32s], Float32s]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
    "tanh": np.tanh,
}
"""Every activation by its name."""


def pooled(x_TD: Float32s, layout: SequenceLayout, mode: PoolingMode, skipped: int = 0) -> Float32s:
    """One vector per sequence, (S, D): see `PoolingMode`.

    The first ``skipped`` tokens of each sequence, which has more, are not pooled.
    """
    starts_S = layout.offsets[:-1] + skipped
    if mode == "cls":
        return x_TD[starts_S]
    if mode == "last":
        return x_TD[layout.offsets[1:] - 1]
    lengths_S1: Float32s = (layout.lengths - skipped)[:, None].astype(np.float32)
    if mode == "weighted_mean":
        x_TD = x_TD * (layout.positions_T + 1)[:, None].astype(np.float32)
    reduce = np.maximum if mode == "max" else np.add
    if skipped:
        # Pairs of the first and the last token: every second range, from the end of one sequence to the
        # first pooled token of the next, is dropped.
        ends = np.stack((starts_S, layout.offsets[1:]), axis=1).reshape(-1)[:-1]
        pooled_SD = reduce.reduceat(x_TD, ends, axis=0)[::2]
    else:
        pooled_SD = reduce.reduceat(x_TD, starts_S, axis=0)
    match mode:
        case "max":
            return pooled_SD
        case "mean":
            divisors_S1 = lengths_S1
        case "mean_sqrt_len":
            divisors_S1 = np.sqrt(lengths_S1, dtype=np.float32)
        case "weighted_mean":
            divisors_S1 = (lengths_S1 * (2 * skipped + 1 + lengths_S1) / 2).astype(np.float32)  # of positions
        case _:
            assert_never(mode)
    return np.divide(pooled_SD, divisors_S1, dtype=np.float32)
