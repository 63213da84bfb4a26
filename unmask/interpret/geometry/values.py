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
