"""Results of the geometry measures: every number with its sample size and its confidence interval for tokens.

The usual bootstrap samples points with replacement, so some appear twice. Their distance is 0, which
invalidates every neighbor-based measure, and the rank of the sample is lower than that of the text, which
biases measures of the spectrum. Tokens of one text are not independent samples either. This module uses the
block jackknife (Kuensch 1989): the tokens, in text order, are split into ten runs, and everything is
computed ten more times, each time without one run, including the neighbors. For independent points, the
interval is on average never too narrow (Efron and Stein 1981), and about 1.5 times too wide for
neighbor-based measures.

Axes: G runs of tokens, each left out once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import NORMAL_95
from unmask.errors import InvalidRequest, NonFiniteResult

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval and sample size, or a reason why there is none.

    ``low`` and ``high`` are None if ``value`` is None or no interval was requested.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    """Number of points it was computed from."""
    reason: str | None = None
    """Why there is no value; None if there is one."""

    @classmethod
    def refused(cls, reason: str, n: int) -> "Estimate":
        """An estimate without a value, with the reason."""
        return cls(None, n=n, reason=reason)


@dataclass(frozen=True)
class ScaleEstimate:
    """The dimension seen at one scale (GRIDE): from each point's k-th and 2k-th neighbors."""

    k: int
    radius: float | None
    """Mean distance to the 2k-th neighbor, in units of the states; None if there is no estimate."""
    dimension: Estimate


@dataclass(frozen=True)
class WithoutDirections:
    """Anisotropy after removing the ``k`` directions with the largest share of the squared norm."""

    k: int
    anisotropy: Estimate


@dataclass(frozen=True)
class Shuffled:
    """The same measures after every coordinate was shuffled among the tokens independently.

    This keeps the mean and the deviation of each coordinate and destroys the dependence between coordinates.
    A measure that hardly changes depends only on single coordinates.
    """

    two_nn: Estimate
    participation_ratio: Estimate
    effective_rank: Estimate
    anisotropy: Estimate


@dataclass(frozen=True)
class LayerGeometry:
    """The cloud of token vectors at one depth. Dimensions are numbers of directions."""

    layer: int
    """0 is the input of the first layer, l the output of the l-th layer."""
    n: int
    """Number of tokens measured."""
    tokens: int
    """Number of tokens before a sample of ``n`` was drawn, without excluded special tokens."""
    distinct: int
    """Number of distinct points, which neighbor-based dimensions use."""
    width: int
    two_nn: Estimate
    """Intrinsic dimension from two neighbors, by maximum likelihood."""
    two_nn_slope: Estimate
    """Intrinsic dimension from two neighbors, by the slope of the empirical distribution."""
    gride: tuple[ScaleEstimate, ...]
    mle: Estimate
    """Intrinsic dimension from k neighbors (Levina and Bickel), mean over k = 10 to 20."""
    mle_band: tuple[float, float] | None
    """Its minimum and maximum over those k; None if there is no estimate."""
    participation_ratio: Estimate
    """Number of directions with equal variance that would have the same participation ratio."""
    iso_score: Estimate
    """Participation ratio rescaled: 0 for a single direction, 1 for equal variance in all directions."""
    effective_rank: Estimate
    anisotropy: Estimate
    """Mean cosine of pairs of different tokens."""
    anisotropy_without: tuple[WithoutDirections, ...]
    top_coordinate: int | None
    """The coordinate that contributes most to the mean cosine."""
    top_coordinate_share: float | None
    """Its contribution as a share of the mean cosine; None if the mean cosine is near 0."""
    residual: Estimate
    """Share of the norm that remains without the mean vector: 0 if all tokens are equal (collapse), 1 if the
    mean is 0."""
    norm: Estimate
    """Mean Euclidean norm of a token's vector."""
    shuffled: Shuffled | None


def as_points(states: object, name: str = "the states") -> FloatArray:
    """An array or tensor of shape (N, D) as float64.

    Raises:
        InvalidRequest: it has another shape.
        NonFiniteResult: a number in it is not finite.
    """
    detach = getattr(states, "detach", None)
    plain = states if detach is None else detach().double().cpu().numpy()
    x_ND = np.asarray(plain, dtype=np.float64)
    if x_ND.ndim != 2 or x_ND.shape[1] < 2:
        raise InvalidRequest(
            f"{name} have shape {x_ND.shape}; give (tokens, width) with a width of at least 2"
        )
    if not np.isfinite(x_ND).all():
        raise NonFiniteResult(f"{name} contain a number that is not finite; try dtype='float32'")
    return x_ND


BLOCKS = 10
STUDENT = 2.262
"""The 97.5 % quantile of Student's t with nine degrees of freedom, one less than the number of blocks."""
MOST_POINTS = 4096


def blocks_of(n: int) -> NDArray[np.int64]:
    """The index of the run, of ten consecutive ones, of each of ``n`` points, (N,)."""
    return np.arange(n) * BLOCKS // n


def with_interval(
    value: float, without_one: Sequence[float] | FloatArray, n: int, quantile: float = STUDENT
) -> Estimate:
    """The estimate of all points with its 95 % interval, from the estimates without each block.

    The interval is value +- t s, with s^2 = (G - 1) / G times the sum of squared deviations of the G
    estimates from their mean; ``quantile`` is t, of G - 1 degrees of freedom.
    """
    values_G = np.asarray(without_one, dtype=np.float64)
    blocks = len(values_G)
    error = float(np.sqrt((blocks - 1) / blocks * ((values_G - values_G.mean()) ** 2).sum()))
    return Estimate(float(value), float(value) - quantile * error, float(value) + quantile * error, n)


def generator(seed: int) -> np.random.Generator:
    """A random number generator with this seed.

    Raises:
        InvalidRequest: the seed is negative or has more than 63 bits.
    """
    if not 0 <= seed < 2**63:
        raise InvalidRequest(f"seed is {seed}; it must be from 0 to {2**63 - 1}")
    return np.random.default_rng(seed)


def sample(n: int, most: int, seed: int) -> NDArray[np.int64]:
    """Indices of the points to measure, ascending: all ``n``, or ``most`` drawn without replacement.

    Raises:
        InvalidRequest: ``most`` is below 1 or above 4,096.
    """
    if not 1 <= most <= MOST_POINTS:
        raise InvalidRequest(f"points is {most}; it must be from 1 to {MOST_POINTS}")
    if n <= most:
        return np.arange(n)
    return np.sort(generator(seed).choice(n, most, replace=False))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion in 1 / ``freedom``; from 7 on accurate to 0.01."""
    z = NORMAL_95
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def not_special(n: int, special_N: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Which of ``n`` tokens are measured: those that are not special; all where none is marked.

    Raises:
        InvalidRequest: there is another number of marks.
    """
    if special_N is None:
        return np.ones(n, dtype=bool)
    if len(special_N) != n:
        raise InvalidRequest(
            f"special_N has {len(special_N)} entries and the states have {n} tokens; give one entry per token"
        )
    return ~np.asarray(special_N, dtype=bool)
