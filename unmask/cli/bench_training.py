"""``unmask bench training``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from unmask.cli.bench_options import (
    MEASURE,
    SUBJECT,
    MeasureOptions,
    RoundsOption,
    SecondsOption,
    SubjectOptions,
    TextsOption,
)
from unmask.cli.bench_tables import show
from unmask.cli.output import progress


def training(
    *,
    subject: SubjectOptions = SUBJECT,
    tokenizer: Annotated[
        Path | None, Parameter(help="a folder whose tokenizer an architecture gets; none invents words")
    ] = None,
    precision: Annotated[
        list[Literal["float32", "autocast", "bfloat16"]] | None,
        Parameter(negative="", help="of the step; may be repeated"),
    ] = None,
    texts: TextsOption = None,
    sequences: Annotated[int, Parameter(help="texts of a step")] = 8,
    steps: Annotated[
        int, Parameter(help="of a round; Trainer groups texts by length from 8 on, within a quarter of them")
    ] = 16,
    longest: Annotated[int, Parameter(help="tokens of a text, at most; longer ones are cut")] = 512,
    compile: Annotated[bool, Parameter(help="run ours with compiled layers")] = False,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 120,
    options: MeasureOptions = MEASURE,
) -> None:
    """A training step of ours beside transformers with its Trainer: same weights, texts and precision."""
    with (
        options.prepared(),
        subject.chosen(options.seed, pretraining=True, tokenizer=tokenizer) as chosen,
    ):
        from unmask.measure.bench.training import measure_training

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
