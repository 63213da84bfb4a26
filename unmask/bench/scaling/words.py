"""A length-scaling report as sentences; the command line and the page use the same ones."""

from collections.abc import Callable

from unmask.bench.scaling.fit import FittedCurve, IntervalEstimate
from unmask.bench.scaling.report import Longest, Probe, ScalingCurves, ScalingReport
from unmask.bench.scaling.settings import CHOSEN

TIMES = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (86400.0, 3600.0, "h"), (float("inf"), 86400.0, "days"))
MORE_TOKENS = 10**8
"""A predicted length above this is reported as no limit."""


def duration(seconds: float) -> str:
    """Format seconds in a readable unit."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.3g} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    unit, name = next((unit, name) for end, unit, name in TIMES if seconds < end)
    return f"{seconds / unit:,.3g} {name}" if seconds / unit < 1000 else f"{seconds / unit:,.0f} {name}"


def size(value: float) -> str:
    """Format bytes in a readable unit."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= unit:
            return f"{value / unit:,.3g} {name}" if value / unit < 1000 else f"{value / unit:,.0f} {name}"
    return f"{value:.3g} bytes"


def findings(report: ScalingReport) -> tuple[str, ...]:
    """The results as sentences, one or more for each implementation, and notes."""
    said = [sentence for curves in report.curves for sentence in _of_way(report, curves)]
    return (*said, *(f"Note: {note}." for note in report.notes))


def way_title(report: ScalingReport, kernel: str) -> str:
    """The implementation's name; for ``chosen``, with the kernels that ran."""
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
        said.append(f"{title}: memory above the loaded model is {holds}; {_off(curves.memory)}.")
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
    return " + ".join(shown) or "too little to measure"


def _off(found: FittedCurve) -> str:
    return f"the fit is within {found.largest_residual:.0%} at {len(found.lengths)} lengths"


def _square(found: FittedCurve) -> str:
    last = max(found.lengths)
    if found.square_over_line is None or found.square_over_rest is None:
        return f"no quadratic term is visible up to {last:,} tokens: time grows linearly with length"
    if found.line.value == 0:
        return (
            f"no linear term is visible; the quadratic term dominates from "
            f"{_tokens(found.square_over_rest)} on{_beyond(found.square_over_rest.value, last)}"
        )
    sure = "" if found.square_is_seen else " (not certain: the interval of the quadratic term includes 0)"
    return (
        f"the quadratic term exceeds the linear one at {_tokens(found.square_over_line)} and dominates from "
        f"{_tokens(found.square_over_rest)} on{_beyond(found.square_over_rest.value, last)}{sure}"
    )


def _tokens(found: IntervalEstimate) -> str:
    high = "unbounded" if found.high is None else f"{found.high:,.0f}"
    return f"{found.value:,.0f} tokens (95 %: {found.low:,.0f} to {high})"


def _beyond(tokens: float, last: int) -> str:
    return f", beyond the longest measured length, {last:,}" if tokens > last else ""


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
        return f"{size(report.memory_bytes)} of memory set no limit below {MORE_TOKENS:,} tokens"
    high = "unbounded" if longest.high is None else f"{longest.high:,}"
    far = longest.tokens / last
    reach = f", {far:,.1f} times the longest measured" if far > 1 else ""
    return (
        f"the longest text that fits in {size(report.memory_bytes)} has about {longest.tokens:,} tokens "
        f"(95 %: {longest.low:,} to {high}){reach}{takes}"
    )


def _probe(probe: Probe) -> str:
    point = probe.point
    place = "beyond the measured lengths" if probe.beyond_measured else "within the measured lengths"
    begin = f"probe at {point.length:,} tokens, {place}"
    verdicts = {None: "", True: ", as predicted", False: ", contrary to the prediction"}
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
