"""Results of the geometry measures: every number with its sample size and interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        """No value, and the sentence that says why."""
        return cls(None, n=n, reason=reason)


@dataclass(frozen=True)
class ScaleEstimate:
    """The dimension seen at one scale (GRIDE): from each point's k-th and 2k-th neighbors."""

    k: int
    radius: float | None
    """Mean distance to the 2k-th neighbor, in the states' own units; None where there is no estimate."""
    dimension: Estimate


@dataclass(frozen=True)
class WithoutDirections:
    """Anisotropy after the ``k`` directions that hold most of the squared length are taken out."""

    k: int
    anisotropy: Estimate


@dataclass(frozen=True)
class Shuffled:
    """The same measures after every coordinate was shuffled among the tokens on its own.

    Means and spreads of single coordinates stay as they are, and what ties coordinates together is gone.
    A measure that hardly moves here says something about single coordinates only.
    """

    two_nn: Estimate
    participation_ratio: Estimate
    effective_rank: Estimate
    anisotropy: Estimate


@dataclass(frozen=True)
class LayerGeometry:
    """The cloud of token vectors at one depth. Dimensions are counts of directions; the rest is named."""

    layer: int
    """0 is what the first layer reads, l is the output of the l-th layer."""
    n: int
    """Tokens measured."""
    tokens: int
    """Tokens there were, before a sample of ``n`` was drawn; those left out as special are not counted."""
    distinct: int
    """Number of distinct points, which neighbor-based dimensions use."""
    width: int
    two_nn: Estimate
    """Intrinsic dimension by two neighbors, maximum likelihood."""
    two_nn_slope: Estimate
    """The same by the slope of the empirical distribution."""
    gride: tuple[ScaleEstimate, ...]
    mle: Estimate
    """Intrinsic dimension by k neighbors (Levina and Bickel), mean over k = 10 to 20."""
    mle_band: tuple[float, float] | None
    """The least and the most of it over those k; None where there is no estimate."""
    participation_ratio: Estimate
    """Directions that hold the variance, if all held the same."""
    iso_score: Estimate
    """Participation ratio on a scale from 0, one direction, to 1, all the same."""
    effective_rank: Estimate
    anisotropy: Estimate
    """Mean cosine of two different tokens."""
    anisotropy_without: tuple[WithoutDirections, ...]
    top_coordinate: int | None
    """The coordinate that gives most to the mean cosine."""
    top_coordinate_share: float | None
    """What it gives, as a share of the mean cosine; None where that is near 0."""
    residual: Estimate
    """Share of the norm that is not the mean vector: 0 if all tokens are equal (collapse), 1 if the mean is
    0."""
    norm: Estimate
    """Mean Euclidean length of a token's vector."""
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
        raise InvalidRequest(f"{name} have shape {x_ND.shape}; (tokens, width) with width 2 or more is read")
    if not np.isfinite(x_ND).all():
        raise NonFiniteResult(f"{name} hold a number that is not finite; try dtype='float32'")
    return x_ND
