"""The geometry of token vectors, layer by layer; here also isotropy: spectrum, cosines and norms in O(N D^2).

Axes: G blocks of points, each left out once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import Watch, unwatched
from unmask.errors import InvalidRequest
from unmask.interpret.geometry.dimension import (
    Neighbors,
    distinct,
    gride,
    levina_bickel_band,
    neighbors,
    two_nn,
    two_nn_slope,
)
from unmask.interpret.geometry.values import (
    BLOCKS,
    MOST_POINTS,
    Estimate,
    FloatArray,
    LayerGeometry,
    ScaleEstimate,
    Shuffled,
    WithoutDirections,
    as_points,
    blocks_of,
    generator,
    not_special,
    sample,
    with_interval,
)

DIRECTIONS = (1, 3)
"""Numbers of dominant directions to remove before measuring the remaining anisotropy."""


@dataclass(frozen=True)
class Spread:
    """The measures of `LayerGeometry` that do not need neighbors."""

    participation_ratio: Estimate
    iso_score: Estimate
    effective_rank: Estimate
    anisotropy: Estimate
    anisotropy_without: tuple[WithoutDirections, ...]
    """One entry for each of `DIRECTIONS`."""
    top_coordinate: int | None
    top_coordinate_share: float | None
    residual: Estimate
    norm: Estimate


def participation_ratio(variances_D: FloatArray) -> float:
    """(sum of variances)^2 / sum of squared variances, for the eigenvalues of the covariance: 1 to D."""
    return float(variances_D.sum() ** 2 / (variances_D**2).sum())


def iso_score(variances_D: FloatArray) -> float:
    """IsoScore (Rudman et al. 2022, https://aclanthology.org/2022.findings-acl.262), from 0 to 1.

    Its steps simplify to (PR - 1) / (D - 1), where PR is the participation ratio.
    """
    return (participation_ratio(variances_D) - 1) / (len(variances_D) - 1)


def effective_rank(variances_D: FloatArray) -> float:
    """exp of the entropy of singular values as shares of their sum (Roy and Vetterli 2007): 1 to D.

    It uses singular values, the square roots of eigenvalues, so it is larger than the analogous number of
    variances.
    """
    singular_D = np.sqrt(variances_D)
    share_D = singular_D / singular_D.sum()
    share_D = share_D[share_D > 0]
    return float(np.exp(-(share_D * np.log(share_D)).sum()))


def mean_cosine(x_ND: FloatArray) -> float:
    """Mean cosine of all pairs of different rows (Ethayarajh 2019), exact in O(N D).

    It is (||sum of unit vectors||^2 - m) / (m (m - 1)), over the m non-zero rows.
    """
    return float(by_coordinate(x_ND).sum())


def by_coordinate(x_ND: FloatArray) -> FloatArray:
    """The contribution of each coordinate to `mean_cosine`, (D,) (after Timkey and van Schijndel 2021)."""
    unit_MD = unit(x_ND)
    m = len(unit_MD)
    return np.asarray((unit_MD.sum(0) ** 2 - (unit_MD**2).sum(0)) / max(1, m * (m - 1)))


def unit(x_ND: FloatArray) -> FloatArray:
    """The non-zero rows, normalized."""
    length_N = np.linalg.norm(x_ND, axis=1)
    return np.asarray(x_ND[length_N > 0] / length_N[length_N > 0, None])


@dataclass(frozen=True, eq=False)
class _Products:
    """Products from which spectra of subsets of rows are computed: D x D per block, or N x N if smaller."""

    x_ND: FloatArray
    blocks_N: NDArray[np.int64]
    gram_GDD: FloatArray | None
    kernel_NN: FloatArray | None

    @classmethod
    def of(cls, x_ND: FloatArray, blocks_N: NDArray[np.int64]) -> "_Products":
        if len(x_ND) < x_ND.shape[1]:
            return cls(x_ND, blocks_N, None, x_ND @ x_ND.T)
        groups = (x_ND[blocks_N == g] for g in range(BLOCKS))
        return cls(x_ND, blocks_N, np.stack([part.T @ part for part in groups]), None)

    def variances(self, rows_N: NDArray[np.bool_], left_out: int | None) -> FloatArray:
        """Eigenvalues of the covariance of the kept rows, (D,)."""
        n, width = int(rows_N.sum()), self.x_ND.shape[1]
        if self.gram_GDD is not None:
            gram_DD = self.gram_GDD.sum(0)
            if left_out is not None:
                gram_DD = gram_DD - self.gram_GDD[left_out]
            mean_D = self.x_ND[rows_N].mean(0)
            return _eigenvalues(gram_DD / n - np.outer(mean_D, mean_D))
        assert self.kernel_NN is not None
        # The centered rows times their transpose have the same eigenvalues except zeros.
        kernel_MM = self.kernel_NN[np.ix_(rows_N, rows_N)]
        kernel_MM = kernel_MM - kernel_MM.mean(0) - kernel_MM.mean(1)[:, None] + kernel_MM.mean()
        return np.concatenate([np.zeros(width - n), _eigenvalues(kernel_MM / n)])


def spread(x_ND: FloatArray, blocks_N: NDArray[np.int64], tick: Callable[[], None] = lambda: None) -> Spread:
    """All measures of the rows of ``x_ND``, with intervals from leaving out one block at a time.

    ``tick`` is called before each block is left out; it may raise to stop.
    """
    n, products = len(x_ND), _Products.of(x_ND, blocks_N)
    all_of = _measures(products, None)
    less = []
    for g in range(BLOCKS):
        tick()
        less.append(_measures(products, g))
    values = [with_interval(whole, [measures[i] for measures in less], n) for i, whole in enumerate(all_of)]
    directions_DC = _directions(products)
    top, share = _top_coordinate(x_ND)
    return Spread(
        participation_ratio=values[0],
        iso_score=values[1],
        effective_rank=values[2],
        anisotropy=_anisotropy(x_ND, blocks_N),
        anisotropy_without=tuple(
            WithoutDirections(
                k, _anisotropy(x_ND - x_ND @ directions_DC[:, :k] @ directions_DC[:, :k].T, blocks_N)
            )
            for k in DIRECTIONS
        ),
        top_coordinate=top,
        top_coordinate_share=share,
        residual=values[3],
        norm=values[4],
    )


def variances(x_ND: FloatArray) -> FloatArray:
    """Eigenvalues of the covariance of rows, (D,), none below 0."""
    y_ND = x_ND - x_ND.mean(0)
    return _eigenvalues(y_ND.T @ y_ND / len(x_ND))


def _measures(products: _Products, left_out: int | None) -> tuple[float, ...]:
    rows_N = products.blocks_N != left_out
    variance_D = products.variances(rows_N, left_out)
    length_M = np.linalg.norm(products.x_ND[rows_N], axis=1)
    return (
        participation_ratio(variance_D),
        iso_score(variance_D),
        effective_rank(variance_D),
        float(np.sqrt(variance_D.sum() / (length_M**2).mean())),
        float(length_M.mean()),
    )


def _directions(products: _Products) -> FloatArray:
    """Orthonormal directions (D, C) with the largest share of the squared norm, largest first."""
    if products.gram_GDD is not None:
        return np.asarray(np.linalg.eigh(products.gram_GDD.sum(0))[1][:, ::-1])
    return np.asarray(np.linalg.svd(products.x_ND, full_matrices=False)[2].T)


def _eigenvalues(covariance_DD: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(np.linalg.eigvalsh(covariance_DD), 0))


def _anisotropy(x_ND: FloatArray, blocks_N: NDArray[np.int64]) -> Estimate:
    length_N = np.linalg.norm(x_ND, axis=1)
    here_N = length_N > 0
    unit_MD, blocks_M = x_ND[here_N] / length_N[here_N, None], blocks_N[here_N]
    sum_GD = np.stack([unit_MD[blocks_M == g].sum(0) for g in range(BLOCKS)])
    count_G = np.bincount(blocks_M, minlength=BLOCKS)

    def cosine(sum_D: FloatArray, m: int) -> float:
        return float(((sum_D**2).sum() - m) / (m * (m - 1)))

    sum_D, m = sum_GD.sum(0), int(count_G.sum())
    less = [cosine(sum_D - sum_GD[g], m - int(count_G[g])) for g in range(BLOCKS)]
    return with_interval(cosine(sum_D, m), less, m)


def _top_coordinate(x_ND: FloatArray) -> tuple[int | None, float | None]:
    """The coordinate that contributes most to the mean cosine, and its share if the mean is not near 0."""
    added_D = by_coordinate(x_ND)
    total = float(added_D.sum())
    if total < 0.01:
        return None, None
    top = int(added_D.argmax())
    return top, float(added_D[top] / total)


FEWEST_TOKENS = 30
"""Minimum number of tokens: ten blocks of three."""
FEWEST_FOR_NEIGHBORS = 100
"""Minimum number of distinct points for TwoNN, at which its error is about 10 %."""
MLE_BAND = (10, 20)
"""The values of k over which Levina and Bickel's estimate is averaged, as in their paper."""
MOST_NEIGHBORS = 64


def geometry(
    states: Sequence[object],
    *,
    special_N: NDArray[np.bool_] | None = None,
    points: int = MOST_POINTS,
    shuffled: bool = True,
    seed: int = 0,
    watch: Watch = unwatched,
) -> tuple[LayerGeometry, ...]:
    """Intrinsic dimension, isotropy and anisotropy of the tokens of a text (or several) at every depth.

    Dimensions are those of the cloud of token vectors in R^D. TwoNN, GRIDE at k = 1, 2, 4 ... and
    Levina-Bickel are computed from neighbors; participation ratio, IsoScore and effective rank from the
    spectrum of the centered vectors. Intervals leave out one of ten runs of consecutive tokens at a time.
    With too few points for a measure, its `Estimate` has no value and gives the reason.

    Args:
        states: arrays or tensors (N, D), one per depth, rows in the order of the text; D may differ.
        special_N: tokens to exclude, such as [CLS] and [SEP]; None excludes none.
        points: maximum number of tokens measured, at most 4,096; more are subsampled.
        shuffled: whether to measure shuffled states as well.
        seed: random seed of the sample and the shuffle.
        watch: called as ``watch("geometry", layers done, layers)``, several times a second.

    Raises:
        InvalidRequest: fewer than 30 tokens remain, or shapes do not match.
        NonFiniteResult: a state is not finite.
    """
    if not states:
        raise InvalidRequest("no states were given; give one array (tokens, width) per layer")
    layers = []
    for layer, layer_states in enumerate(states):
        tick = partial(watch, "geometry", layer, len(states))
        tick()
        x_ND = as_points(layer_states, f"the states of layer {layer}")
        x_ND = x_ND[not_special(len(x_ND), special_N)]
        tokens = len(x_ND)
        some = sample(tokens, points, seed)
        if len(some) < FEWEST_TOKENS:
            raise InvalidRequest(
                f"geometry needs at least {FEWEST_TOKENS} tokens, and there are {len(some)}; "
                "use a longer text"
            )
        layers.append(_measure(x_ND[some], layer, tokens, seed if shuffled else None, tick))
    watch("geometry", len(states), len(states))
    return tuple(layers)


def _measure(
    x_ND: FloatArray, layer: int, tokens: int, seed: int | None, tick: Callable[[], None]
) -> LayerGeometry:
    n, blocks_N = len(x_ND), blocks_of(len(x_ND))
    some = distinct(x_ND, tick)
    if len(some) < 2:
        raise InvalidRequest(f"in layer {layer} all {n} tokens are the same vector, which has no geometry")
    flat = spread(x_ND, blocks_N, tick)
    near = _near(x_ND[some], blocks_N[some], tick)
    mle, band = _mle(near, len(some))
    return LayerGeometry(
        layer=layer,
        n=n,
        tokens=tokens,
        distinct=len(some),
        width=x_ND.shape[1],
        two_nn=_estimate(near, len(some), two_nn),
        two_nn_slope=_estimate(near, len(some), two_nn_slope),
        gride=_gride(near),
        mle=mle,
        mle_band=band,
        **vars(flat),
        shuffled=None if seed is None else _shuffled(x_ND, seed + layer, tick),
    )


def _near(x_MD: FloatArray, blocks_M: NDArray[np.int64], tick: Callable[[], None]) -> Neighbors | None:
    """Neighbors up to the largest scale that this number of points supports; None for too few points."""
    if len(x_MD) < FEWEST_FOR_NEIGHBORS:
        return None
    return neighbors(x_MD, min(MOST_NEIGHBORS, len(x_MD) // 8), blocks_M, tick)


def _estimate(near: Neighbors | None, points: int, measure: Callable[[FloatArray], float]) -> Estimate:
    if near is None:
        reason = _too_few(points, FEWEST_FOR_NEIGHBORS)
        return Estimate.refused(reason, points)
    less = [measure(near.without(g)) for g in range(BLOCKS)]
    return with_interval(measure(near.r_MK), less, points)


def _too_few(points: int, needed: int) -> str:
    return f"this estimate needs {needed} different token vectors, and there are {points}; use a longer text"


def _gride(near: Neighbors | None) -> tuple[ScaleEstimate, ...]:
    """Dimension by scale; empty with too few points."""
    if near is None:
        return ()
    points, most = near.r_MK.shape
    scales = [2**i for i in range(most.bit_length()) if 2 ** (i + 1) <= most]
    return tuple(
        ScaleEstimate(
            k,
            float(near.r_MK[:, 2 * k - 1].mean()),
            _estimate(near, points, lambda r_MK, k=k: gride(r_MK, k)),  # type: ignore[misc]
        )
        for k in scales
    )


def _mle(near: Neighbors | None, points: int) -> tuple[Estimate, tuple[float, float] | None]:
    first, last = MLE_BAND
    if near is None or near.r_MK.shape[1] < last:
        reason = _too_few(points, 8 * last)
        return Estimate.refused(reason, points), None
    band = levina_bickel_band(near.r_MK, first, last)

    def mean(r_MK: FloatArray) -> float:
        return float(levina_bickel_band(r_MK, first, last).mean())

    return _estimate(near, points, mean), (float(band.min()), float(band.max()))


def _shuffled(x_ND: FloatArray, seed: int, tick: Callable[[], None]) -> Shuffled:
    """The measures of states whose coordinates were shuffled among tokens independently."""
    y_ND = generator(seed).permuted(x_ND, axis=0)
    dimension = _estimate(None, len(y_ND), two_nn)
    if len(y_ND) >= FEWEST_FOR_NEIGHBORS:
        r_NK = neighbors(y_ND, 2, tick=tick).r_MK
        r_MK = r_NK[r_NK[:, 0] > 0]  # coordinates with few values can coincide again
        dimension = _estimate(None, len(r_MK), two_nn)
        if len(r_MK) >= FEWEST_FOR_NEIGHBORS:
            dimension = Estimate(two_nn(r_MK), n=len(r_MK))
    variances_D = variances(y_ND)
    return Shuffled(
        two_nn=dimension,
        participation_ratio=Estimate(participation_ratio(variances_D), n=len(x_ND)),
        effective_rank=Estimate(effective_rank(variances_D), n=len(x_ND)),
        anisotropy=Estimate(mean_cosine(y_ND), n=len(x_ND)),
    )
