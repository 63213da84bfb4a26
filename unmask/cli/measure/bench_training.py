"""``unmask bench training``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from unmask.cli.lists import listed
from unmask.cli.measure.bench_options import (
    MEASURE,
    SUBJECT,
    MeasureOptions,
    RoundsOption,
    SecondsOption,
    SubjectOptions,
    TextsOption,
)
from unmask.cli.measure.bench_tables import show
from unmask.cli.output import progress


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
    with (
        options.prepared(),
        subject.chosen(options.seed, pretraining=True, tokenizer=tokenizer) as chosen,
    ):
        from unmask.bench.speed.training import measure_training

        with progress("Training", 0) as report:
            made = measure_training(
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
                progress=report,
            )
    options.write(made)
    if not options.printed(made):
        show(made)
