"""An ablation report as a picture: for each measure, one dot per variant with its interval."""

from pathlib import Path
from typing import Any

from benchmarks.ablation.report import MEASURES, Report, describe
from unmask.base.files import whole_file
from unmask.bench.speed.pictures import LINE, OTHERS, OURS, check_picture
from unmask.errors import InvalidRequest

ROW_INCHES, WIDTH_INCHES = 0.27, 12.0


def draw(report: Report, path: Path) -> None:
    """Write the picture as .png or .svg.

    Raises:
        InvalidRequest: the file has another suffix, or no variant was measured.
        MissingExtra: matplotlib is not installed.
        OutputError: the file cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    if not report.rows:
        raise InvalidRequest("no variant was measured yet, so there is nothing to draw")
    measures = [one for one in MEASURES if any(row.outcome(one.name) for row in report.rows)]
    speed = any(row.cost for row in report.rows)
    memory = any(row.cost is not None and row.cost.peak_bytes is not None for row in report.rows)
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * len(report.rows) + 1.5), layout="constrained")
    axes = list(figure.subplots(1, len(measures) + speed + memory, sharey=True, squeeze=False)[0])
    _names(axes[0], report)
    for measure in measures:
        axis = axes.pop(0)
        for place, row in enumerate(report.rows):
            outcome = row.outcome(measure.name)
            if outcome is not None:
                spread = outcome.mean.half or 0.0
                _dot(axis, place, outcome.mean.mean, (spread, spread), like=outcome.note is None)
        _dress(axis, f"{measure.title}\n{'lower' if measure.lower else 'higher'} is better")
    for place, row in enumerate(report.rows):
        if row.cost is not None:
            middle = row.cost.tokens_per_second
            _dot(axes[0], place, middle, (middle - row.cost.lowest, row.cost.highest - middle))
            if row.cost.peak_bytes is not None:
                _dot(axes[1], place, row.cost.peak_bytes / 2**20, (0.0, 0.0))
    for axis, title in zip(
        axes, ("training, tokens/s\nhigher is better", "peak memory, MiB\nlower is better"), strict=False
    ):
        _dress(axis, title)
    figure.suptitle("One change at a time", x=0.01, ha="left", fontsize=11, fontweight="bold", color=LINE)
    seeds = max(len(row.seeds) for row in report.rows)
    note = (
        f"{describe(report)} Up to {seeds} seeds; means with 95 % intervals; for speed, median and quartiles."
    )
    figure.supxlabel(note, x=0.01, ha="left", fontsize=6.5, color=LINE)
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=160)


def _dot(axis: Any, place: int, value: float, spread: tuple[float, float], *, like: bool = True) -> None:
    color = OURS if like else OTHERS
    axis.errorbar([value], [place], xerr=[[spread[0]], [spread[1]]], fmt="o", color=color, ms=4, lw=1.4)


def _dress(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=8, color=LINE)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(axis="x", color="#E5E5E5", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _names(axis: Any, report: Report) -> None:
    labels = [f"{row.variant}  (from {row.parent})" if row.parent else row.variant for row in report.rows]
    axis.set_yticks(range(len(labels)), labels, fontsize=7.5)
    axis.set_ylim(len(labels) - 0.5, -0.5)
