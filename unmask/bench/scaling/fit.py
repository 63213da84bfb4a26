"""Fit a curve a + b N + c N^2 with non-negative coefficients and confidence intervals.

The quadratic term comes from full attention; windows of fixed width, feed-forward networks and norms are
linear in N; a is the fixed cost of a call. Negative coefficients have no such meaning, so they are not
allowed, and a term that the measurements do not support is exactly 0.

Axes: P measured lengths; S draws; C coefficients.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_LENGTHS = 4
"""One more than the number of coefficients: a curve fits fewer points exactly, true or not."""
DRAWS = 400
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True)
class IntervalEstimate:
    """A value and its 95 % interval. ``high`` is None if draws are infinite."""

    value: float
    low: float
    high: float | None


@dataclass(frozen=True)
class Curve:
    """``constant + line * N + square * N^2``, in the unit of what was fitted."""

    constant: float
    line: float
    square: float

    def __call__(self, tokens: float) -> float:
        """The value at a length."""
        return self.constant + tokens * (self.line + tokens * self.square)

    def reaches(self, value: float) -> float:
        """The largest length at which the curve is not above ``value``; 0 if none, infinity if all are."""
        above = value - self.constant
        if above < 0:
            return 0.0
        if self.line == 0 and self.square == 0:
            return math.inf
        # This form of the root has no cancellation and also holds for c = 0.
        return 2 * above / (self.line + math.sqrt(self.line**2 + 4 * self.square * above))

    @property
    def square_over_line(self) -> float:
        """The length above which c N^2 exceeds b N; infinity without a quadratic term."""
        return self.line / self.square if self.square > 0 else math.inf

    @property
    def square_over_rest(self) -> float:
        """The length above which c N^2 exceeds a + b N; infinity without a quadratic term."""
        if self.square == 0:
            return math.inf
        root = math.sqrt(self.line**2 + 4 * self.constant * self.square)
        return (self.line + root) / (2 * self.square)


@dataclass(frozen=True)
class FittedCurve:
    """A curve through measured lengths, as a report shows it."""

    constant: IntervalEstimate
    line: IntervalEstimate
    square: IntervalEstimate
    square_over_line: IntervalEstimate | None
    """The length above which c N^2 exceeds b N; None without a quadratic term."""
    square_over_rest: IntervalEstimate | None
    """The length above which c N^2 exceeds a + b N; None without a quadratic term."""
    largest_residual: float
    """Largest error of the curve at a measured length, relative to the measured value."""
    lengths: tuple[int, ...]

    @property
    def curve(self) -> Curve:
        """The curve itself."""
        return Curve(self.constant.value, self.line.value, self.square.value)

    @property
    def square_is_seen(self) -> bool:
        """Whether the interval of c excludes 0."""
        return self.square.low > 0


@dataclass(frozen=True)
class Fit:
    """A curve, and curves through resampled measurements from which the intervals are computed."""

    shown: FittedCurve
    draws: tuple[Curve, ...]


def fit(measured: Sequence[tuple[int, Sequence[float]]], *, least: float = 0.0, seed: int = 0) -> Fit:
    """Fit the curve to medians by least squares of relative residuals.

    Residuals are relative because an error of 10 % matters as much at 64 tokens as at 8,192; an absolute fit
    is dominated by the longest text. Intervals are percentiles over bootstrap draws: in each, the repeats of
    every length are resampled, their median is shifted by the residual of a random length (scaled for the
    fitted coefficients), and the curve is fitted again.

    Args:
        measured: each length with one or several measured values.
        least: residuals are relative to at least this value, the resolution of the measurement.
        seed: seed of the draws.

    Raises:
        ValueError: fewer than `LEAST_LENGTHS` lengths, or a value that is negative or not finite.
    """
    tokens_P = np.array([tokens for tokens, _ in measured], dtype=np.float64)
    y_P = np.array([np.median(values) for _, values in measured], dtype=np.float64)
    _check(tokens_P, y_P)
    scale_P = np.maximum(y_P, least)
    scale_P[scale_P == 0] = y_P[y_P > 0].min()
    (curve,) = _least_squares(tokens_P, y_P[:, None], scale_P)
    fitted_P = np.array([curve(tokens) for tokens in tokens_P])
    residual_P = (y_P - fitted_P) / scale_P
    used = sum(value > 0 for value in (curve.constant, curve.line, curve.square))
    wide_P = residual_P * math.sqrt(len(y_P) / max(1, len(y_P) - used))
    random = np.random.default_rng(seed)
    again_PS = np.stack(
        [np.median(random.choice(values, (len(values), DRAWS)), axis=0) for _, values in measured]
    )
    moved_PS = (fitted_P - y_P)[:, None] + again_PS
    moved_PS += scale_P[:, None] * random.choice(wide_P, moved_PS.shape)
    draws = _least_squares(tokens_P, np.maximum(moved_PS, 0.0), scale_P)
    shown = FittedCurve(
        constant=_estimate(curve.constant, [draw.constant for draw in draws]),
        line=_estimate(curve.line, [draw.line for draw in draws]),
        square=_estimate(curve.square, [draw.square for draw in draws]),
        square_over_line=_crossing(curve.square_over_line, [draw.square_over_line for draw in draws]),
        square_over_rest=_crossing(curve.square_over_rest, [draw.square_over_rest for draw in draws]),
        largest_residual=float(np.abs(residual_P).max()),
        lengths=tuple(int(tokens) for tokens in tokens_P),
    )
    return Fit(shown, tuple(draws))


def _check(tokens_P: NDArray[np.float64], y_P: NDArray[np.float64]) -> None:
    if len(set(tokens_P)) < LEAST_LENGTHS:
        raise ValueError(f"{len(set(tokens_P))} lengths were measured; a curve needs {LEAST_LENGTHS}")
    if not np.isfinite(y_P).all() or (y_P < 0).any() or (y_P == 0).all():
        raise ValueError("measured values must be finite, not negative and not all 0")


def at(fitted: Fit, tokens: float) -> IntervalEstimate:
    """The curve's value at a length, with the interval of its draws."""
    return _estimate(fitted.shown.curve(tokens), [draw(tokens) for draw in fitted.draws])


def reach(fitted: Fit, value: float) -> IntervalEstimate | None:
    """The largest length at which the curve is not above ``value``; None if the curve never gets there."""
    return _crossing(fitted.shown.curve.reaches(value), [draw.reaches(value) for draw in fitted.draws])


def _least_squares(
    tokens_P: NDArray[np.float64], y_PS: NDArray[np.float64], scale_P: NDArray[np.float64]
) -> list[Curve]:
    """For each column of values, the best set of terms whose unconstrained solution is non-negative.

    The constrained minimum is the unconstrained minimum over its non-zero terms, so trying all seven sets
    finds it without tolerances or iteration.
    """
    top = tokens_P.max()
    terms_PC = np.stack([np.ones_like(tokens_P), tokens_P / top, (tokens_P / top) ** 2], 1) / scale_P[:, None]
    target_PS = y_PS / scale_P[:, None]
    whole_S = (target_PS**2).sum(0)
    best_CS, error_S = np.zeros((3, y_PS.shape[1])), whole_S.copy()
    for count in (1, 2, 3):
        for chosen in itertools.combinations(range(3), count):
            solved_CS, *_ = np.linalg.lstsq(terms_PC[:, chosen], target_PS, rcond=None)
            left_S = ((terms_PC[:, chosen] @ solved_CS - target_PS) ** 2).sum(0)
            # Rounding errors alone must not add a term.
            better_S = (solved_CS >= 0).all(0) & (left_S < error_S - 1e-12 * whole_S)
            error_S[better_S] = left_S[better_S]
            whole_CS = np.zeros_like(best_CS)
            whole_CS[list(chosen)] = solved_CS
            best_CS[:, better_S] = whole_CS[:, better_S]
    return [Curve(float(a), float(b / top), float(c / top**2)) for a, b, c in best_CS.T]


def _estimate(value: float, draws: Sequence[float]) -> IntervalEstimate:
    low, high = np.quantile(draws, INTERVAL, method="inverted_cdf")
    # The interval contains the value, even if the draws lie on one side of a coefficient held at 0.
    low, high = min(float(low), value), max(float(high), value)
    return IntervalEstimate(value, low, high if math.isfinite(high) else None)


def _crossing(value: float, draws: Sequence[float]) -> IntervalEstimate | None:
    return _estimate(value, draws) if math.isfinite(value) else None
