"""``unmask bench``: speed, peers, kernels and accuracy, measured here."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from unmask.cli.bench_tables import show
from unmask.cli.options import JsonOption, RevisionOption, RunDtype
from unmask.cli.output import plain, print_json, progress
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.measure.pictures import Report
    from unmask.measure.subject import Subject

bench = App(
    name="bench",
    help="Measure speed, memory and accuracy here, alone or beside other libraries.",
    sort_key=1000,
)

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


@bench.command
def speed(
    *,
    model: ModelChoice = None,
    shape: ShapeOption = None,
    layers: LayersOption = None,
    revision: RevisionOption = None,
    dtype: DtypesOption = None,
    device: DeviceOption = "cpu",
    size: Annotated[
        list[Literal["short", "long"]] | None, Parameter(negative="", help="only this one; may be repeated")
    ] = None,
    samples: Annotated[int | None, Parameter(help="sequences of a setting; none fits the device")] = None,
    tokens_per_pass: Annotated[int | None, Parameter(help="the most tokens that run together")] = None,
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 120,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Tokens per second by the protocol of the ModernBERT paper: fixed and variable, short and long."""
    with _prepared(output, picture, threads), _subject(model, shape, layers, seed, revision) as chosen:
        from unmask.measure.bench.speed import measure_speed

        with progress("Timing", 0) as report:
            made = measure_speed(
                chosen,
                dtypes=dtype or ["float32"],
                sizes=size or ["short", "long"],
                samples=samples,
                tokens_per_pass=tokens_per_pass,
                rounds=rounds,
                device=device,
                seed=seed,
                budget_seconds=seconds,
                progress=report,
            )
    _finish(made, output, picture, json)


@bench.command
def peers(
    *,
    model: ModelChoice = None,
    shape: ShapeOption = None,
    layers: LayersOption = None,
    revision: RevisionOption = None,
    dtype: DtypesOption = None,
    device: DeviceOption = "cpu",
    work: Annotated[
        list[Literal["mixed", "online", "query", "document"]] | None,
        Parameter(negative="", help="only this workload; may be repeated"),
    ] = None,
    texts: TextsOption = None,
    count: CountOption = 1000,
    lengths: LengthsOption = "512",
    against: Annotated[str | None, Parameter(help="the engine that ratios are taken to")] = None,
    peer: Annotated[list[str] | None, Parameter(negative="", help="only this one; may be repeated")] = None,
    memory: Annotated[bool, Parameter(help="measure peak memory too, in processes of their own")] = True,
    rounds: RoundsOption = 5,
    seconds: SecondsOption = 120,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Ours beside what else is installed: same weights, same texts, in turn, agreement before time."""
    with _prepared(output, picture, threads), _subject(model, shape, layers, seed, revision) as chosen:
        from unmask.measure.bench.peers import measure_peers

        with progress("Comparing", 0) as report:
            made = measure_peers(
                chosen,
                work or ["mixed", "online", "query"],
                dtypes=dtype or ["float32", "bfloat16", "int8"],
                texts=texts,
                count=count,
                lengths=_numbers(lengths),
                rounds=rounds,
                against=against,
                only=peer or (),
                memory=memory,
                device=device,
                seed=seed,
                budget_seconds=seconds,
                progress=report,
            )
    _finish(made, output, picture, json)


@bench.command
def kernels(
    *,
    reach: Annotated[
        Literal["whole", "window", "globals", "blocks"], Parameter(help="which keys a query sees")
    ] = "whole",
    position: Annotated[
        Literal["none", "alibi", "disentangled"], Parameter(help="what is added to scores")
    ] = "none",
    lengths: LengthsOption = "512,2048",
    dtype: DtypesOption = None,
    radius: Annotated[int, Parameter(help="of windows; the width of blocks")] = 64,
    heads: Annotated[int, Parameter(help="of the layer")] = 12,
    head_width: Annotated[int, Parameter(help="of each head")] = 64,
    device: DeviceOption = "cpu",
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 60,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Each attention kernel against the definition: error, time, memory, share of the machine's peak."""
    with _prepared(output, picture, threads):
        from unmask.measure.bench.kernels import measure_kernels

        with progress("Attending", 0) as report:
            made = measure_kernels(
                reach=reach,
                position=position,
                lengths=_numbers(lengths),
                dtypes=dtype or ["float32"],
                radius=radius,
                heads=heads,
                head_width=head_width,
                rounds=rounds,
                device=device,
                seed=seed,
                budget_seconds=seconds,
                progress=report,
            )
    _finish(made, output, picture, json)


@bench.command
def accuracy(
    *,
    model: ModelChoice = None,
    shape: ShapeOption = None,
    layers: LayersOption = None,
    revision: RevisionOption = None,
    dtype: DtypesOption = None,
    device: DeviceOption = "cpu",
    texts: TextsOption = None,
    count: CountOption = 1000,
    data: Annotated[Path | None, Parameter(help="a folder of data sets with glue/STS-B in it")] = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """What a number format costs: embeddings in it beside those in float32."""
    with _prepared(output, picture, threads), _subject(model, shape, layers, seed, revision) as chosen:
        from unmask.measure.bench.accuracy import measure_accuracy

        with progress("Embedding", 0) as report:
            made = measure_accuracy(
                chosen,
                dtypes=dtype or ["bfloat16", "float16", "int8"],
                texts=texts,
                count=count,
                data=data,
                device=device,
                seed=seed,
                progress=report,
            )
    _finish(made, output, picture, json)


@bench.command
def training(
    *,
    model: ModelChoice = None,
    shape: ShapeOption = None,
    layers: LayersOption = None,
    revision: RevisionOption = None,
    tokenizer: Annotated[
        Path | None, Parameter(help="a folder whose tokenizer a shape gets; none invents words")
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
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """A training step of ours beside transformers with its Trainer: same weights, texts and precision."""
    with (
        _prepared(output, None, threads),
        _subject(model, shape, layers, seed, revision, pretraining=True, tokenizer=tokenizer) as chosen,
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
                seed=seed,
                budget_seconds=seconds,
                progress=report,
            )
    _finish(made, output, None, json)


@contextmanager
def _prepared(output: Path | None, picture: Path | None, threads: int | None) -> Iterator[None]:
    """Refuse at once what could not be written at the end; torch's threads are put back after."""
    import torch

    if picture is not None:
        from unmask.measure.pictures import check_picture

        check_picture(picture)
    for path in (output, picture):
        if path is not None and not path.parent.is_dir():
            raise InvalidRequest(f"cannot write {path}: {path.parent} is no folder")
    if threads is not None and threads < 1:
        raise InvalidRequest(f"--threads is {threads}; it must be at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _subject(
    model: str | None,
    shape: str | None,
    layers: int | None,
    seed: int,
    revision: str | None,
    *,
    pretraining: bool = False,
    tokenizer: Path | None = None,
) -> Iterator["Subject"]:
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


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"--lengths is {text!r}; give numbers with commas, such as 512,2048") from None


def _finish(report: "Report", output: Path | None, picture: Path | None, json: bool) -> None:
    from unmask.files import whole_file

    if output is not None:
        from json import dumps

        with whole_file(output) as partial:
            partial.write_text(dumps(plain(report), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if picture is not None:
        from unmask.measure.pictures import draw

        draw(report, picture)
    if json:
        print_json(plain(report))
    else:
        show(report)
