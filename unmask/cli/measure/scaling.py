"""``unmask scaling``: time and memory versus length, fitted curves, and the longest text that fits."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.cli.measure.options import SUBJECT, MeasureOptions, SubjectOptions, numbers
from unmask.cli.options import DeviceOption, RunDtype, listed
from unmask.cli.output import console, plain, print_json, progress, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from unmask.bench.scaling.report import Comparison, ScalingReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScalingOptions(MeasureOptions):
    """What is measured of each implementation, and where the report goes."""

    lengths: Annotated[
        list[str] | None, listed("lengths in tokens; default: doubling up to --longest", "--lengths")
    ] = None
    longest: Annotated[
        int | None, Parameter(name="--longest", help="the last of the doubled lengths; default: 8192")
    ] = None
    repeats: Annotated[int, Parameter(name="--repeats", help="timed calls per point")] = 5
    seconds: Annotated[
        float,
        Parameter(name="--seconds", help="total time budget; points beyond it are skipped and reported"),
    ] = 300
    memory: Annotated[
        str | None,
        Parameter(
            name="--memory", help="memory limit of a process, such as 8GiB; default: most of the free memory"
        ),
    ] = None
    dtype: Annotated[RunDtype, Parameter(name="--dtype", help="dtype to compute in")] = "float32"
    device: DeviceOption = "cpu"
    restart: Annotated[
        bool,
        Parameter(name="--restart", negative="", help="discard the points of a stopped run with --output"),
    ] = False
    picture: Annotated[Path | None, Parameter(name="--picture", help="write a chart to this file, .svg")] = (
        None
    )

    def check(self) -> None:
        """Fail early if the output cannot be written or drawn."""
        super().check()
        if self.picture is not None:
            from unmask.bench.scaling.picture import check_picture

            check_can_write(self.picture)
            check_picture(self.picture)

    def measure(self, subject: SubjectOptions, ways: "Sequence[str]", **run: Any) -> "ScalingReport":
        """Measure these implementations; none: the default ones.

        ``run``: further arguments of `unmask.bench.scaling.run.run_scaling`, and ``others`` of the settings.
        """
        from unmask.bench.memory import parse_bytes
        from unmask.bench.scaling.run import journal_of, run_scaling
        from unmask.bench.scaling.settings import ScalingSettings

        settings = ScalingSettings(
            model=subject.model,
            architecture=subject.architecture,
            layers=subject.layers,
            revision=subject.revision,
            ways=tuple(ways),
            lengths=() if self.lengths is None else tuple(numbers(self.lengths)),
            longest=self.longest,
            repeats=self.repeats,
            seconds=self.seconds,
            memory_bytes=None if self.memory is None else parse_bytes(self.memory),
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            seed=self.seed,
            others=run.pop("others", ()),
        )
        if self.restart and self.output is None:
            raise InvalidRequest("--restart needs --output; without it nothing was kept")
        journal = None if self.output is None else journal_of(self.output)
        with progress("Measuring", 0) as watch:
            report = run_scaling(
                settings,
                lambda what, done, total: watch(done, total),
                journal=journal,
                restart=self.restart,
                **run,
            )
        if journal is not None and journal.exists():
            print(f"The points are kept in {journal}; run the same command to resume.", file=sys.stderr)
        return report

    def present(self, report: "ScalingReport", other: "ScalingReport | None" = None) -> None:
        """Write, draw and print a report, and its comparison with another one."""
        from unmask.bench.scaling.picture import draw
        from unmask.bench.scaling.report import compare, to_plain, write_report

        if self.output is not None:
            write_report(report, self.output)
        if self.picture is not None:
            draw(report, self.picture)
        comparison = None if other is None else compare(report, other)
        if self.json:
            value = to_plain(report)
            print_json(value if comparison is None else {"report": value, "comparison": plain(comparison)})
            return
        _show(report)
        if comparison is not None:
            _show_comparison(comparison)


SCALING = ScalingOptions()


def scaling(
    *,
    subject: SubjectOptions = SUBJECT,
    kernel: Annotated[
        list[str] | None,
        listed("only this kernel, or chosen for the default one"),
    ] = None,
    show: Annotated[Path | None, Parameter(help="show this existing report without measuring")] = None,
    compare: Annotated[Path | None, Parameter(help="compare with this other report")] = None,
    options: ScalingOptions = SCALING,
) -> None:
    """Measure length scaling: time and peak memory, fitted as a + bN + cN², and the longest text.

    Each point is measured in a separate process, so running out of memory ends only that point.
    With --output, a stopped run is resumed. Lengths are limited by the model's positions.
    """
    from unmask.bench.scaling.report import read_report

    options.check()
    other = None if compare is None else read_report(compare)
    report = options.measure(subject, kernel or ()) if show is None else read_report(show)
    options.present(report, other)


def _show(report: "ScalingReport") -> None:
    from unmask.bench.scaling.report import findings

    screen = console()
    screen.print(safe(report.measured.title))
    screen.print(_points(report))
    for sentence in findings(report):
        screen.print(safe(sentence))
    screen.print(safe(report.machine.line))


def _points(report: "ScalingReport") -> "Table":
    from unmask.bench.scaling.report import duration, size

    right = ("tokens", "median", "lowest to highest", "curve", "peak memory", "memory curve")
    grid = table(None, "kernel", *right, "kernels that ran, or why not", right=right)
    for point in report.points:
        seconds = point.seconds
        cells = ["", "", "", "", ""]
        if seconds is not None:
            cells[0] = duration(seconds.median)
            cells[1] = f"{duration(seconds.lowest)} to {duration(seconds.highest)}"
            cells[2] = "" if point.fitted_seconds is None else duration(point.fitted_seconds)
        if point.peak_bytes is not None:
            cells[3] = size(point.peak_bytes)
            cells[4] = "" if point.fitted_bytes is None else size(point.fitted_bytes)
        last = ", ".join(point.ran) if point.measured else f"{point.outcome}: {point.note}"
        grid.add_row(safe(point.kernel), f"{point.length:,}", *cells, safe(last))
    return grid


def _show_comparison(comparison: "Comparison") -> None:
    from unmask.bench.scaling.report import duration, size

    screen = console()
    cards = table(None, "", "this", "other")
    for name, left, right in comparison.cards:
        cards.add_row(name, safe(left), safe(right))
    screen.print(cards)
    right_side = ("tokens", "this", "other", "time ratio", "this memory", "other memory")
    rows = table(None, "kernel", *right_side, right=right_side)
    for row in comparison.rows:
        times = f"{row.times.median:.2f} ({row.times.lowest:.2f} to {row.times.highest:.2f})"
        sizes = ("" if amount is None else size(amount) for amount in (row.left_bytes, row.right_bytes))
        calls = (duration(row.left.median), duration(row.right.median))
        rows.add_row(safe(row.kernel), f"{row.length:,}", *calls, times, *sizes)
    screen.print(rows)
    for crossing in comparison.crossings:
        ends = [
            f"{'no quadratic term' if cross is None else f'{cross.value:,.0f} tokens'}"
            f"{'' if longest is None else f', longest {longest:,}'}"
            for cross, longest in (
                (crossing.left, crossing.left_longest),
                (crossing.right, crossing.right_longest),
            )
        ]
        screen.print(safe(f"{crossing.kernel}: the quadratic term dominates from {ends[0]} | {ends[1]}"))
