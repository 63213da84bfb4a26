"""Reports of comparisons with other libraries: tables, and a chart."""

import itertools
from pathlib import Path

from rich.table import Table

from benchmarks.peers.compare import PeersReport
from benchmarks.peers.training import TrainingReport
from unmask.bench.speed.pictures import Bar, Panel, draw_panels
from unmask.cli.measure.bench import number_of, show, spread_of
from unmask.cli.output import table


def show_peers(report: PeersReport) -> None:
    """Print the workloads, the timed rounds and the starts."""
    notes = (f"{work.name}: {work.what}; ratios to {work.baseline}" for work in report.workloads)
    show(report, _timed(report), *([_started(report)] if report.started else ()), notes=tuple(notes))


def show_training(report: TrainingReport) -> None:
    """Print the texts and the steps."""
    lengths = ", ".join(f"{name} {value:.0f}" for name, value in report.lengths.items())
    note = (
        f"{report.objective}; {report.texts}; tokens per text: {lengths}; {report.sequences} texts per step; "
        f"loss of one batch before training: ours {report.loss_ours:.4f}, theirs {report.loss_theirs:.4f}"
    )
    show(report, _steps(report), notes=(note,))


def draw_peers(report: PeersReport, path: Path) -> None:
    """Write the chart; see `unmask.bench.speed.pictures.check_picture`."""
    title = f"unmask compared with other libraries: {report.measured.title}"
    draw_panels(panels_of(report), title, report.machine.line, path)


def panels_of(report: PeersReport) -> list[Panel]:
    """A panel for each workload and number of processes beside it."""
    panels = []
    loads = sorted({timed.load for timed in report.timed})
    for work, load in itertools.product(report.workloads, loads):
        rows = [timed for timed in report.timed if (timed.workload, timed.load) == (work.name, load)]

        beside = f", beside {load} spinning processes" if load else ""
        bars = [
            Bar(
                row.engine,
                row.times_as_fast.median,
                f"{row.times_as_fast.median:.2f} x   ({row.tokens_per_second:,.0f} tokens/s)",
                row.times_as_fast.lowest,
                row.times_as_fast.highest,
                ours=row.engine.startswith("unmask"),
            )
            for row in sorted(rows, key=lambda row: row.seconds.median)
        ]
        axis = f"times as fast as {work.baseline}: median of rounds, lowest and highest"
        panels.append(Panel(f"{work.name}: {work.what}{beside}", axis, tuple(bars)))
    return panels


def _timed(report: PeersReport) -> Table:
    right = (
        *("tokens/s", "p50 ms", "p99 ms", "processor s", "speedup", "peak MiB"),
        *("largest difference", "cosine mean", "min"),
    )
    shown = table(None, "workload", "engine", *right, right=right)
    for row in report.timed:
        shown.add_row(
            _with_load(row.workload, row.load),
            row.engine,
            f"{row.tokens_per_second:,.0f}",
            f"{row.call_p50_ms:.2f}",
            f"{row.call_p99_ms:.2f}",
            f"{row.processor_seconds.median:.3f}",
            spread_of(row.times_as_fast),
            number_of(row.peak_extra_mib, ",.0f"),
            f"{row.agreement.largest_difference:.1e}",
            f"{row.agreement.cosine_mean:.6f}",
            f"{row.agreement.cosine_min:.6f}",
        )
    return shown


def _started(report: PeersReport) -> Table:
    right = ("cold start", "processor time", "peak RSS MiB")
    shown = table(None, "start", "engine", *right, right=right)
    for row in report.started:
        shown.add_row(
            _with_load(f"first of {row.workload}", row.load),
            row.engine,
            spread_of(row.wall_seconds, "s"),
            spread_of(row.processor_seconds, "s"),
            number_of(row.peak_mib, ",.0f"),
        )
    return shown


def _with_load(name: str, load: int) -> str:
    return f"{name}, load {load}" if load else name


def _steps(report: TrainingReport) -> Table:
    right = ("tokens/s", "seconds per step", "padding", "vs. Trainer", "vs. grouped")
    shown = table(None, "precision", "engine", *right, right=right)
    for row in report.rows:
        shown.add_row(
            row.precision,
            row.engine,
            f"{row.tokens_per_second:,.0f}",
            spread_of(row.seconds_per_step, "s"),
            f"{row.padding:.0%}",
            spread_of(row.to_trainer),
            spread_of(row.to_grouped),
        )
    return shown
