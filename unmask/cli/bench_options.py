"""What the commands of ``unmask bench`` share: options, and what stands before and after a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.bench_tables import show
from unmask.cli.options import (
    DeviceOption,
    OutputOptions,
    RevisionOption,
    RunDtype,
    ThreadsOption,
    set_threads,
)
from unmask.errors import InvalidRequest
from unmask.files import check_can_write

if TYPE_CHECKING:
    from unmask.measure.bench.pictures import Report
    from unmask.measure.benchmark_model import BenchmarkModel

LengthsOption = Annotated[
    str, Parameter(name="--lengths", help="tokens, one number or several with commas: 512,2048")
]
TextsOption = Annotated[Path | None, Parameter(help="a file of texts, one a line; none invents some")]
CountOption = Annotated[int, Parameter(help="how many texts")]
RoundsOption = Annotated[int, Parameter(help="how often each is timed, all in turn")]
SecondsOption = Annotated[
    float | None, Parameter(help="begin no further round when the timed ones took as long")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Which model is measured."""

    model: Annotated[
        str | None, Parameter(name=["--model", "-m"], help="a checkpoint folder, a hub id, or default")
    ] = None
    architecture: Annotated[
        str | None,
        Parameter(name="--architecture", help="random weights of a published size, such as modernbert-base"),
    ] = None
    layers: Annotated[
        int | None, Parameter(name="--layers", help="keep the first layers of an architecture alone")
    ] = None
    revision: RevisionOption = None

    @contextmanager
    def chosen(
        self, seed: int, *, pretraining: bool = False, tokenizer: Path | None = None
    ) -> Iterator["BenchmarkModel"]:
        """What the options name, or the default model; gone when the block ends if it was made for it."""
        from unmask.measure.benchmark_model import benchmark_model

        name = "default" if self.model is None and self.architecture is None else self.model
        with benchmark_model(
            name,
            self.architecture,
            layers=self.layers,
            seed=seed,
            revision=self.revision,
            pretraining=pretraining,
            tokenizer=tokenizer,
        ) as chosen:
            yield chosen


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasureOptions(OutputOptions):
    """What every measurement has."""

    threads: ThreadsOption = None
    seed: Annotated[int, Parameter(name="--seed", help="of weights, texts and ids")] = 0

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Refuse at once what could not be written at the end; torch's threads are put back after."""
        import torch

        self.check()
        before = torch.get_num_threads()
        set_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchOptions(MeasureOptions):
    """What benchmarks share whose report can be drawn."""

    dtype: Annotated[
        list[RunDtype] | None, Parameter(name="--dtype", negative="", help="number format; may be repeated")
    ] = None
    device: DeviceOption = "cpu"
    picture: Annotated[
        Path | None, Parameter(name="--picture", help="draw it to this file, .png or .svg")
    ] = None

    def check(self) -> None:
        """Refuse at once what could not be written or drawn at the end."""
        if self.picture is not None:
            from unmask.measure.bench.pictures import check_picture

            check_picture(self.picture)
            check_can_write(self.picture)
        super().check()

    def finish(self, report: "Report") -> None:
        """Write, draw and print a report, whichever is asked for."""
        self.write(report)
        if self.picture is not None:
            from unmask.measure.bench.pictures import draw

            draw(report, self.picture)
        if not self.printed(report):
            show(report)


BENCH = BenchOptions()
MEASURE = MeasureOptions()
SUBJECT = SubjectOptions()


def numbers(text: str) -> list[int]:
    """Numbers with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"--lengths is {text!r}; give numbers with commas, such as 512,2048") from None
