"""``unmask scaling``: time and memory versus length, fitted curves, and the longest text that fits."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.cli.lists import listed
from unmask.cli.measure.bench_options import MEASURE, SUBJECT, MeasureOptions, SubjectOptions, numbers
from unmask.cli.options import DeviceOption, RunDtype
from unmask.cli.output import console, plain, print_json, progress, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.bench.scaling.compare import Comparison
    from unmask.bench.scaling.report import ScalingReport
    from unmask.bench.scaling.settings import ScalingSettings


def scaling(
    *,
    subject: SubjectOptions = SUBJECT,
    kernel: Annotated[
        list[str] | None,
        listed("only this kernel, or chosen for the default one"),
    ] = None,
    peer: Annotated[
        list[str] | None,
        listed("also measure another library, such as 'transformers eager'"),
    ] = None,
    lengths: Annotated[
        list[str] | None, listed("lengths in tokens; default: doubling up to --longest")
    ] = None,
    longest: Annotated[int | None, Parameter(help="the last of the doubled lengths; default: 8192")] = None,
    repeats: Annotated[int, Parameter(help="timed calls per point")] = 5,
    seconds: Annotated[
        float, Parameter(help="total time budget; points beyond it are skipped and reported")
    ] = 300,
    memory: Annotated[
        str | None,
        Parameter(help="memory limit of a process, such as 8GiB; default: most of the free memory"),
    ] = None,
    dtype: Annotated[RunDtype, Parameter(help="dtype to compute in")] = "float32",
    device: DeviceOption = "cpu",
    restart: Annotated[
        bool, Parameter(negative="", help="discard the points of a stopped run with --output")
    ] = False,
    picture: Annotated[Path | None, Parameter(help="write a chart to this file, .svg")] = None,
    show: Annotated[Path | None, Parameter(help="show this existing report without measuring")] = None,
    compare: Annotated[Path | None, Parameter(help="compare with this other report")] = None,
    options: MeasureOptions = MEASURE,
) -> None:
    """Measure length scaling: time and peak memory, fitted as a + bN + cN², and the longest text.

    Each point is measured in a separate process, so running out of memory ends only that point.
    With --output, a stopped run is resumed. Lengths are limited by the model's positions.
    """
    from unmask.bench.scaling.picture import check_picture, draw
    from unmask.bench.scaling.report import read_report, write_report

    _check(options.output, picture)
    if picture is not None:
        check_picture(picture)
    other = None if compare is None else read_report(compare)
    if show is not None:
        made = read_report(show)
    else:
        from unmask.bench.scaling.limits import parse_bytes
        from unmask.bench.scaling.settings import CHOSEN, ScalingSettings

        ways = (*(kernel or ((CHOSEN,) if peer else ())), *(peer or ()))
        settings = ScalingSettings(
            model=subject.model,
            architecture=subject.architecture,
            layers=subject.layers,
            revision=subject.revision,
            ways=ways,
            lengths=tuple(numbers(lengths)) if lengths is not None else (),
            longest=longest,
            repeats=repeats,
            seconds=seconds,
            memory_bytes=None if memory is None else parse_bytes(memory),
            dtype=dtype,
            device=device,
            threads=options.threads,
            seed=options.seed,
        )
        made = _measure(settings, options.output, restart)
    if options.output is not None:
        write_report(made, options.output)
    if picture is not None:
        draw(made, picture)
    _tell(made, other, options.json)


def _check(output: Path | None, picture: Path | None) -> None:
    for path in (output, picture):
        if path is not None:
            check_can_write(path)


def _measure(settings: "ScalingSettings", output: Path | None, restart: bool) -> "ScalingReport":
    from unmask.bench.scaling.journal import journal_of
    from unmask.bench.scaling.run import run_scaling

    if restart and output is None:
        raise InvalidRequest("--restart needs --output; without it nothing was kept")
    journal = None if output is None else journal_of(output)
    with progress("Measuring", 0) as report:
        made = run_scaling(
            settings,
            lambda what, done, total: report(done, total),
            journal=journal,
            restart=restart,
        )
    if journal is not None and journal.exists():
        print(f"The points are kept in {journal}; run the same command to resume.", file=sys.stderr)
    return made


def _tell(made: "ScalingReport", other: "ScalingReport | None", json: bool) -> None:
    """Print a report and, if another one is given, a comparison."""
    from unmask.bench.scaling.compare import compare
    from unmask.bench.scaling.report import to_plain

    beside = None if other is None else compare(made, other)
    if json:
        print_json(
            to_plain(made) if beside is None else {"report": to_plain(made), "comparison": plain(beside)}
        )
        return
    _show(made)
    if beside is not None:
        _show_beside(beside)


def _show(report: "ScalingReport") -> None:
    from unmask.bench.scaling.words import findings

    screen = console()
    screen.print(safe(report.measured.title))
    screen.print(_points(report))
    for sentence in findings(report):
        screen.print(safe(sentence))
    screen.print(safe(report.machine.line))


def _points(report: "ScalingReport") -> "Table":
    from unmask.bench.scaling.words import duration, size

    right = ("tokens", "median", "lowest to highest", "curve", "peak memory", "memory curve")
    made = table(None, "kernel", *right, "kernels that ran, or why not", right=right)
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
        made.add_row(safe(point.kernel), f"{point.length:,}", *cells, safe(last))
    return made


def _show_beside(comparison: "Comparison") -> None:
    from unmask.bench.scaling.words import duration, size

    screen = console()
    cards = table(None, "", "this", "other")
    for name, left, right in comparison.cards:
        cards.add_row(name, safe(left), safe(right))
    screen.print(cards)
    right_side = ("tokens", "this", "other", "time ratio", "this memory", "other memory")
    rows = table(None, "kernel", *right_side, right=right_side)
    for row in comparison.rows:
        times = f"{row.times.median:.2f} ({row.times.lowest:.2f} to {row.times.highest:.2f})"
        sizes = ("" if one is None else size(one) for one in (row.left_bytes, row.right_bytes))
        calls = (duration(row.left.median), duration(row.right.median))
        rows.add_row(safe(row.kernel), f"{row.length:,}", *calls, times, *sizes)
    screen.print(rows)
    for one in comparison.crossings:
        ends = [
            f"{'no quadratic term' if cross is None else f'{cross.value:,.0f} tokens'}"
            f"{'' if longest is None else f', longest {longest:,}'}"
            for cross, longest in ((one.left, one.left_longest), (one.right, one.right_longest))
        ]
        screen.print(safe(f"{one.kernel}: the quadratic term dominates from {ends[0]} | {ends[1]}"))
