"""Fit curves to points, predict the longest text that fits, and choose the probe that checks both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unmask.bench.scaling.fit import LEAST_LENGTHS, Fit, IntervalEstimate, at, fit, reach
from unmask.bench.scaling.report import Longest, Probe, ScalingCurves, ScalingPoint, Within
from unmask.bench.scaling.settings import PROBE_SHARE, WITHIN_SECONDS

LEAST_BYTES = 4.0 * 2**20
"""Resolution of memory measurements: threads count their pages in batches."""
INSIDE_SHARE = 0.75
"""Fraction of the longest measured length at which a probe is placed that cannot go beyond it."""
SLACK = 1.3
"""Factor by which a probe may exceed its predicted time."""


@dataclass(frozen=True)
class Found:
    """The curves of one implementation, with the bootstrap draws behind the intervals."""

    shown: ScalingCurves
    time: Fit | None
    memory: Fit | None

    @property
    def kernel(self) -> str:
        """The implementation."""
        return self.shown.kernel


def curves_of(
    kernel: str, points: Sequence[ScalingPoint], memory_bytes: int | None, max_tokens: int | None, seed: int
) -> Found:
    """Fit the curves of one implementation, if it has enough points, and derive predictions from them.

    Args:
        kernel: the implementation.
        points: its points, by length.
        memory_bytes: memory limit of a process; None where unknown.
        max_tokens: size of the position table; None without a limit.
        seed: seed of the bootstrap draws.
    """
    timed = [(point.length, point.repeats) for point in points if point.repeats]
    sized = [(point.length, (float(point.peak_bytes),)) for point in points if point.peak_bytes is not None]
    rests = [point.resting_bytes for point in points if point.resting_bytes is not None]
    why_not = "" if len(timed) >= LEAST_LENGTHS else _too_few(len(timed), points)
    time = None if why_not else fit(timed, seed=seed)
    enough = len(sized) >= LEAST_LENGTHS and any(values[0] > 0 for _, values in sized)
    memory = fit(sized, least=LEAST_BYTES, seed=seed) if enough else None
    resting = max(rests) if rests else None
    longest = _longest(memory, time, resting, memory_bytes, max_tokens)
    curves = ScalingCurves(
        kernel=kernel,
        time=None if time is None else time.shown,
        memory=None if memory is None else memory.shown,
        why_not=why_not,
        resting_bytes=resting,
        longest=longest,
        within=() if time is None else _within(time, max_tokens),
        probe=None,
    )
    return Found(curves, time, memory)


def _too_few(lengths: int, points: Sequence[ScalingPoint]) -> str:
    """Explain why there is no curve: how many lengths were measured, and what ended the series."""
    ended = next((point for point in points if not point.measured), None)
    reason = "" if ended is None else f" (at {ended.length:,}: {ended.note})"
    return f"{lengths} lengths were measured{reason}; a curve needs {LEAST_LENGTHS}"


def _longest(
    memory: Fit | None,
    time: Fit | None,
    resting: int | None,
    memory_bytes: int | None,
    max_tokens: int | None,
) -> Longest | None:
    """The longest text by memory available beyond the loaded model, or by the position table if that is
    shorter."""
    if memory is None or memory_bytes is None or resting is None:
        return None
    reached = reach(memory, max(0, memory_bytes - resting))
    if max_tokens is not None and (reached is None or reached.value >= max_tokens):
        seconds = None if time is None else at(time, max_tokens)
        return Longest(max_tokens, max_tokens, max_tokens, "positions", seconds)
    if reached is None:
        return None
    tokens = math.floor(reached.value)
    high = None if reached.high is None else math.floor(reached.high)
    return Longest(
        tokens, math.floor(reached.low), high, "memory", None if time is None else at(time, tokens)
    )


def _within(time: Fit, max_tokens: int | None) -> tuple[Within, ...]:
    limits = []
    for seconds in WITHIN_SECONDS:
        tokens = reach(time, seconds)
        if tokens is not None and tokens.value >= 1 and (max_tokens is None or tokens.value <= max_tokens):
            limits.append(Within(seconds, tokens))
    return tuple(limits)


def expected_seconds(before: Sequence[ScalingPoint], length: int) -> float:
    """Estimate the process time of a longer text with two calls; 0 where nothing shorter was measured.

    Time is extrapolated with the power of N between the last two lengths, clamped to 1 to 2.2.
    """
    timed = [point for point in before if point.repeats]
    if not timed:
        return 0.0
    last = timed[-1]
    power = 2.0
    if len(timed) > 1:
        ratio = max(last.repeats) / min(timed[-2].repeats)
        power = min(2.2, max(1.0, math.log(ratio) / math.log(last.length / timed[-2].length)))
    calls: float = max(last.repeats) * (len(last.repeats) + 1)
    work: float = 2 * max(last.repeats) * (length / last.length) ** power
    return max(0.0, last.process_seconds - calls) + work


def probe_length(
    curves: Found, points: Sequence[ScalingPoint], max_tokens: int | None, seconds: float
) -> tuple[int, str] | None:
    """Choose the length to probe, and say why it is not closer to the longest that fits (empty if it is
    close).

    None if there is no curve, or not enough time for any useful length.

    Args:
        curves: the curves with the draws behind them.
        points: the points that the curves were fitted to.
        max_tokens: size of the position table.
        seconds: time for the probe, loading included.
    """
    if curves.time is None:
        return None
    timed = [point for point in points if point.repeats]
    measured, last = {point.length for point in timed}, timed[-1].length
    loading = max(point.process_seconds - sum(point.repeats) for point in timed[:LEAST_LENGTHS])
    affordable = curves.time.shown.curve.reaches(max(0.0, seconds - loading) / (2 * SLACK))
    target, why = _wanted(curves.shown.longest, last, max_tokens)
    if affordable < target:
        target, why = affordable, f"a longer text would take more than the remaining {seconds:,.0f} s"
    if target <= last:
        inside = INSIDE_SHARE * last
        if affordable < inside:
            return None
        target = target if target > inside else inside
    length = math.floor(target)
    while length in measured:
        length -= 1
    return (length, why) if length >= 1 else None


def _wanted(longest: Longest | None, last: int, max_tokens: int | None) -> tuple[float, str]:
    """The length to probe without a time limit, and why it is not closer to the longest that fits."""
    if longest is None:
        target, why = 2.0 * last, "the longest text that fits is unknown"
    else:
        by_positions = longest.ends_by == "positions"
        target = PROBE_SHARE * longest.tokens
        why = "the position table is the limit, not memory" if by_positions else ""
    return (target if max_tokens is None else min(target, float(max_tokens))), why


def probed(curves: Found, point: ScalingPoint, why: str) -> ScalingCurves:
    """The curves together with the probe and what they had predicted for it."""
    longest = curves.shown.longest
    seconds = None if curves.time is None else at(curves.time, point.length)
    size = None if curves.memory is None else at(curves.memory, point.length)
    spread = point.seconds
    fitted = {"measured": True, "did not fit": False}.get(point.outcome)
    expected = longest is None or point.length <= longest.tokens
    probe = Probe(
        point=replace(
            point,
            fitted_seconds=None if seconds is None else seconds.value,
            fitted_bytes=None if size is None else size.value,
        ),
        share_of_longest=point.length / longest.tokens if longest is not None and longest.tokens else None,
        why=why,
        beyond_measured=curves.time is not None and point.length > max(curves.time.shown.lengths),
        predicted_seconds=seconds,
        predicted_bytes=size,
        seconds_error=None if spread is None else _error(spread.median, seconds),
        bytes_error=None if point.peak_bytes is None else _error(point.peak_bytes, size),
        fits_as_predicted=None if fitted is None else fitted == expected,
    )
    return replace(curves.shown, probe=probe)


def _error(measured: float, predicted: IntervalEstimate | None) -> float | None:
    if predicted is None or predicted.value <= 0:
        return None
    return measured / predicted.value - 1
