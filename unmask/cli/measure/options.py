"""What commands that measure this machine share: options, and the steps before and after a measurement."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from unmask.base.arguments import comma_separated
from unmask.base.files import check_can_write
from unmask.cli.options import (
    DeviceOption,
    OutputOptions,
    RevisionOption,
    RunDtype,
    ThreadsOption,
    listed,
    set_threads,
)
from unmask.cli.output import progress
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.bench.benchmark_model import BenchmarkModel

Report = TypeVar("Report")

LengthsOption = Annotated[list[str] | None, listed("lengths in tokens", "--lengths")]
TextsOption = Annotated[
    Path | None, Parameter(help="a file with one text per line; default: synthetic texts")
]
CountOption = Annotated[int, Parameter(help="number of texts")]
RenameOption = Annotated[
    str | None,
    Parameter(
        name="--rename-labels",
        help="what the model calls labels of the file: OLD=NEW, separated by commas",
    ),
]
RoundsOption = Annotated[int, Parameter(help="timed rounds, alternating between candidates")]
SecondsOption = Annotated[float | None, Parameter(help="time budget; no new round starts after it")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Which model is measured."""

    model: Annotated[
        str | None, Parameter(name=["--model", "-m"], help="a checkpoint folder, a hub id, or default")
    ] = None
    architecture: Annotated[
        str | None,
        Parameter(
            name="--architecture",
            help="a published architecture with random weights, such as modernbert-base",
        ),
    ] = None
    layers: Annotated[
        int | None, Parameter(name="--layers", help="keep only the first N layers of an architecture")
    ] = None
    revision: RevisionOption = None

    @contextmanager
    def chosen(self, seed: int) -> Iterator["BenchmarkModel"]:
        """The model that the options name, or the default; a temporary one is deleted when the block ends."""
        from unmask.bench.benchmark_model import benchmark_model

        name = "default" if self.model is None and self.architecture is None else self.model
        with benchmark_model(
            name,
            self.architecture,
            layers=self.layers,
            seed=seed,
            revision=self.revision,
        ) as chosen:
            yield chosen


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasureOptions(OutputOptions):
    """Options of every measurement."""

    threads: ThreadsOption = None
    seed: Annotated[int, Parameter(name="--seed", help="random seed of weights, texts and ids")] = 0

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Fail early if the output cannot be written; torch's thread count is restored afterwards."""
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
    """Options of benchmarks that can draw a chart."""

    dtype: Annotated[list[RunDtype] | None, listed("dtype to compute in", "--dtype")] = None
    device: DeviceOption = "cpu"
    picture: Annotated[
        Path | None, Parameter(name="--picture", help="write a chart to this file, .png or .svg")
    ] = None

    def check(self) -> None:
        """Fail early if the output cannot be written or drawn."""
        if self.picture is not None:
            from unmask.bench.speed.pictures import check_picture

            check_picture(self.picture)
            check_can_write(self.picture)
        super().check()

    def measure(
        self, what: str, measure: Callable[..., Report], *subject: object, **settings: object
    ) -> Report:
        """Call the function with these arguments, the device, the seed and a report of progress."""
        with progress(what, 0) as report:
            return measure(*subject, **settings, device=self.device, seed=self.seed, progress=report)

    def draw(self, report: Report, draw: Callable[[Report, Path], None]) -> None:
        """Draw the report if a picture is named."""
        if self.picture is not None:
            draw(report, self.picture)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LabeledOptions:
    """The columns of a labeled file."""

    text: Annotated[str | None, Parameter(name="--text", help="the column of the text; default: text")] = None
    pair: Annotated[str | None, Parameter(name="--pair", help="the column of the second text of a pair")] = (
        None
    )
    label: Annotated[
        str | None, Parameter(name="--label", help="the column of the label; default: label")
    ] = None
    columns: Annotated[
        str | None,
        Parameter(
            name="--columns", help="names of the columns of a file without a header, separated by commas"
        ),
    ] = None
    rename_labels: RenameOption = None

    @property
    def keys(self) -> dict[str, Any]:
        """As keys of a run file's ``[data]``; None where the user named no value."""
        return {
            "text": self.text,
            "pair": self.pair,
            "label": self.label,
            "columns": comma_separated(self.columns) if self.columns else None,
            "rename_labels": renamed(self.rename_labels),
        }


BENCH = BenchOptions()
LABELED = LabeledOptions()
MEASURE = MeasureOptions()
SUBJECT = SubjectOptions()


def numbers(lengths: Sequence[str]) -> list[int]:
    """The integers of ``--lengths``."""
    try:
        return [int(part) for part in lengths]
    except ValueError:
        raise InvalidRequest(
            f"--lengths is {','.join(lengths)!r}; give integers separated by commas, such as 512,2048"
        ) from None


def renamed(option: str | None) -> dict[str, str] | None:
    """The new name of each old one."""
    if option is None:
        return None
    pairs = [pair.partition("=") for pair in comma_separated(option)]
    if not pairs or not all(old and sign and new for old, sign, new in pairs):
        raise InvalidRequest(f"--rename-labels is {option!r}; write OLD=NEW, separated by commas")
    return {old: new for old, _, new in pairs}
