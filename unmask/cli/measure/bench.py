"""``unmask bench``: speed, kernels and accuracy, measured on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from unmask.cli.measure.options import (
    BENCH,
    SUBJECT,
    BenchOptions,
    CountOption,
    LengthsOption,
    RoundsOption,
    SecondsOption,
    SubjectOptions,
    TextsOption,
    numbers,
)
from unmask.cli.options import listed
from unmask.cli.output import console, safe, table

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.bench.speed.accuracy import AccuracyReport
    from unmask.bench.speed.kernels import KernelsReport
    from unmask.bench.speed.speed import SpeedReport
    from unmask.bench.timing import Spread

bench = App(
    name="bench", help="Measure speed, memory and accuracy of numbers on this machine.", sort_key=1000
)


@bench.command
def speed(
    *,
    subject: SubjectOptions = SUBJECT,
    size: Annotated[list[Literal["short", "long"]] | None, listed("only this size")] = None,
    samples: Annotated[
        int | None, Parameter(help="sequences per setting; default: chosen for the device")
    ] = None,
    tokens_per_pass: Annotated[int | None, Parameter(help="maximum tokens per forward pass")] = None,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 120,
    options: BenchOptions = BENCH,
) -> None:
    """Tokens per second by the protocol of the ModernBERT paper: fixed and variable, short and long."""
    with options.prepared(), subject.chosen(options.seed) as chosen:
        from unmask.bench.speed.speed import measure_speed

        report = options.measure(
            "Timing",
            measure_speed,
            chosen,
            dtypes=options.dtype or ["float32"],
            sizes=size or ["short", "long"],
            samples=samples,
            tokens_per_pass=tokens_per_pass,
            rounds=rounds,
            budget_seconds=seconds,
        )
    _finish(options, report, _speed)


@bench.command
def kernels(
    *,
    pattern: Annotated[
        Literal["full", "causal", "sliding-window", "sliding-window-global", "block-sparse"],
        Parameter(help="attention pattern"),
    ] = "full",
    position: Annotated[
        Literal["none", "alibi", "disentangled"], Parameter(help="position bias added to the scores")
    ] = "none",
    lengths: LengthsOption = None,
    radius: Annotated[int, Parameter(help="window radius, or block size")] = 64,
    heads: Annotated[int, Parameter(help="attention heads")] = 12,
    head_width: Annotated[int, Parameter(help="width of each head")] = 64,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 60,
    options: BenchOptions = BENCH,
) -> None:
    """Compare each attention kernel with the reference: error, time, memory, share of peak performance."""
    with options.prepared():
        from unmask.bench.speed.kernels import measure_kernels

        report = options.measure(
            "Attending",
            measure_kernels,
            pattern=pattern,
            position=position,
            lengths=numbers(lengths or ["512", "2048"]),
            dtypes=options.dtype or ["float32"],
            radius=radius,
            heads=heads,
            head_width=head_width,
            rounds=rounds,
            budget_seconds=seconds,
        )
    _finish(options, report, _kernels)


@bench.command
def accuracy(
    *,
    subject: SubjectOptions = SUBJECT,
    texts: TextsOption = None,
    count: CountOption = 1000,
    data: Annotated[Path | None, Parameter(help="a data folder that contains glue/STS-B")] = None,
    options: BenchOptions = BENCH,
) -> None:
    """Measure the accuracy cost of a dtype: its embeddings compared with those in float32."""
    with options.prepared(), subject.chosen(options.seed) as chosen:
        from unmask.bench.speed.accuracy import measure_accuracy

        report = options.measure(
            "Embedding",
            measure_accuracy,
            chosen,
            dtypes=options.dtype or ["bfloat16", "float16", "int8"],
            texts=texts,
            count=count,
            data=data,
        )
    _finish(options, report, _accuracy)


def _finish(options: BenchOptions, report: Any, tabulate: Callable[[Any], "Table"]) -> None:
    from unmask.bench.speed.pictures import draw

    options.draw(report, draw)
    options.finish(report, lambda report: show(report, tabulate(report)))


def show(report: Any, *tables: "Table", notes: tuple[str, ...] = ()) -> None:
    """Print what was measured, its tables, what was left out and why, and the machine."""
    screen = console()
    measured = getattr(report, "measured", None)
    if measured is not None:
        screen.print(safe(measured.title))
    for note in notes:
        screen.print(safe(note))
    for shown in tables:
        screen.print(shown)
    for left_out in report.left_out:
        work = f" on {left_out.work}" if left_out.work else ""
        screen.print(safe(f"left out: {left_out.name}{work}: {left_out.reason}"))
    screen.print(safe(report.machine.line))


def spread_of(spread: "Spread | None", unit: str = "x") -> str:
    """A median with the lowest and highest round; empty where there is none."""
    if spread is None:
        return ""
    return f"{spread.median:.2f} {unit} ({spread.lowest:.2f} to {spread.highest:.2f})"


def number_of(value: float | None, form: str) -> str:
    """A number in this form; empty where there is none."""
    return "" if value is None else format(value, form)


def _speed(report: "SpeedReport") -> "Table":
    right = ("samples", "tokens", "tokens/s", "seconds", "largest batch", "time per token to even")
    grid = table(None, "dtype", "size", "setting", *right, right=right)
    for row in report.rows:
        grid.add_row(
            row.dtype,
            row.size,
            row.setting,
            f"{row.samples:,}",
            f"{row.tokens:,}",
            f"{row.tokens_per_second:,.0f}",
            spread_of(row.seconds, "s"),
            number_of(row.batch_sequences, ",d"),
            spread_of(row.time_per_token_to_even),
        )
    return grid


def _kernels(report: "KernelsReport") -> "Table":
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
    grid = table(None, "kernel", "dtype", "batch", *right, right=right)
    for row in report.rows:
        grid.add_row(
            row.kernel,
            row.dtype,
            row.batch,
            f"{row.tokens:,}",
            f"{1e3 * row.seconds.median:,.2f}",
            f"{row.gflop_per_second:,.0f}",
            number_of(row.share_of_peak, ".0%"),
            f"{row.largest_error:.1e}",
            number_of(row.peak_extra_mib, ",.1f"),
            spread_of(row.times_as_fast_as_masked),
            spread_of(row.time_per_token_to_rectangular),
        )
    return grid


def _accuracy(report: "AccuracyReport") -> "Table":
    right = ("cosine mean", "1st percentile", "min", "largest difference", "STS-B Spearman")
    grid = table(None, "dtype", *right, right=right)
    for row in report.rows:
        agreement = row.agreement
        grid.add_row(
            row.dtype,
            f"{agreement.cosine_mean:.6f}",
            f"{agreement.cosine_percentile_1:.6f}",
            f"{agreement.cosine_min:.6f}",
            f"{agreement.largest_difference:.1e}",
            number_of(row.sts_b_spearman, ".4f"),
        )
    return grid
