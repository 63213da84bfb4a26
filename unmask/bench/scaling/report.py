"""A length-scaling report: measured lengths, fitted curves, predicted limits and the probe of them; and the
comparison of two reports of one encoder: two machines, two versions, two settings.

The command line and the page share its sentences.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from unmask.base.files import read_bytes, whole_file
from unmask.bench.benchmark_model import ModelInfo
from unmask.bench.machine import Machine
from unmask.bench.scaling.fit import FittedCurve, IntervalEstimate
from unmask.bench.scaling.settings import CHOSEN
from unmask.bench.timing import Spread
from unmask.errors import InvalidRequest

Outcome = Literal["measured", "did not fit", "no time", "refused", "failed"]
"""Of one implementation at one length. ``did not fit``: out of memory; ``no time``: the time budget ended,
before or during it; ``refused``: the implementation does not support this; ``failed``: anything else."""


TIMES = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (86400.0, 3600.0, "h"), (float("inf"), 86400.0, "days"))
MORE_TOKENS = 10**8
"""A predicted length above this is reported as no limit."""


@dataclass(frozen=True)
class ScalingPoint:
    """One attention implementation at one length, measured in its own process."""

    kernel: str
    """The implementation: ``chosen``, the name of a kernel, or of another library."""
    length: int
    """Tokens of the one sequence."""
    outcome: Outcome
    note: str = ""
    """Why it was not measured; empty if it was."""
    ran: tuple[str, ...] = ()
    """The kernels that ran, over all layers; empty for other libraries."""
    repeats: tuple[float, ...] = ()
    """Seconds of each timed call, after a warm-up."""
    peak_bytes: int | None = None
    """Above what the process held with the model loaded; None where the system does not report it."""
    resting_bytes: int | None = None
    """Memory held with the model loaded and warmed up."""
    process_seconds: float = 0.0
    """From the start of the process to its end, loading included."""
    fitted_seconds: float | None = None
    fitted_bytes: float | None = None

    @property
    def seconds(self) -> Spread | None:
        """Median, lowest and highest of the timed calls."""
        return Spread.of(self.repeats) if self.repeats else None

    @property
    def measured(self) -> bool:
        """Whether the point was measured."""
        return self.outcome == "measured"


@dataclass(frozen=True)
class Within:
    """The longest text processed in a given time, by the time curve."""

    seconds: float
    tokens: IntervalEstimate


@dataclass(frozen=True)
class Longest:
    """The longest text that fits, by the memory curve."""

    tokens: int
    low: int
    high: int | None
    """Upper end of the 95 % interval; None where it is unbounded."""
    ends_by: Literal["memory", "positions"]
    seconds: IntervalEstimate | None
    """Time of a call on it, by the time curve."""


@dataclass(frozen=True)
class Probe:
    """One more length, measured after the curves were fitted and not used in the fit."""

    point: ScalingPoint
    share_of_longest: float | None
    """Fraction of the predicted longest text; None if there is no prediction."""
    why: str
    """Why it is not at `unmask.bench.scaling.settings.PROBE_SHARE` of that length; empty if it is."""
    beyond_measured: bool
    """Whether it is longer than all lengths that the curves were fitted to."""
    predicted_seconds: IntervalEstimate | None
    predicted_bytes: IntervalEstimate | None
    seconds_error: float | None
    """Measured / predicted - 1."""
    bytes_error: float | None
    fits_as_predicted: bool | None
    """Whether this length fitting in memory or not was predicted; None if the time ended first."""


@dataclass(frozen=True)
class ScalingCurves:
    """What follows from the points of one implementation."""

    kernel: str
    time: FittedCurve | None
    """In seconds."""
    memory: FittedCurve | None
    """In bytes above the loaded model."""
    why_not: str
    """Why there is no curve; empty where there is."""
    resting_bytes: int | None
    longest: Longest | None
    within: tuple[Within, ...]
    probe: Probe | None


@dataclass(frozen=True)
class ScalingReport:
    """The result of `unmask.bench.scaling.run.run_scaling`."""

    protocol: Literal["scaling"]
    measured: ModelInfo
    machine: Machine
    dtype: str
    device: str
    memory_bytes: int | None
    """Memory limit of one process, including the model; None where unknown."""
    memory_from: str
    """How that limit was determined."""
    seconds_budget: float
    seconds_spent: float
    """In this run; points from an earlier run are not counted."""
    repeats: int
    seed: int
    points: tuple[ScalingPoint, ...]
    curves: tuple[ScalingCurves, ...]
    notes: tuple[str, ...]
    """Remarks that the numbers do not show."""

    def curves_of(self, kernel: str) -> ScalingCurves:
        """The curves of one implementation."""
        return next(curves for curves in self.curves if curves.kernel == kernel)


def to_plain(report: ScalingReport) -> dict[str, Any]:
    """The report as JSON values; each point also has the median, lowest and highest seconds."""
    value = asdict(report)
    for point, measured in zip(value["points"], report.points, strict=True):
        point["seconds"] = None if measured.seconds is None else asdict(measured.seconds)
    return value


def from_plain(value: object, where: str = "the report") -> ScalingReport:
    """Read what `to_plain` returned.

    Raises:
        InvalidRequest: it is not a length-scaling report, or is one of another version.
    """
    report = read_value(ScalingReport, value, where)
    assert isinstance(report, ScalingReport)
    return report


def write_report(report: ScalingReport, path: Path) -> None:
    """Write the report as JSON, atomically.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_file(path) as partial:
        text = json.dumps(to_plain(report), indent=2, allow_nan=False)
        partial.write_text(text + "\n", encoding="utf-8", newline="\n")


def read_report(path: Path) -> ScalingReport:
    """Read a report that `write_report` wrote.

    Raises:
        InvalidRequest: there is no such file, or it is not a length-scaling report.
    """
    content = read_bytes(path, InvalidRequest)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}") from None
    return from_plain(value, str(path))


def fitted(point: ScalingPoint, curves: ScalingCurves) -> ScalingPoint:
    """The point with the curves' values at its length."""
    return replace(
        point,
        fitted_seconds=None if curves.time is None else curves.time.curve(point.length),
        fitted_bytes=None if curves.memory is None else curves.memory.curve(point.length),
    )


def read_value(kind: Any, value: object, where: str) -> Any:
    """Read a value of a report, of any type; keys that are not fields, such as ``seconds``, are ignored.

    Raises:
        InvalidRequest: the value has another type.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        kind = next(member for member in get_args(kind) if member is not NoneType)
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_fields(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(read_value(inner[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if not _is_plain(kind, value):
        raise InvalidRequest(f"{where} is {value!r}, so this is not a report that unmask scaling wrote")
    return float(value) if kind is float else value  # type: ignore[arg-type]


def _is_plain(kind: Any, value: object) -> bool:
    """Whether JSON can represent a value of this type directly."""
    origin = get_origin(kind)
    if origin is Mapping:
        return isinstance(value, dict)
    if origin is Literal:
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int)


def _read_fields(kind: type, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{where} is not a JSON object, so this is not a report that unmask scaling wrote"
        )
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in value]
    if missing:
        raise InvalidRequest(
            f"{where} has no {missing[0]}, so this is not a report of this version; measure again"
        )
    return kind(**{name: read_value(types[name], value[name], f"{where}.{name}") for name in names})


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
    sentences = [sentence for curves in report.curves for sentence in _of_way(report, curves)]
    return (*sentences, *(f"Note: {note}." for note in report.notes))


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
    sentences = [f"{title}: a call takes {_formula(curves.time, duration)}; {_off(curves.time)}."]
    sentences.append(f"{title}: {_square(curves.time)}.")
    if curves.memory is not None:
        holds = _formula(curves.memory, size)
        sentences.append(f"{title}: memory above the loaded model is {holds}; {_off(curves.memory)}.")
    if curves.longest is not None:
        sentences.append(f"{title}: {_longest(report, curves, curves.longest)}.")
    if curves.within:
        parts = [
            f"{duration(within.seconds)} up to {within.tokens.value:,.0f} tokens" for within in curves.within
        ]
        sentences.append(f"{title}: a call stays within {', '.join(parts)}.")
    if curves.probe is not None:
        sentences.append(f"{title}: {_probe(curves.probe)}.")
    return sentences


def _formula(fit: FittedCurve, write: Callable[[float], str]) -> str:
    curve = fit.curve
    terms = ((curve.constant, ""), (curve.line, " x N"), (curve.square, " x N²"))
    terms_shown = [f"{write(value)}{power}" for value, power in terms if value > 0]
    return " + ".join(terms_shown) or "too little to measure"


def _off(fit: FittedCurve) -> str:
    return f"the fit is within {fit.largest_residual:.0%} at {len(fit.lengths)} lengths"


def _square(fit: FittedCurve) -> str:
    last = max(fit.lengths)
    if fit.square_over_line is None or fit.square_over_rest is None:
        return f"no quadratic term is visible up to {last:,} tokens: time grows linearly with length"
    if fit.line.value == 0:
        return (
            f"no linear term is visible; the quadratic term dominates from "
            f"{_tokens(fit.square_over_rest)} on{_beyond(fit.square_over_rest.value, last)}"
        )
    sure = "" if fit.square_is_seen else " (not certain: the interval of the quadratic term includes 0)"
    return (
        f"the quadratic term exceeds the linear one at {_tokens(fit.square_over_line)} and dominates from "
        f"{_tokens(fit.square_over_rest)} on{_beyond(fit.square_over_rest.value, last)}{sure}"
    )


def _tokens(estimate: IntervalEstimate) -> str:
    high = "unbounded" if estimate.high is None else f"{estimate.high:,.0f}"
    return f"{estimate.value:,.0f} tokens (95 %: {estimate.low:,.0f} to {high})"


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


@dataclass(frozen=True)
class Row:
    """One implementation at one length in both reports."""

    kernel: str
    length: int
    left: Spread
    right: Spread
    times: Spread
    """Ratio of left to right seconds: of the medians, and at the extremes of both spreads."""
    left_bytes: int | None
    right_bytes: int | None


@dataclass(frozen=True)
class Crossing:
    """Where the quadratic term dominates, and the longest text that fits."""

    kernel: str
    left: IntervalEstimate | None
    right: IntervalEstimate | None
    left_longest: int | None
    right_longest: int | None


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    cards: tuple[tuple[str, str, str], ...]
    """Properties of both machines: name, left, right."""
    rows: tuple[Row, ...]
    crossings: tuple[Crossing, ...]


def compare(left: ScalingReport, right: ScalingReport) -> Comparison:
    """Compare the points measured in both reports.

    Raises:
        InvalidRequest: the reports are of different encoders, or share no point.
    """
    encoders = [
        (report.measured.name, report.measured.layers, report.measured.width, report.measured.parameter_count)
        for report in (left, right)
    ]
    if encoders[0] != encoders[1]:
        raise InvalidRequest(
            f"one report is of {left.measured.title} and the other of {right.measured.title}; "
            "compare two reports of the same encoder"
        )
    others = {(point.kernel, point.length): point for point in right.points}
    rows = []
    for point in left.points:
        other = others.get((point.kernel, point.length))
        if other is None or point.seconds is None or other.seconds is None:
            continue
        a, b = point.seconds, other.seconds
        times = Spread(a.median / b.median, a.lowest / b.highest, a.highest / b.lowest)
        rows.append(Row(point.kernel, point.length, a, b, times, point.peak_bytes, other.peak_bytes))
    if not rows:
        raise InvalidRequest(
            "the two reports share no attention implementation at the same length; measure the same --lengths"
        )
    return Comparison(_cards(left, right), tuple(rows), _crossings(left, right))


def _cards(left: ScalingReport, right: ScalingReport) -> tuple[tuple[str, str, str], ...]:
    def said(report: ScalingReport) -> dict[str, str]:
        machine = report.machine
        memory = "unknown" if machine.memory_gib is None else f"{machine.memory_gib} GiB"
        return {
            "processor": machine.processor,
            "accelerator": machine.accelerator or "none",
            "device": report.device,
            "cores": str(machine.cores),
            "threads": str(machine.threads),
            "memory": memory,
            "number format": report.dtype,
            "system": machine.system,
            "Python": machine.python,
            "unmask": f"{machine.unmask} {(machine.commit or '')[:10]}".strip(),
            "torch": machine.versions.get("torch", "unknown"),
            "date": machine.date_utc[:10],
        }

    left_card, other = said(left), said(right)
    return tuple((name, left_card[name], other[name]) for name in left_card)


def _crossings(left: ScalingReport, right: ScalingReport) -> tuple[Crossing, ...]:
    others = {curves.kernel: curves for curves in right.curves}
    crossings = []
    for one in left.curves:
        other = others.get(one.kernel)
        if other is None or one.time is None or other.time is None:
            continue
        crossings.append(
            Crossing(
                kernel=one.kernel,
                left=one.time.square_over_rest,
                right=other.time.square_over_rest,
                left_longest=None if one.longest is None else one.longest.tokens,
                right_longest=None if other.longest is None else other.longest.tokens,
            )
        )
    return tuple(crossings)
