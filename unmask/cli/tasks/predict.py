"""Predictions for a text, or for every input of a file or of standard input: streamed, and resumable."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.base.resume import ResumableFile
from unmask.cli.inputs import Inputs, LineReader, Survey, line_name, require_texts, survey
from unmask.cli.items import Columns, Item, Read, format_of, item_reader
from unmask.cli.options import BlankOption, FieldOption, FormatOption, RunOptions
from unmask.cli.output import json_line, on_terminal, print_aligned, progress
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.bulk import BulkOptions, run_bulk
from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks import Progress
from unmask.tasks.values import LongTexts
from unmask.text.rows import Format
from unmask.weights.read.fingerprint import fingerprint

if TYPE_CHECKING:
    from unmask.bulk import BatchTask
    from unmask.models.load import Model

MANY_WINDOWS = 100
"""Windows of one text from which on a command says how many they are; so many take a few seconds."""

TextOption = Annotated[str | None, Parameter(help="a text; default: standard input, one text per line")]
LongTextsOption = Annotated[
    LongTexts,
    Parameter(
        name="--truncation",
        help="read a text longer than the model's maximum in windows, reject it, or truncate its end",
    ),
]
OverlapOption = Annotated[
    int | None, Parameter(name="--overlap-tokens", help="tokens that neighboring windows share; default: 64")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What is read."""

    file: Annotated[str | None, Parameter(help="read this file instead of standard input")] = None
    format: FormatOption = None
    field: FieldOption = None
    blank: BlankOption = "error"

    def given(self, formats: tuple[Format, ...], pair: str | None = None, tabs: bool = False) -> "Given":
        """The input's name and reader.

        Raises:
            InvalidRequest: the format does not exist, or an option does not fit it.
        """
        # Lines with a tab are read as such whatever the ending of the file's name.
        form = format_of(self.file or "", self.format or ("lines" if tabs else None), formats)
        columns = Columns(self.field, pair, tabs)
        return Given(self.file or STANDARD_INPUT, form, item_reader(form, columns, self.blank))

    def refuse_for_a_text(self) -> None:
        """Refuse what has no meaning for a text on the command line.

        Raises:
            InvalidRequest: such an option is given.
        """
        if self.file is not None:
            raise InvalidRequest("give either a text or --file FILE")
        if self.field is not None or self.blank != "error" or self.format is not None:
            raise InvalidRequest(
                "--field, --format and --blank are for lines; leave them out, or give --file FILE"
            )

    def files(self, text: str | None) -> list[str]:
        """The files of a run with --engine, which knows formats by the endings of names.

        Raises:
            InvalidRequest: none is named, or there is a text, or a format.
        """
        if text is not None or self.file is None:
            raise InvalidRequest("--engine reads files; name one, or several with *, by --file")
        if self.format is not None:
            raise InvalidRequest("--engine knows formats by the endings of names; leave --format out")
        return [self.file]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Where predictions go."""

    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="write the predictions to this file (with --engine: folder), which a stopped run resumes; "
            "default: print them",
        ),
    ] = None
    overwrite: Annotated[bool, Parameter(negative="", help="replace a finished output")] = False
    restart: Annotated[bool, Parameter(negative="", help="discard the progress of a stopped run")] = False

    @property
    def json(self) -> bool:
        """Whether the file is one of JSON lines by its name."""
        return self.output is not None and self.output.suffix in (".jsonl", ".ndjson")

    def run_bulk(self, task: "BatchTask", inputs: Sequence[str], bulk: BulkOptions, *, json: bool) -> None:
        """Run a task over files into the output, a folder of shards, and print a summary."""
        run_bulk(task, inputs, self.output, bulk, overwrite=self.overwrite, restart=self.restart, json=json)


INPUT = InputOptions()
FILE = FileOptions()


@dataclass(frozen=True)
class Given:
    """An input."""

    name: str
    format: Format
    read: Read


@dataclass(frozen=True)
class Job:
    """What a command computes for each input, and how it writes it."""

    verb: str
    run: RunOptions
    model: str
    predict: Callable[["Model", Sequence[Item], Callable[[int], str], Progress], Sequence[Any]]
    """Computes the predictions for some inputs; errors name them by the third argument."""
    row: Callable[["Model", Item, Any], str]
    """The lines that show a prediction, with their line ends."""
    settings: tuple[object, ...] = ()
    """Options that the rows depend on."""
    finish: Callable[[Path, Path], None] | None = None
    """Makes the finished file (the second path) from the rows (the first)."""
    default_adapter: str | None = None
    """The adapter of the model "default" if none is named."""
    in_tabs: bool = False
    """Rows are cells separated by tabs, which a terminal shows in columns."""

    def load(self) -> "Model":
        """Load the model."""
        return self.run.load(self.model, self.default_adapter)


def named(loaded: "Model", item: Item, **result: object) -> str:
    """A prediction as a line of JSON: model, place and result."""
    return json_line({"model": loaded.name, "revision": loaded.revision, **(item.place or {}), **result})


def predict_text(job: Job, item: Item) -> None:
    """Print the prediction for one text."""
    loaded = job.load()
    with progress(job.verb, 0) as report:
        (one,) = job.predict(loaded, [item], lambda _: "the text", over_windows(report, "the text"))
    _print(job, loaded, item, one)


def _print(job: Job, loaded: "Model", item: Item, prediction: Any) -> None:
    rows = job.row(loaded, item, prediction)
    if job.in_tabs and item.sentence is None and on_terminal():
        heading = item.value if isinstance(item.value, str) else " ".join(item.value)
        print_aligned(heading, rows)
    else:
        sys.stdout.write(rows)


def predict_items(job: Job, given: Given, file: FileOptions) -> None:
    """Write the prediction for every input, in order, as soon as its part of the input is computed.

    Raises:
        TextError: an input is blank, invalid or too long.
        OutputError: the output exists, was begun with another input or options, or cannot be written.
    """
    output = file.output
    with Inputs(
        [given.name],
        given.read,
        reread=output is not None,
        beside=None if output is None else output.parent,
    ) as inputs:
        found = survey(inputs) if inputs.rereadable else None
        if found is not None:
            require_texts(found.texts)
        loaded = job.load()
        reader = LineReader(inputs.lines())
        if output is None:
            with progress(job.verb, found.texts if found else 0) as report:
                for items, predictions in _predicted(job, loaded, reader, found, report):
                    for item, prediction in zip(items, predictions, strict=True):
                        _print(job, loaded, item, prediction)
                    sys.stdout.flush()
            require_texts(reader.done)
            return
        assert found is not None
        resumed = _write(job, loaded, reader, found, file)
    earlier = f", {resumed:,} of them by an earlier run" if resumed else ""
    print(f"{reader.done:,} inputs{earlier}, in {output}")


def _write(job: Job, loaded: "Model", reader: LineReader, found: Survey, file: FileOptions) -> int:
    """Write rows to a file; return how many an earlier run had written."""
    assert file.output is not None
    run = job.run
    of_settings = fingerprint(
        loaded.checkpoint, (job.verb, run.dtype, run.compat, run.kernel, run.device, *job.settings)
    )
    with ExitStack() as stack:
        target = stack.enter_context(
            ResumableFile(
                file.output,
                partial(_fingerprint, of_settings, reader),
                found.texts,
                finish=job.finish,
                overwrite=file.overwrite,
                restart=file.restart,
            )
        )
        resumed = target.rows_done
        report = stack.enter_context(progress(job.verb, found.texts))
        for items, predictions in _predicted(job, loaded, reader, found, report):
            rows = "".join(job.row(loaded, item, one) for item, one in zip(items, predictions, strict=True))
            target.append(rows.encode(), len(items))
        if reader.digest() != found.digest:
            raise InvalidText("the input changed while it was read; run the command again")
    return resumed


def _fingerprint(of_settings: str, reader: LineReader, rows: int) -> str:
    """Fingerprint of the first rows; the reader advances to their end."""
    reader.skip_to(rows)
    return hashlib.sha256(repr((of_settings, reader.digest())).encode()).hexdigest()


def _predicted(
    job: Job, loaded: "Model", reader: LineReader, found: Survey | None, report: Progress
) -> Iterator[tuple[list[Item], Sequence[Any]]]:
    """Inputs with their predictions, part by part."""
    total = found.texts if found else 0
    while True:
        first, part = reader.done, reader.take()
        if not part:
            return
        items = [line for line in part if isinstance(line, Item)]
        name = partial(line_name, part)
        within = over_windows(report, name(0)) if len(part) == 1 else _within(report, first, len(part), total)
        yield items, job.predict(loaded, items, name, within)
        report(reader.done, total)


def over_windows(report: Progress, name: str) -> Progress:
    """Reports the windows of one text, and says once how many there are of a long one, such as a book."""
    told = False

    def windows(done: int, of: int) -> None:
        nonlocal told
        if of >= MANY_WINDOWS and not told:
            told = True
            print(
                f"note: {name} is read in {of:,} windows; --truncation end reads its beginning alone",
                file=sys.stderr,
                flush=True,
            )
        report(done, of)

    return windows


def _within(report: Progress, first: int, count: int, total: int) -> Progress:
    """Reports the windows of a part that are done as inputs of the whole."""
    return lambda done, of: report(first + count * done // max(of, 1), total)
