"""A wall in sentences, for people: the command line and the page say the same."""

from collections.abc import Callable

from unmask.measure.scaling.fit import FittedCurve, IntervalEstimate
from unmask.measure.scaling.report import Longest, Probe, ScalingCurves, ScalingReport
from unmask.measure.scaling.settings import CHOSEN

TIMES = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (86400.0, 3600.0, "h"), (float("inf"), 86400.0, "days"))
MORE_TOKENS = 10**8
"""Beyond so many a number of tokens says "no wall in sight" more than it says a length."""


def duration(seconds: float) -> str:
    """In the unit that it is read in."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.3g} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    unit, name = next((unit, name) for end, unit, name in TIMES if seconds < end)
    return f"{seconds / unit:,.3g} {name}" if seconds / unit < 1000 else f"{seconds / unit:,.0f} {name}"


def size(value: float) -> str:
    """Bytes in the unit that they are read in."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= unit:
            return f"{value / unit:,.3g} {name}" if value / unit < 1000 else f"{value / unit:,.0f} {name}"
    return f"{value:.3g} bytes"


def findings(report: ScalingReport) -> tuple[str, ...]:
    """What the curves say, a sentence or more for each way, and what a reader must know."""
    said = [sentence for curves in report.curves for sentence in _of_way(report, curves)]
    return (*said, *(f"Note: {note}." for note in report.notes))


def way_title(report: ScalingReport, kernel: str) -> str:
    """The way, and for the chosen one which kernels that was."""
    if kernel != CHOSEN:
        return kernel
    ran = [name for point in report.points if point.kernel == kernel for name in point.ran]
    return f"{kernel} ({', '.join(dict.fromkeys(ran))})" if ran else kernel


def _of_way(report: ScalingReport, curves: ScalingCurves) -> list[str]:
    title = way_title(report, curves.kernel)
    if curves.time is None:
        return [f"{title}: no curve: {curves.why_not}."]
    said = [f"{title}: a call takes {_formula(curves.time, duration)}; {_off(curves.time)}."]
    said.append(f"{title}: {_square(curves.time)}.")
    if curves.memory is not None:
        holds = _formula(curves.memory, size)
        said.append(f"{title}: above the loaded model it holds {holds}; {_off(curves.memory)}.")
    if curves.longest is not None:
        said.append(f"{title}: {_longest(report, curves, curves.longest)}.")
    if curves.within:
        parts = [f"{duration(one.seconds)} up to {one.tokens.value:,.0f} tokens" for one in curves.within]
        said.append(f"{title}: a call stays within {', '.join(parts)}.")
    if curves.probe is not None:
        said.append(f"{title}: {_probe(curves.probe)}.")
    return said


def _formula(found: FittedCurve, write: Callable[[float], str]) -> str:
    curve = found.curve
    terms = ((curve.constant, ""), (curve.line, " x N"), (curve.square, " x N²"))
    shown = [f"{write(value)}{power}" for value, power in terms if value > 0]
    return " + ".join(shown) or "nothing that can be measured"


def _off(found: FittedCurve) -> str:
    return f"the curve is off by at most {found.largest_residual:.0%} at {len(found.lengths)} lengths"


def _square(found: FittedCurve) -> str:
    last = max(found.lengths)
    if found.square_over_line is None or found.square_over_rest is None:
        return f"no square is seen up to {last:,} tokens: time grows with the length alone"
    if found.line.value == 0:
        return (
            f"beside the square no line is seen; the square is more than all the rest from "
            f"{_tokens(found.square_over_rest)} on{_beyond(found.square_over_rest.value, last)}"
        )
    sure = "" if found.square_is_seen else " (not certain: the interval of the square reaches 0)"
    return (
        f"the square overtakes the line at {_tokens(found.square_over_line)}, and all the rest at "
        f"{_tokens(found.square_over_rest)}{_beyond(found.square_over_rest.value, last)}{sure}"
    )


def _tokens(found: IntervalEstimate) -> str:
    high = "no end" if found.high is None else f"{found.high:,.0f}"
    return f"{found.value:,.0f} tokens (95 %: {found.low:,.0f} to {high})"


def _beyond(tokens: float, last: int) -> str:
    return f", which is beyond the {last:,} that were measured" if tokens > last else ""


def _longest(report: ScalingReport, curves: ScalingCurves, longest: Longest) -> str:
    takes = (
        ""
        if longest.seconds is None
        else f"; a call on it would take about {duration(longest.seconds.value)}"
    )
    if longest.ends_by == "positions":
        return f"every length fits up to the end of the position table, {longest.tokens:,} tokens{takes}"
    assert report.memory_bytes is not None
    last = 1 if curves.memory is None else max(curves.memory.lengths)
    if longest.tokens > MORE_TOKENS:
        return f"memory of {size(report.memory_bytes)} sets no limit below {MORE_TOKENS:,} tokens"
    high = "no end" if longest.high is None else f"{longest.high:,}"
    far = longest.tokens / last
    reach = f", {far:,.1f} times the longest that was measured" if far > 1 else ""
    return (
        f"the longest text that fits in {size(report.memory_bytes)} has about {longest.tokens:,} tokens "
        f"(95 %: {longest.low:,} to {high}){reach}{takes}"
    )


def _probe(probe: Probe) -> str:
    point = probe.point
    place = "beyond the measured lengths" if probe.beyond_measured else "within the measured lengths"
    begin = f"probe at {point.length:,} tokens, {place}"
    verdicts = {None: "", True: ", as predicted", False: ", against the prediction"}
    verdict = verdicts[probe.fits_as_predicted]
    if not point.measured:
        return f"{begin}: {point.outcome}{verdict} ({point.note})"
    parts = []
    if point.seconds is not None and probe.seconds_error is not None:
        parts.append(f"{duration(point.seconds.median)}, {_more(probe.seconds_error)}")
    if point.peak_bytes is not None and probe.bytes_error is not None:
        parts.append(f"{size(point.peak_bytes)}, {_more(probe.bytes_error)}")
    return f"{begin}: {'; '.join(parts)}; it fits{verdict}{f' ({probe.why})' if probe.why else ''}"


def _more(error: float) -> str:
    return f"{abs(error):.0%} {'more' if error >= 0 else 'less'} than predicted"
