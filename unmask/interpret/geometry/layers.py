"""The geometry of token vectors, layer by layer."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

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
from unmask.interpret.geometry.intervals import (
    BLOCKS,
    MOST_POINTS,
    blocks_of,
    generator,
    sample,
    with_interval,
)
from unmask.interpret.geometry.spread import (
    DIRECTIONS,
    effective_rank,
    mean_cosine,
    participation_ratio,
    spread,
    variances,
)
from unmask.interpret.geometry.values import (
    Estimate,
    FloatArray,
    LayerGeometry,
    ScaleEstimate,
    Shuffled,
    WithoutDirections,
    as_points,
)
from unmask.interpret.watch import Watch, unwatched

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
    found = []
    for layer, given in enumerate(states):
        tick = partial(watch, "geometry", layer, len(states))
        tick()
        x_ND = as_points(given, f"the states of layer {layer}")
        x_ND = x_ND[_kept(len(x_ND), special_N)]
        tokens = len(x_ND)
        some = sample(tokens, points, seed)
        if len(some) < FEWEST_TOKENS:
            raise InvalidRequest(
                f"geometry needs at least {FEWEST_TOKENS} tokens, and there are {len(some)}; "
                "use a longer text"
            )
        found.append(_measure(x_ND[some], layer, tokens, seed if shuffled else None, tick))
    watch("geometry", len(states), len(states))
    return tuple(found)


def _kept(n: int, special_N: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    if special_N is None:
        return np.ones(n, dtype=bool)
    if len(special_N) != n:
        raise InvalidRequest(
            f"special_N has {len(special_N)} entries and the states have {n} tokens; give one entry per token"
        )
    return ~np.asarray(special_N, dtype=bool)


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
        participation_ratio=flat.participation_ratio,
        iso_score=flat.iso_score,
        effective_rank=flat.effective_rank,
        anisotropy=flat.anisotropy,
        anisotropy_without=tuple(
            WithoutDirections(k, one) for k, one in zip(DIRECTIONS, flat.anisotropy_without, strict=True)
        ),
        top_coordinate=flat.top_coordinate,
        top_coordinate_share=flat.top_coordinate_share,
        residual=flat.residual,
        norm=flat.norm,
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
