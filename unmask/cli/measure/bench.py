"""``unmask bench``: speed, kernels and accuracy, measured on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from unmask.base.files import check_can_write
from unmask.cli.measure.options import (
    BENCH,
    LABELED,
    SUBJECT,
    BenchOptions,
    LabeledOptions,
    LengthsOption,
    RoundsOption,
    SecondsOption,
    SubjectOptions,
    TextsOption,
    numbers,
)
from unmask.cli.options import OUTPUT, AdapterOption, OutputOptions, listed
from unmask.cli.output import console, plain, safe, table
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from unmask.bench.speed.accuracy import AccuracyReport, TaskAccuracyReport
    from unmask.bench.speed.kernels import KernelsReport
    from unmask.bench.speed.speed import SpeedReport
    from unmask.bench.timing import Spread
    from unmask.training.run.log import TrainingCurve

bench = App(
    name="bench", help="Measure speed, memory and accuracy of numbers on this machine.", sort_key=1000
)


@bench.command
def speed(
    *,
    subject: SubjectOptions = SUBJECT,
    size: Annotated[list[Literal["short", "long"]] | None, listed("only this size")] = None,
    causal: Annotated[
        bool,
        Parameter(
            help="also time a decoder of equal size: the same layers with causal attention", negative=""
        ),
    ] = False,
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
            causal=causal,
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
    task: Annotated[
        Literal["classification", "tagging", "answers", "scores"] | None,
        Parameter(help="measure a head on labeled data instead of embeddings"),
    ] = None,
    texts: TextsOption = None,
    count: Annotated[
        int | None, Parameter(help="the first N texts; default: 1000, and all with --task")
    ] = None,
    data: Annotated[
        Path | None,
        Parameter(
            help="a data folder that contains glue/STS-B; with --task a labeled file, or such a folder"
        ),
    ] = None,
    columns: LabeledOptions = LABELED,
    adapter: AdapterOption = None,
    max_drop: Annotated[
        float | None,
        Parameter(help="fail if a dtype lowers the metric by more, in its unit; percent for answers"),
    ] = None,
    options: BenchOptions = BENCH,
) -> None:
    """Measure the accuracy cost of a dtype: embeddings, or a head on labeled data, compared with float32."""
    if count is not None and count < 1:
        raise InvalidRequest(f"--count is {count}; give at least 1")
    _check_accuracy(task=task, texts=texts, data=data, columns=columns, adapter=adapter, max_drop=max_drop)
    with options.prepared(), subject.chosen(options.seed) as chosen:
        from unmask.bench.speed.accuracy import (
            check_drop,
            labeled_data,
            measure_accuracy,
            measure_task_accuracy,
        )

        dtypes = options.dtype or ["bfloat16", "float16", "int8"]
        report: AccuracyReport | TaskAccuracyReport
        if task is None:
            report = options.measure(
                "Embedding",
                measure_accuracy,
                chosen,
                dtypes=dtypes,
                texts=texts,
                count=1000 if count is None else count,
                data=data,
            )
            _finish(options, report, _accuracy)
        else:
            labeled = labeled_data(task, data or Path(), columns.keys)
            report = options.measure(
                "Predicting",
                measure_task_accuracy,
                chosen,
                task,
                labeled,
                adapter=adapter,
                dtypes=dtypes,
                count=count,
            )
            _finish(options, report, _task_accuracy)
    if max_drop is not None:
        check_drop(report, max_drop)


@bench.command
def runs(
    folders: Annotated[list[Path], Parameter(help="folders of training runs")],
    /,
    *,
    metric: Annotated[str, Parameter(help="the figure, such as masked/loss or dev/accuracy")],
    reaches: Annotated[list[float] | None, listed("values whose times are reported")] = None,
    of: Annotated[
        Literal["held_out", "step"], Parameter(help="figures of evaluations, or of the texts trained on")
    ] = "held_out",
    picture: Annotated[Path | None, Parameter(help="write a chart to this file, .png or .svg")] = None,
    options: OutputOptions = OUTPUT,
) -> None:
    """Time to accuracy: when each of several training runs reached a value of a figure, by its log."""
    from unmask.bench.speed.pictures import check_picture, draw_curves
    from unmask.training.run.log import read_curve

    if picture is not None:
        check_picture(picture)
        check_can_write(picture)
    options.check()
    curves = [read_curve(folder, metric, of) for folder in folders]
    if picture is not None:
        draw_curves(curves, reaches or [], picture)
    options.finish(
        [
            {**plain(curve), "reached": {str(value): plain(curve.reached(value)) for value in reaches or []}}
            for curve in curves
        ],
        lambda _: console().print(_times(curves, reaches or [])),
    )


def _times(curves: "Sequence[TrainingCurve]", values: "Sequence[float]") -> "Table":
    named = [f"seconds to {value:g}" for value in values]
    right = ("seconds", "steps", f"best {curves[0].metric}", "after", *named)
    grid = table(None, "run", *right, right=right)
    for curve in curves:
        last, best = curve.points[-1], curve.best
        firsts = [curve.reached(value) for value in values]
        grid.add_row(
            safe(curve.run),
            f"{last.seconds:,.1f}",
            f"{last.step:,}",
            f"{best.value:.4f}",
            f"{best.seconds:,.1f}",
            *("not reached" if first is None else f"{first.seconds:,.1f}" for first in firsts),
        )
    return grid


def _check_accuracy(
    *,
    task: str | None,
    texts: Path | None,
    data: Path | None,
    columns: LabeledOptions,
    adapter: str | None,
    max_drop: float | None,
) -> None:
    """Refuse options that have no effect together, and a bound without a metric."""
    if task is None:
        named = {"adapter": adapter, **columns.keys}
        if used := [name for name, value in named.items() if value is not None]:
            option = used[0].replace("_", "-")
            raise InvalidRequest(f"--{option} is given without --task; name the task too, or leave it out")
    elif texts is not None:
        raise InvalidRequest(f"--texts is given with --task {task}, which reads labeled texts; use --data")
    elif data is None:
        raise InvalidRequest(f"--task {task} needs labeled texts; name a file or a data folder with --data")
    if max_drop is None:
        return
    if not 0 <= max_drop < float("inf"):
        raise InvalidRequest(f"--max-drop is {max_drop:g}; give a number of at least 0")
    if data is None:
        raise InvalidRequest("--max-drop is given and no metric is measured; name labeled data with --data")


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
    for line in getattr(report, "card", ()):
        screen.print(safe(f"for a model card: {line}"))
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
    decoder = () if report.causal is None else ("attention", "time to bidirectional")
    grid = table(None, "dtype", *decoder, "size", "setting", *right, right=(*right, *decoder[1:]))
    for row in report.rows:
        grid.add_row(
            row.dtype,
            *((row.attention, spread_of(row.time_to_bidirectional)) if decoder else ()),
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


def _task_accuracy(report: "TaskAccuracyReport") -> "Table":
    right = (
        report.metric,
        "change",
        "95 % interval",
        f"{report.counted} that differ",
        "largest logit difference",
    )
    grid = table(None, "dtype", *right, right=right)
    for row in report.rows:
        grid.add_row(
            row.dtype,
            f"{row.metric:.4f}",
            f"{row.change:+.4f}",
            f"{row.change_interval:+.4f}",
            f"{row.flips:,} of {row.predictions:,}",
            f"{row.largest_logit_difference:.1e}",
        )
    return grid
