"""Length scaling as an SVG: time and memory over length on log-log axes, with fitted curves.

Written by hand, so that it needs no library and the page can show the same picture. Colors are attributes
rather than a style sheet, so that a page's policy against inline styles does not remove them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from unmask.base.files import whole_file
from unmask.bench.scaling.fit import FittedCurve
from unmask.bench.scaling.report import ScalingCurves, ScalingPoint, ScalingReport, duration, size, way_title
from unmask.errors import InvalidRequest

Theme = Literal["light", "dark"]
INKS = {
    "light": {"paper": "#FFFFFF", "ink": "#222222", "faint": "#666666", "grid": "#E3E3E3"},
    "dark": {"paper": "#16181D", "ink": "#ECECEC", "faint": "#A3A7AE", "grid": "#33373F"},
}
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
"""From Okabe and Ito (2008); each implementation also has its own marker, so color is not needed."""
SHAPES = ("circle", "square", "up", "diamond", "down", "cross")
WIDTH, TOP, PANEL, BOTTOM = 960, 62, 330, 84
LEFTS, PANEL_WIDTH = (74, 554), 380
LEGEND_LINE, STEPS = 18, 64
KEY = (
    "dashed line: beyond what was measured · hollow: a probe not used in the fit · "
    "ring: the quadratic term dominates from here on · ×: did not fit"
)


@dataclass(frozen=True)
class _Axes:
    """Maps tokens and values to coordinates in one panel."""

    left: float
    top: float
    lengths: tuple[float, float]
    values: tuple[float, float]

    def x(self, tokens: float) -> float:
        return self.left + PANEL_WIDTH * _share(tokens, self.lengths)

    def y(self, value: float) -> float:
        return self.top + PANEL * (1 - _share(value, self.values))


@dataclass(frozen=True)
class _Panel:
    """What one panel shows."""

    title: str
    write: Callable[[float], str]
    value: Callable[[ScalingPoint], float | None]
    spread: Callable[[ScalingPoint], tuple[float, float] | None]
    curve: Callable[[ScalingCurves], FittedCurve | None]
    steps: Sequence[float]
    """Candidate values for grid lines."""


SECONDS = _Panel(
    "seconds of a call",
    duration,
    lambda point: None if point.seconds is None else point.seconds.median,
    lambda point: None if point.seconds is None else (point.seconds.lowest, point.seconds.highest),
    lambda curves: curves.time,
    tuple(step * 10.0**power for power in range(-6, 7) for step in (1, 3)),
)
BYTES = _Panel(
    "peak memory above the loaded model",
    size,
    lambda point: None if not point.peak_bytes else float(point.peak_bytes),
    lambda point: None,
    lambda curves: curves.memory,
    tuple(2.0**10 * 4.0**power for power in range(0, 20)),
)


def draw(report: ScalingReport, path: Path) -> None:
    """Write the picture.

    Raises:
        InvalidRequest: the name does not end in .svg, or nothing was measured.
        OutputError: the file cannot be written.
    """
    check_picture(path)
    content = svg(report)
    with whole_file(path) as partial:
        partial.write_text(content, encoding="utf-8", newline="\n")


def check_picture(path: Path) -> None:
    """Refuse an unsuitable file name before measuring."""
    if path.suffix != ".svg":
        raise InvalidRequest(f"the picture of length scaling is a file that ends in .svg, not {path}")


def svg(report: ScalingReport, theme: Theme = "light") -> str:
    """The picture as the text of an SVG file.

    Raises:
        InvalidRequest: nothing was measured.
    """
    if not any(point.measured for point in report.points):
        raise InvalidRequest("no point was measured, so there is nothing to draw; give more --seconds")
    inks = INKS[theme]
    top = TOP + LEGEND_LINE * ((len(report.curves) + 1) // 2)
    height = top + PANEL + BOTTOM
    title = f"Time and memory over length: {report.measured.title}"
    description = (
        f"{len(report.points)} points, {len(report.curves)} attention implementations, fitted curves."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
        f'<rect width="{WIDTH}" height="{height}" fill="{inks["paper"]}"/>',
        _text(20, 26, report.measured.title, inks["ink"], size=14, weight="600"),
        *_legend(report, inks),
        *_one(report, SECONDS, LEFTS[0], top, inks),
        *_one(report, BYTES, LEFTS[1], top, inks),
        _text(20, height - 26, KEY, inks["faint"], size=10),
        _text(20, height - 11, report.machine.line, inks["faint"], size=10),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _one(
    report: ScalingReport, panel: _Panel, left: float, top: float, inks: dict[str, str]
) -> Iterator[str]:
    """One panel: its grid, and the curve and points of each implementation."""
    yield _text(left, top - 8, panel.title, inks["ink"], weight="600")
    axes = _axes(report, panel, left, top)
    if axes is None:
        yield _text(left, top + 20, "not reported by this system", inks["faint"])
        return
    yield from _grid(axes, panel, inks)
    for number, curves in enumerate(report.curves):
        color = COLORS[number % len(COLORS)]
        look = (SHAPES[number % len(SHAPES)], color)
        curve = panel.curve(curves)
        if curve is not None:
            yield from _curve(axes, curve, color)
            yield from _crossing(axes, curve, color, inks)
        points = [point for point in report.points if point.kernel == curves.kernel]
        for point in points:
            yield from _point(axes, panel, point, look)
        if curves.probe is not None:
            yield from _point(axes, panel, curves.probe.point, look, hollow=True)
        lost = next((point for point in points if point.outcome == "did not fit"), None)
        if lost is not None:
            yield _lost(axes, lost, color)


def _axes(report: ScalingReport, panel: _Panel, left: float, top: float) -> _Axes | None:
    probes = [curves.probe.point for curves in report.curves if curves.probe is not None]
    points = [*report.points, *probes]
    values = [value for point in points if (value := panel.value(point)) is not None and value > 0]
    values += [
        end for point in points if (ends := panel.spread(point)) is not None for end in ends if end > 0
    ]
    if not values:
        return None
    lengths = [point.length for point in points if point.repeats or point.outcome == "did not fit"]
    last = 1.5 * max(lengths)
    return _Axes(left, top, (0.9 * min(lengths), last), (0.6 * min(values), 2.0 * max(values)))


def _grid(axes: _Axes, panel: _Panel, inks: dict[str, str]) -> Iterator[str]:
    right, bottom = axes.left + PANEL_WIDTH, axes.top + PANEL
    within = [step for step in panel.steps if axes.values[0] <= step <= axes.values[1]]
    for step in within[:: max(1, math.ceil(len(within) / 8))]:
        y = axes.y(step)
        yield _line(axes.left, y, right, y, inks["grid"])
        yield _text(axes.left - 6, y + 4, panel.write(step), inks["faint"], size=10.5, anchor="end")
    doubled = [2**power for power in range(40) if axes.lengths[0] <= 2**power <= axes.lengths[1]]
    for tokens in doubled[:: max(1, math.ceil(len(doubled) / 8))]:
        x = axes.x(tokens)
        yield _line(x, axes.top, x, bottom, inks["grid"])
        yield _text(x, bottom + 16, f"{tokens:,}", inks["faint"], size=10.5, anchor="middle")
    yield _line(axes.left, bottom, right, bottom, inks["faint"])
    yield _text(right, bottom + 33, "tokens", inks["faint"], size=10.5, anchor="end")


def _curve(axes: _Axes, fitted: FittedCurve, color: str) -> Iterator[str]:
    """Solid where it was measured, dashed beyond."""
    first, last = min(fitted.lengths), max(fitted.lengths)
    for begin, end, dash in ((first, last, ""), (last, axes.lengths[1], ' stroke-dasharray="4 4"')):
        places = []
        for step in range(STEPS + 1):
            tokens = begin * (end / begin) ** (step / STEPS)
            value = fitted.curve(tokens)
            if axes.values[0] <= value <= axes.values[1]:
                places.append(f"{axes.x(tokens):.1f},{axes.y(value):.1f}")
        if len(places) > 1:
            yield (
                f'<polyline points="{" ".join(places)}" fill="none" stroke="{color}" '
                f'stroke-width="1.6"{dash}/>'
            )


def _crossing(axes: _Axes, fitted: FittedCurve, color: str, inks: dict[str, str]) -> Iterator[str]:
    """A ring where the quadratic term starts to dominate, if that is in the panel."""
    where = fitted.square_over_rest
    if where is None or not axes.lengths[0] <= where.value <= axes.lengths[1]:
        return
    value = fitted.curve(where.value)
    if axes.values[0] <= value <= axes.values[1]:
        note = f"the quadratic term dominates from {where.value:,.0f} tokens on"
        yield (
            f'<circle cx="{axes.x(where.value):.1f}" cy="{axes.y(value):.1f}" r="8" fill="none" '
            f'stroke="{inks["ink"]}" stroke-width="1.2"><title>{note}</title></circle>'
        )


def _point(
    axes: _Axes, panel: _Panel, point: ScalingPoint, look: tuple[str, str], *, hollow: bool = False
) -> Iterator[str]:
    shape, color = look
    value, spread = panel.value(point), panel.spread(point)
    if value is None or value <= 0:
        return
    x, y = axes.x(point.length), axes.y(value)
    if spread is not None and 0 < spread[0] < spread[1]:
        yield _line(x, axes.y(spread[0]), x, axes.y(spread[1]), color)
    note = f"{point.kernel}, {point.length:,} tokens: {panel.write(value)}{' (probe)' if hollow else ''}"
    fill = "none" if hollow else color
    yield (
        f'<path d="{_shape(shape, x, y, 6 if hollow else 4)}" fill="{fill}" stroke="{color}" '
        f'stroke-width="1.5"><title>{escape(note)}</title></path>'
    )


def _lost(axes: _Axes, point: ScalingPoint, color: str) -> str:
    note = escape(f"{point.kernel} did not fit at {point.length:,} tokens")
    place = _shape("cross", axes.x(point.length), axes.top + 10, 6)
    return f'<path d="{place}" fill="none" stroke="{color}" stroke-width="2.5"><title>{note}</title></path>'


def _shape(shape: str, x: float, y: float, r: float) -> str:
    match shape:
        case "circle":
            return f"M{x - r:.1f},{y:.1f}a{r},{r} 0 1,0 {2 * r},0a{r},{r} 0 1,0 {-2 * r},0z"
        case "square":
            return f"M{x - r:.1f},{y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z"
        case "up":
            return f"M{x - r:.1f},{y + r:.1f}h{2 * r}L{x:.1f},{y - r:.1f}z"
        case "down":
            return f"M{x - r:.1f},{y - r:.1f}h{2 * r}L{x:.1f},{y + r:.1f}z"
        case "diamond":
            return f"M{x - r:.1f},{y:.1f}l{r},{-r}l{r},{r}l{-r},{r}z"
        case _:
            return f"M{x - r:.1f},{y - r:.1f}l{2 * r},{2 * r}m0,{-2 * r}l{-2 * r},{2 * r}"


def _legend(report: ScalingReport, inks: dict[str, str]) -> Iterator[str]:
    for number, curves in enumerate(report.curves):
        x, y = (26, 506)[number % 2], 48 + LEGEND_LINE * (number // 2)
        color = COLORS[number % len(COLORS)]
        shape = _shape(SHAPES[number % len(SHAPES)], x, y - 4, 4)
        yield f'<path d="{shape}" fill="{color}" stroke="{color}" stroke-width="1.5"/>'
        yield _text(x + 12, y, way_title(report, curves.kernel), inks["ink"])


def _share(value: float, ends: tuple[float, float]) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{color}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    color: str,
    *,
    size: float = 12,
    weight: str = "400",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
