"""What the commands of ``unmask bench`` share: options, and what stands before and after a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.bench_tables import show
from unmask.cli.options import RunDtype
from unmask.cli.output import plain, print_json
from unmask.errors import InvalidRequest
from unmask.files import check_can_write

if TYPE_CHECKING:
    from unmask.measure.bench.pictures import Report
    from unmask.measure.subject import Subject

ModelChoice = Annotated[
    str | None, Parameter(name=["--model", "-m"], help="a checkpoint folder, a hub id, or default")
]
ShapeOption = Annotated[
    str | None, Parameter(help="random weights of a published shape, such as modernbert-base")
]
LayersOption = Annotated[int | None, Parameter(help="keep the first layers of a shape alone")]
DtypesOption = Annotated[
    list[RunDtype] | None, Parameter(name="--dtype", negative="", help="number format; may be repeated")
]
DeviceOption = Annotated[str, Parameter(help="as torch names it")]
TextsOption = Annotated[Path | None, Parameter(help="a file of texts, one a line; none invents some")]
CountOption = Annotated[int, Parameter(help="how many texts")]
LengthsOption = Annotated[
    str, Parameter(name="--lengths", help="tokens, one number or several with commas: 512,2048")
]
OutputOption = Annotated[
    Path | None, Parameter(name=["--output", "-o"], help="write the report as JSON to this file")
]
PictureOption = Annotated[Path | None, Parameter(help="draw it to this file, .png or .svg")]
ThreadsOption = Annotated[int | None, Parameter(help="of torch; none leaves it as it is")]
RoundsOption = Annotated[int, Parameter(help="how often each is timed, all in turn")]
SeedOption = Annotated[int, Parameter(help="of weights, texts and ids")]
SecondsOption = Annotated[
    float | None, Parameter(help="begin no further round when the timed ones took as long")
]


@contextmanager
def prepared(output: Path | None, picture: Path | None, threads: int | None) -> Iterator[None]:
    """Refuse at once what could not be written at the end; torch's threads are put back after."""
    import torch

    if picture is not None:
        from unmask.measure.bench.pictures import check_picture

        check_picture(picture)
    for path in (output, picture):
        if path is not None:
            check_can_write(path)
    if threads is not None and threads < 1:
        raise InvalidRequest(f"--threads is {threads}; it must be at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def chosen_subject(
    model: str | None,
    shape: str | None,
    layers: int | None,
    seed: int,
    revision: str | None,
    *,
    pretraining: bool = False,
    tokenizer: Path | None = None,
) -> Iterator["Subject"]:
    """What the options name, or the default model; gone when the block ends if it was made for it."""
    from unmask.measure.subject import subject

    name = "default" if model is None and shape is None else model
    with subject(
        name,
        shape,
        layers=layers,
        seed=seed,
        revision=revision,
        pretraining=pretraining,
        tokenizer=tokenizer,
    ) as chosen:
        yield chosen


def numbers(text: str) -> list[int]:
    """Numbers with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"--lengths is {text!r}; give numbers with commas, such as 512,2048") from None


def finish(report: "Report", output: Path | None, picture: Path | None, json: bool) -> None:
    """Write, draw and print a report, whichever is asked for."""
    write_report(report, output)
    if picture is not None:
        from unmask.measure.bench.pictures import draw

        draw(report, picture)
    print_report(report, json)


def write_report(report: object, output: Path | None) -> None:
    """As JSON to a file, which appears whole; None writes nothing."""
    if output is not None:
        from json import dumps

        from unmask.files import whole_file

        with whole_file(output) as partial:
            partial.write_text(dumps(plain(report), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def print_report(report: object, json: bool) -> None:
    """As JSON or as a table."""
    if json:
        print_json(plain(report))
    else:
        show(report)
