"""``unmask bench``: speed, peers, kernels and accuracy, measured on this machine."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from unmask.cli.lists import listed
from unmask.cli.measure.bench_options import (
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
from unmask.cli.measure.bench_training import training
from unmask.cli.output import progress

bench = App(
    name="bench",
    help="Measure speed, memory and accuracy on this machine, alone or compared with other libraries.",
    sort_key=1000,
)

bench.command(training)


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

        with progress("Timing", 0) as report:
            made = measure_speed(
                chosen,
                dtypes=options.dtype or ["float32"],
                sizes=size or ["short", "long"],
                samples=samples,
                tokens_per_pass=tokens_per_pass,
                rounds=rounds,
                device=options.device,
                seed=options.seed,
                budget_seconds=seconds,
                progress=report,
            )
    options.finish(made)


@bench.command
def peers(
    *,
    subject: SubjectOptions = SUBJECT,
    work: Annotated[
        list[Literal["mixed", "online", "query", "document"]] | None,
        listed("only this workload"),
    ] = None,
    texts: TextsOption = None,
    count: CountOption = 1000,
    lengths: LengthsOption = None,
    against: Annotated[str | None, Parameter(help="the engine that ratios are relative to")] = None,
    peer: Annotated[list[str] | None, listed("only this library")] = None,
    memory: Annotated[
        bool, Parameter(help="also measure peak memory of each workload, in separate processes")
    ] = True,
    starts: Annotated[
        int, Parameter(help="fresh processes per engine, for cold start and its memory; 0: none")
    ] = 3,
    load: Annotated[
        int, Parameter(help="also time everything beside N spinning processes, after doing it without")
    ] = 0,
    rounds: RoundsOption = 5,
    seconds: SecondsOption = 120,
    options: BenchOptions = BENCH,
) -> None:
    """Compare with other installed libraries: same weights and texts, alternating, outputs checked first."""
    with options.prepared(), subject.chosen(options.seed) as chosen:
        from unmask.bench.speed.peers import measure_peers

        with progress("Comparing", 0) as report:
            made = measure_peers(
                chosen,
                work or ["mixed", "online", "query"],
                dtypes=options.dtype or ["float32", "bfloat16", "int8"],
                texts=texts,
                count=count,
                lengths=numbers(lengths or ["512"]),
                rounds=rounds,
                against=against,
                only=peer or (),
                memory=memory,
                starts=starts,
                load=load,
                device=options.device,
                seed=options.seed,
                budget_seconds=seconds,
                progress=report,
            )
    options.finish(made)


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

        with progress("Attending", 0) as report:
            made = measure_kernels(
                pattern=pattern,
                position=position,
                lengths=numbers(lengths or ["512", "2048"]),
                dtypes=options.dtype or ["float32"],
                radius=radius,
                heads=heads,
                head_width=head_width,
                rounds=rounds,
                device=options.device,
                seed=options.seed,
                budget_seconds=seconds,
                progress=report,
            )
    options.finish(made)


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

        with progress("Embedding", 0) as report:
            made = measure_accuracy(
                chosen,
                dtypes=options.dtype or ["bfloat16", "float16", "int8"],
                texts=texts,
                count=count,
                data=data,
                device=options.device,
                seed=options.seed,
                progress=report,
            )
    options.finish(made)
