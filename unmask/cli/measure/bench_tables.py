"""The reports of ``unmask bench`` as tables."""

from typing import TYPE_CHECKING, Any

from unmask.cli.output import console, safe, table

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.bench.speed.report import LeftOut
    from unmask.bench.timing import Spread


def show(report: Any) -> None:
    """Print one table, what was left out and why, and the machine."""
    tables = {
        "speed": _speed,
        "peers": _peers,
        "kernels": _kernels,
        "accuracy": _accuracy,
        "training": _training,
    }
    shown = tables[report.protocol]
    screen = console()
    measured = getattr(report, "measured", None)
    if measured is not None:
        screen.print(safe(measured.title))
    for work in getattr(report, "workloads", ()):
        screen.print(safe(f"{work.name}: {work.what}; ratios to {work.baseline}"))
    if report.protocol == "training":
        screen.print(safe(_texts(report)))
    screen.print(shown(report))
    if getattr(report, "started", ()):
        screen.print(_started(report))
    for one in report.left_out:
        screen.print(safe(_left_out(one)))
    screen.print(safe(report.machine.line))


def _left_out(one: "LeftOut") -> str:
    work = f" on {one.work}" if one.work else ""
    return f"left out: {one.name}{work}: {one.reason}"


def _spread(spread: "Spread | None", unit: str = "x") -> str:
    if spread is None:
        return ""
    return f"{spread.median:.2f} {unit} ({spread.lowest:.2f} to {spread.highest:.2f})"


def _maybe(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _speed(report: Any) -> "Table":
    right = ("samples", "tokens", "tokens/s", "seconds", "largest batch", "time per token to even")
    made = table(None, "dtype", "size", "setting", *right, right=right)
    for row in report.rows:
        made.add_row(
            row.dtype,
            row.size,
            row.setting,
            f"{row.samples:,}",
            f"{row.tokens:,}",
            f"{row.tokens_per_second:,.0f}",
            _spread(row.seconds, "s"),
            _maybe(row.batch_sequences, ",d"),
            _spread(row.time_per_token_to_even),
        )
    return made


def _peers(report: Any) -> "Table":
    right = (
        *("tokens/s", "p50 ms", "p99 ms", "processor s", "speedup", "peak MiB"),
        *("largest difference", "cosine mean", "min"),
    )
    made = table(None, "workload", "engine", *right, right=right)
    for row in report.timed:
        made.add_row(
            _loaded(row.workload, row.load),
            row.engine,
            f"{row.tokens_per_second:,.0f}",
            f"{row.call_p50_ms:.2f}",
            f"{row.call_p99_ms:.2f}",
            f"{row.processor_seconds.median:.3f}",
            _spread(row.times_as_fast),
            _maybe(row.peak_extra_mib, ",.0f"),
            f"{row.agreement.largest_difference:.1e}",
            f"{row.agreement.cosine_mean:.6f}",
            f"{row.agreement.cosine_min:.6f}",
        )
    return made


def _started(report: Any) -> "Table":
    right = ("cold start", "processor time", "peak RSS MiB")
    made = table(None, "start", "engine", *right, right=right)
    for row in report.started:
        made.add_row(
            _loaded(f"first of {row.workload}", row.load),
            row.engine,
            _spread(row.wall_seconds, "s"),
            _spread(row.processor_seconds, "s"),
            _maybe(row.peak_mib, ",.0f"),
        )
    return made


def _loaded(name: str, load: int) -> str:
    return f"{name}, load {load}" if load else name


def _kernels(report: Any) -> "Table":
    right = (
        "tokens",
        "ms",
        "GFLOP/s",
        "share of peak",
        "error",
        "peak MiB",
        "vs. masked SDPA",
        "vs. rectangular",
    )
    made = table(None, "kernel", "dtype", "batch", *right, right=right)
    for row in report.rows:
        made.add_row(
            row.kernel,
            row.dtype,
            row.batch,
            f"{row.tokens:,}",
            f"{1e3 * row.seconds.median:,.2f}",
            f"{row.gflop_per_second:,.0f}",
            _maybe(row.share_of_peak, ".0%"),
            f"{row.largest_error:.1e}",
            _maybe(row.peak_extra_mib, ",.1f"),
            _spread(row.times_as_fast_as_masked),
            _spread(row.time_per_token_to_rectangular),
        )
    return made


def _accuracy(report: Any) -> "Table":
    right = ("cosine mean", "1st percentile", "min", "largest difference", "STS-B Spearman")
    made = table(None, "dtype", *right, right=right)
    for row in report.rows:
        found = row.agreement
        made.add_row(
            row.dtype,
            f"{found.cosine_mean:.6f}",
            f"{found.cosine_percentile_1:.6f}",
            f"{found.cosine_min:.6f}",
            f"{found.largest_difference:.1e}",
            _maybe(row.sts_b_spearman, ".4f"),
        )
    return made


def _texts(report: Any) -> str:
    lengths = ", ".join(f"{name} {value:.0f}" for name, value in report.lengths.items())
    return (
        f"{report.texts}; tokens per text: {lengths}; {report.sequences} texts per step; "
        f"loss of one batch before training: ours {report.loss_ours:.4f}, theirs {report.loss_theirs:.4f}"
    )


def _training(report: Any) -> "Table":
    right = ("tokens/s", "seconds per step", "padding", "vs. Trainer", "vs. grouped")
    made = table(None, "precision", "engine", *right, right=right)
    for row in report.rows:
        made.add_row(
            row.precision,
            row.engine,
            f"{row.tokens_per_second:,.0f}",
            _spread(row.seconds_per_step, "s"),
            f"{row.padding:.0%}",
            _spread(row.to_trainer),
            _spread(row.to_grouped),
        )
    return made
