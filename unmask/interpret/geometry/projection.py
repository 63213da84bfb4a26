"""The cloud of states in three dimensions, level by level: principal components, or UMAP.

Axes: A directions, at most three; F tokens that are fitted; L levels, the input of the first layer and the
output of each.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.optional import require
from unmask.base.progress import Watch, unwatched
from unmask.errors import InvalidRequest
from unmask.interpret.geometry.values import FloatArray, as_points, generator, not_special

Method = Literal["pca", "umap"]
Basis = Literal["own", "shared"]

AXES = 3
FEWEST_TO_PROJECT = 4
"""Minimum number of fitted tokens: fewer always lie in a plane."""
UMAP_NEIGHBORS = 15
"""Neighbors of a point in UMAP's graph, the default of McInnes et al. 2018."""
MOST_UMAP_TOKENS = 4096
TICK_SECONDS = 0.1
_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True, eq=False)
class Projection:
    """Tokens in three dimensions at every level. Created by `project`."""

    method: Method
    basis: Basis
    points_LN3: NDArray[np.float32]
    """Coordinates around the mean of the fitted tokens, in units of the states; those of UMAP have none."""
    explained_L3: FloatArray | None
    """Share of a level's variance along each direction, before levels are turned to each other; None for
    UMAP."""
    fitted: int
    """F, the number of tokens that determine the directions."""


def project(
    states: Sequence[object],
    *,
    method: Method = "pca",
    basis: Basis = "own",
    special_N: NDArray[np.bool_] | None = None,
    seed: int = 0,
    watch: Watch = unwatched,
) -> Projection:
    """Project the tokens of a text to three dimensions at every level, so that each moves steadily.

    PCA in a basis of its own shows each level by the three directions that hold most of its variance. Three
    axes of one level have nothing to do with those of the next, so every level but the last is turned, and
    mirrored if necessary, onto the level above it (orthogonal Procrustes, Schönemann 1966), which leaves all
    distances in the picture as they are. At the last level the axes are the principal components, each with
    its largest entry positive. The shared basis is that of all levels together, each centered on its own
    mean: axes mean the same at every level, and each level shows less of its own variance.

    UMAP (McInnes et al. 2018) keeps neighbors together, and no distances. Each level starts from its PCA, and
    is turned like it.

    Args:
        states: arrays or tensors (N, D), one per level, with the same tokens; D must be the same for the
            shared basis.
        method: pca or umap; umap needs the extra of that name.
        basis: own or shared; umap has no shared one.
        special_N: tokens, such as [CLS] and [SEP], that do not determine the directions and are projected all
            the same: one of them may hold most of a level's variance. UMAP places them like the others.
        seed: random seed of UMAP.
        watch: called as ``watch("projecting", levels done, levels)``, and by UMAP several times a second. A
            level of UMAP that was stopped is computed to its end in another thread, and dropped.

    Raises:
        InvalidRequest: a shape or an option does not fit, or fewer than four tokens would be fitted.
        MissingExtra: umap is not installed.
        NonFiniteResult: a state is not finite.
    """
    if method not in get_args(Method) or basis not in get_args(Basis):
        raise InvalidRequest(
            f"method {method!r} with basis {basis!r} is unknown; give pca or umap, own or shared"
        )
    if method == "umap":
        if basis != "own":
            raise InvalidRequest("method 'umap' has no shared basis; give basis='own', or method='pca'")
        require("umap")
    generator(seed)
    levels = _checked(states)
    fit_N = _fitted(len(levels[0]), special_N)
    if method == "umap" and len(fit_N) > MOST_UMAP_TOKENS:
        raise InvalidRequest(
            f"there are {len(fit_N)} tokens and UMAP takes at most {MOST_UMAP_TOKENS}; "
            "use PCA or a shorter text"
        )
    directions = _shared_directions(levels, fit_N) if basis == "shared" else None
    points, shares = [], []
    for number, x_ND in enumerate(levels):
        watch("projecting", number, len(levels))
        y_N3, share_3 = _components(x_ND, fit_N, directions)
        points.append(y_N3)
        shares.append(share_3)
    if basis == "own":
        _turn_to_next(points, fit_N)
    if method == "umap":
        for number, x_ND in enumerate(levels):
            tick = partial(watch, "projecting", number, len(levels))
            points[number] = _beside(partial(_umap, x_ND, points[number], fit_N, seed), tick)
        _turn_to_next(points, fit_N)
    watch("projecting", len(levels), len(levels))
    return Projection(
        method=method,
        basis=basis,
        points_LN3=np.stack(points).astype(np.float32),
        explained_L3=np.stack(shares) if method == "pca" else None,
        fitted=len(fit_N),
    )


def _checked(states: Sequence[object]) -> list[FloatArray]:
    levels = [
        as_points(level_states, f"the states of level {number}") for number, level_states in enumerate(states)
    ]
    if not levels:
        raise InvalidRequest("no states were given; give one array (tokens, width) per level")
    for number, x_ND in enumerate(levels):
        if len(x_ND) != len(levels[0]):
            raise InvalidRequest(
                f"level 0 has {len(levels[0])} tokens and level {number} has {len(x_ND)}; "
                "give the same tokens at every level"
            )
    return levels


def _fitted(n: int, special_N: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    fit_F = np.flatnonzero(not_special(n, special_N))
    if len(fit_F) < FEWEST_TO_PROJECT:
        raise InvalidRequest(
            f"there are {len(fit_F)} tokens and a cloud needs at least {FEWEST_TO_PROJECT}; give more text"
        )
    return fit_F


def _components(
    x_ND: FloatArray, fit_F: NDArray[np.int64], directions_D3: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Coordinates (N, 3) along the first directions or the given ones, and the share of variance of each."""
    mean_D = x_ND[fit_F].mean(0)
    fit_FD = x_ND[fit_F] - mean_D
    total = float((fit_FD**2).sum())
    if directions_D3 is None:
        directions_D3 = _leading(fit_FD)
    # Rounding leaves a little of a variance that is not there.
    if total <= len(fit_FD) * (1e-12 * float(np.abs(x_ND).max(initial=0.0))) ** 2:
        return np.zeros((len(x_ND), AXES)), np.zeros(AXES)
    y_N3 = (x_ND - mean_D) @ directions_D3
    return y_N3, (y_N3[fit_F] ** 2).sum(0) / total


def _leading(x_FD: FloatArray) -> FloatArray:
    """The three directions (D, 3) of the largest variance of centered points, by the smaller product."""
    n, width = x_FD.shape
    if width <= n:
        directions_DA = np.linalg.eigh(x_FD.T @ x_FD)[1][:, : -AXES - 1 : -1]
    else:
        squares, left_FF = np.linalg.eigh(x_FD @ x_FD.T)
        lengths = np.sqrt(np.maximum(squares[: -AXES - 1 : -1], 0))
        nonzero = lengths > 1e-7 * max(float(lengths[0]), np.finfo(np.float64).tiny)
        directions_DA = x_FD.T @ left_FF[:, : -AXES - 1 : -1] / np.where(nonzero, lengths, 1)
        directions_DA[:, ~nonzero] = 0
    return _signed(directions_DA)


def _shared_directions(levels: Sequence[FloatArray], fit_F: NDArray[np.int64]) -> FloatArray:
    widths = sorted({x_ND.shape[1] for x_ND in levels})
    if len(widths) > 1:
        raise InvalidRequest(
            f"levels have widths {widths} and a shared basis needs a single one; use basis='own'"
        )
    sum_DD = np.zeros((widths[0], widths[0]))
    for x_ND in levels:
        fit_FD = x_ND[fit_F] - x_ND[fit_F].mean(0)
        sum_DD += fit_FD.T @ fit_FD
    return _signed(np.linalg.eigh(sum_DD)[1][:, : -AXES - 1 : -1])


def _signed(directions_DA: FloatArray) -> FloatArray:
    """Each direction with its largest entry positive; zeros complete three where the width is less."""
    largest_A = np.abs(directions_DA).argmax(0)
    signs_A = np.sign(directions_DA[largest_A, np.arange(directions_DA.shape[1])])
    signed_D3 = np.zeros((len(directions_DA), AXES))
    signed_D3[:, : directions_DA.shape[1]] = directions_DA * np.where(signs_A == 0, 1, signs_A)
    return signed_D3


def _turn_to_next(levels: list[FloatArray], fit_F: NDArray[np.int64]) -> None:
    """Turn every level onto the one above it, from the last but one down."""
    for number in range(len(levels) - 2, -1, -1):
        left_33, _, right_33 = np.linalg.svd(levels[number][fit_F].T @ levels[number + 1][fit_F])
        levels[number] = levels[number] @ left_33 @ right_33


def _beside(work: Callable[[], FloatArray], tick: Callable[[], None]) -> FloatArray:
    """The result of ``work``, which another thread computes while this one calls ``tick``: UMAP calls nothing
    back, and compiles for seconds when it is first used."""
    result: Future[FloatArray] = Future()

    def run() -> None:
        try:
            # The functions that UMAP compiles abort the process if two threads are in them.
            with _ONE_AT_A_TIME:
                result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, name="unmask projection", daemon=True).start()
    while True:
        tick()
        try:
            return result.result(TICK_SECONDS)
        except TimeoutError:
            if result.done():
                raise


def _umap(x_ND: FloatArray, start_N3: FloatArray, fit_F: NDArray[np.int64], seed: int) -> FloatArray:
    import umap

    # UMAP expects a start of this size; its own starts have it too (Kobak and Linderman 2021 on starts).
    spread = float(start_N3.std()) or 1.0
    noise_N3 = generator(seed).normal(scale=1e-3, size=start_N3.shape)
    reducer = umap.UMAP(
        n_components=AXES,
        n_neighbors=min(UMAP_NEIGHBORS, len(x_ND) - 1),
        init=(start_N3 / spread + noise_N3).astype(np.float32),
        random_state=seed,
        n_jobs=1,
    )
    umap_N3 = np.asarray(reducer.fit_transform(x_ND.astype(np.float32)), dtype=np.float64)
    return np.asarray(umap_N3 - umap_N3[fit_F].mean(0))
