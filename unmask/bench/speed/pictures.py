"""Charts of reports: horizontal bars with their numbers, and the machine in the caption."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from unmask.base.files import whole_file
from unmask.base.optional import require
from unmask.bench.speed.accuracy import AccuracyReport, TaskAccuracyReport
from unmask.bench.speed.kernels import KernelsReport
from unmask.bench.speed.speed import SpeedReport
from unmask.errors import InvalidRequest
from unmask.training.run.log import TrainingCurve

Report = SpeedReport | KernelsReport | AccuracyReport | TaskAccuracyReport

OURS, OTHERS, LINE = "#0072B2", "#B8B8B8", "#333333"
"""Blue and gray also differ in lightness, so they can be told apart without color (Okabe & Ito 2008)."""
SUFFIXES = (".png", ".svg")
BAR_INCHES, PANEL_INCHES, WIDTH_INCHES = 0.3, 0.75, 8.5
TITLE_CHARACTERS = 72
"""The most characters in a line of the title, so that it fits the width."""


@dataclass(frozen=True)
class Bar:
    """One bar; its error bar spans the fastest and the slowest round, if there were several."""

    label: str
    value: float
    note: str
    lowest: float
    highest: float
    ours: bool = True


@dataclass(frozen=True)
class Panel:
    """Bars that share an axis."""

    title: str
    axis: str
    """The quantity and its unit."""
    bars: tuple[Bar, ...]


def check_picture(path: Path) -> None:
    """Raise before the measurement if its chart could not be drawn.

    Raises:
        InvalidRequest: the name does not end in .png or .svg.
        MissingExtra: matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidRequest(f"a picture is a file that ends in {' or '.join(SUFFIXES)}, not {path}")
    require("figures")


def draw(report: Report, path: Path) -> None:
    """Write the chart of a report; see `draw_panels`."""
    draw_panels(panels_of(report), title_of(report), report.machine.line, path)


def draw_panels(panels: Sequence[Panel], title: str, caption: str, path: Path) -> None:
    """Write a chart of bars; see `check_picture`.

    Raises:
        OutputError: the file cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    heights = [PANEL_INCHES + BAR_INCHES * max(1, len(panel.bars)) for panel in panels]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 0.9), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        _draw_panel(panel, axis)
    lines = textwrap.fill(title, TITLE_CHARACTERS, break_on_hyphens=False)
    figure.suptitle(lines, x=0.01, ha="left", fontsize=11, fontweight="bold", color=LINE)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=6.5, color=LINE)
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=160)


def draw_curves(curves: Sequence[TrainingCurve], values: Sequence[float], path: Path) -> None:
    """Write a chart of a figure of several runs over seconds of training; see `check_picture`.

    A dotted line is at each of ``values``, and a dot where a run reaches it first.

    Raises:
        OutputError: the file cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, 4.5), layout="constrained")
    axis = figure.subplots()
    for curve in curves:
        seconds = [point.seconds for point in curve.points]
        (line,) = axis.plot(seconds, [point.value for point in curve.points], linewidth=1.2, label=curve.run)
        firsts = [first for value in values if (first := curve.reached(value)) is not None]
        axis.plot([p.seconds for p in firsts], [p.value for p in firsts], "o", color=line.get_color())
    for value in values:
        axis.axhline(value, color=OTHERS, linewidth=0.8, linestyle=":")
    axis.set_xlabel("seconds of training", fontsize=8, color=LINE)
    axis.set_ylabel(curves[0].metric, fontsize=8, color=LINE)
    axis.tick_params(labelsize=7.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7.5, frameon=False)
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=160)


def title_of(report: Report) -> str:
    """The title of the chart."""
    match report:
        case SpeedReport():
            return f"Tokens per second of {report.measured.title}"
        case KernelsReport():
            sizes = f"{report.heads} heads of {report.head_width}"
            return f"Attention kernels: {report.pattern} pattern, position {report.position}, {sizes}"
        case AccuracyReport():
            return f"Accuracy of number formats: {report.measured.title}"
        case TaskAccuracyReport():
            return f"Accuracy of number formats in {report.task}: {report.measured.title}"
        case _:
            assert_never(report)


def panels_of(report: Report) -> list[Panel]:
    """The panels of a report's chart."""
    match report:
        case SpeedReport():
            return _speed(report)
        case KernelsReport():
            return _kernels(report)
        case AccuracyReport():
            return _accuracy(report)
        case TaskAccuracyReport():
            return _task_accuracy(report)
        case _:
            assert_never(report)


def _speed(report: SpeedReport) -> list[Panel]:
    panels = []
    for size in dict.fromkeys(row.size for row in report.rows):
        bars = [
            Bar(
                f"{row.dtype}, {row.setting}" + (", causal" if row.attention == "causal" else ""),
                row.tokens_per_second,
                f"{row.tokens_per_second:,.0f}",
                row.tokens / row.seconds.highest,
                row.tokens / row.seconds.lowest,
                row.attention == "bidirectional",
            )
            for row in report.rows
            if row.size == size
        ]
        longest = max(row.longest for row in report.rows if row.size == size)
        panels.append(Panel(f"{size}: up to {longest:,} tokens", "tokens per second", tuple(bars)))
    return panels


def _kernels(report: KernelsReport) -> list[Panel]:
    panels = []
    for dtype, tokens in dict.fromkeys((r.dtype, r.tokens) for r in report.rows if r.batch == "one"):
        rows = [r for r in report.rows if (r.dtype, r.tokens, r.batch) == (dtype, tokens, "one")]
        bars = [
            Bar(
                row.kernel,
                row.gflop_per_second,
                f"{row.gflop_per_second:,.0f}{_share(row.share_of_peak)}, error {row.largest_error:.0e}",
                row.gflop_per_second * row.seconds.median / row.seconds.highest,
                row.gflop_per_second * row.seconds.median / row.seconds.lowest,
                ours=row.kernel != "reference",
            )
            for row in sorted(rows, key=lambda row: row.seconds.median)
        ]
        panels.append(Panel(f"one sequence of {tokens:,} tokens, {dtype}", "GFLOP per second", tuple(bars)))
    return panels


def _share(share: float | None) -> str:
    return "" if share is None else f" ({100 * share:.0f} % of the peak)"


def _accuracy(report: AccuracyReport) -> list[Panel]:
    narrow = [row for row in report.rows if row.dtype != "float32"]
    bars = [
        Bar(
            row.dtype,
            1 - row.agreement.cosine_mean,
            f"mean {1 - row.agreement.cosine_mean:.1e}, worst {1 - row.agreement.cosine_min:.1e}",
            max(0.0, 1 - row.agreement.cosine_mean),
            max(0.0, 1 - row.agreement.cosine_min),
        )
        for row in narrow
    ]
    title = f"{report.texts:,} texts from {report.source}"
    panels = [Panel(title, "1 - cosine with the float32 embedding: mean, and the worst text", tuple(bars))]
    scored = [(row.dtype, row.sts_b_spearman) for row in report.rows if row.sts_b_spearman is not None]
    if scored:
        bars = [Bar(dtype, value, f"{value:.4f}", value, value) for dtype, value in scored]
        panels.append(Panel("STS-B test", "Spearman's rank correlation with people's scores", tuple(bars)))
    return panels


def _task_accuracy(report: TaskAccuracyReport) -> list[Panel]:
    title = f"{report.texts:,} texts of {report.source}"
    scores = [
        Bar(r.dtype, r.metric, f"{r.metric:.4f} ({r.change:+.4f})", r.metric, r.metric) for r in report.rows
    ]
    flips = [
        Bar(r.dtype, r.flips / max(1, r.predictions), f"{r.flips:,} of {r.predictions:,}", 0, 0)
        for r in report.rows[1:]
    ]
    return [
        Panel(title, report.metric, tuple(scores)),
        Panel(title, f"share of {report.counted} that are others than in float32", tuple(flips)),
    ]


def _draw_panel(panel: Panel, axis: Any) -> None:
    bars: Sequence[Bar] = panel.bars
    places = range(len(bars))
    axis.barh(places, [bar.value for bar in bars], color=[OURS if bar.ours else OTHERS for bar in bars])
    for place, bar in enumerate(bars):
        if bar.highest > bar.lowest:
            axis.plot(
                [bar.lowest, bar.highest], [place, place], color=LINE, linewidth=1, solid_capstyle="butt"
            )
        axis.text(max(bar.value, bar.highest), place, f"  {bar.note}", va="center", fontsize=7.5, color=LINE)
    axis.set_yticks(places, [bar.label for bar in bars], fontsize=8.5)
    axis.invert_yaxis()
    top = max((max(bar.value, bar.highest) for bar in bars), default=1.0)
    axis.set_xlim(0, 1.4 * top if top > 0 else 1.0)
    axis.tick_params(axis="x", labelsize=7.5)
    axis.set_xlabel(panel.axis, fontsize=8, color=LINE)
    axis.set_title(panel.title, loc="left", fontsize=8.5, color=LINE)
    axis.spines[["top", "right"]].set_visible(False)
