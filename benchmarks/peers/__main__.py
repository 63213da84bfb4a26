"""Other libraries beside `unmask`: ``python -m benchmarks.peers``, with ``training`` and ``scaling``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from unmask.cli.main import main
from unmask.cli.measure.options import (
    BENCH,
    MEASURE,
    SUBJECT,
    BenchOptions,
    CountOption,
    LengthsOption,
    MeasureOptions,
    RoundsOption,
    SecondsOption,
    SubjectOptions,
    TextsOption,
    numbers,
)
from unmask.cli.measure.scaling import SCALING, ScalingOptions
from unmask.cli.options import listed
from unmask.cli.output import progress

COMMAND = "python -m benchmarks.peers"
app = App(
    name=COMMAND,
    help="Compare unmask with other installed libraries on the same weights.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


@app.default
def compare(
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
    """Compare speed and memory: same weights and texts, alternating, outputs checked first."""
    with options.prepared(), subject.chosen(options.seed) as chosen:
        from benchmarks.peers.compare import measure_peers

        report = options.measure(
            "Comparing",
            measure_peers,
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
            budget_seconds=seconds,
        )
    from benchmarks.peers.report import draw_peers, show_peers

    options.draw(report, draw_peers)
    options.finish(report, show_peers)


@app.command
def training(
    *,
    subject: SubjectOptions = SUBJECT,
    tokenizer: Annotated[
        Path | None, Parameter(help="a folder with a tokenizer for --architecture; default: synthetic")
    ] = None,
    precision: Annotated[
        list[Literal["float32", "autocast", "bfloat16"]] | None,
        listed("precision of the step"),
    ] = None,
    texts: TextsOption = None,
    sequences: Annotated[int, Parameter(help="texts per step")] = 8,
    steps: Annotated[
        int,
        Parameter(help="steps per round; from 8 on, Trainer groups texts by length within a quarter of them"),
    ] = 16,
    longest: Annotated[int, Parameter(help="maximum tokens per text; longer texts are truncated")] = 512,
    compile: Annotated[bool, Parameter(help="compile our layers")] = False,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 120,
    options: MeasureOptions = MEASURE,
) -> None:
    """Compare a training step with the transformers Trainer: same weights, texts and precision."""
    from benchmarks.peers.training import measure_training, model_to_train

    with (
        options.prepared(),
        model_to_train(subject, options.seed, tokenizer) as chosen,
        progress("Training", 0) as watch,
    ):
        report = measure_training(
            chosen,
            precisions=precision or ["float32", "autocast"],
            texts=texts,
            sequences=sequences,
            steps=steps,
            longest=longest,
            compiled=compile,
            rounds=rounds,
            seed=options.seed,
            budget_seconds=seconds,
            progress=watch,
        )
    from benchmarks.peers.report import show_training

    options.finish(report, show_training)


@app.command
def scaling(
    *,
    subject: SubjectOptions = SUBJECT,
    peer: Annotated[list[str] | None, listed("this library, such as 'transformers eager'")] = None,
    kernel: Annotated[list[str] | None, listed("a kernel of unmask beside them; default: chosen")] = None,
    options: ScalingOptions = SCALING,
) -> None:
    """Measure length scaling of other libraries; `unmask scaling --show` shows and compares reports."""
    from benchmarks.peers.scaling import ways_measured
    from unmask.bench.scaling.settings import CHOSEN

    options.check()
    with ways_measured() as (names, measure):
        ways = (*(kernel or (CHOSEN,)), *(names if peer is None else peer))
        report = options.measure(subject, ways, measure=measure, others=names)
    options.present(report)


if __name__ == "__main__":
    main(lambda _: app, COMMAND)
