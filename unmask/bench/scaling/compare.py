"""Compare two length-scaling reports of one encoder: two machines, two versions, two settings."""

from dataclasses import dataclass

from unmask.bench.scaling.fit import IntervalEstimate
from unmask.bench.scaling.report import ScalingReport
from unmask.bench.timing import Spread
from unmask.errors import InvalidRequest


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
        (one.measured.name, one.measured.layers, one.measured.width, one.measured.parameter_count)
        for one in (left, right)
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

    one, other = said(left), said(right)
    return tuple((name, one[name], other[name]) for name in one)


def _crossings(left: ScalingReport, right: ScalingReport) -> tuple[Crossing, ...]:
    others = {curves.kernel: curves for curves in right.curves}
    found = []
    for one in left.curves:
        other = others.get(one.kernel)
        if other is None or one.time is None or other.time is None:
            continue
        found.append(
            Crossing(
                kernel=one.kernel,
                left=one.time.square_over_rest,
                right=other.time.square_over_rest,
                left_longest=None if one.longest is None else one.longest.tokens,
                right_longest=None if other.longest is None else other.longest.tokens,
            )
        )
    return tuple(found)
