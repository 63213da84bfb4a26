"""Predictions for a text, or for every input of a file or of standard input: streamed, and resumable.

A command that predicts declares a `Job`, and `predict` runs it.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from cyclopts import Parameter
from rich.text import Text

from unmask.base.progress import counted
from unmask.base.resume import ResumableFile
from unmask.cli.inputs import Inputs, LineReader, Survey, line_name, require_texts, survey
from unmask.cli.items import Columns, Item, Read, format_of, item_reader, pair_of
from unmask.cli.options import BlankOption, FieldOption, FormatOption, RunOptions
from unmask.cli.output import beside, json_line, on_terminal, print_prediction, progress
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.bulk import BulkOptions, run_bulk
from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks import Progress
from unmask.tasks.values import LongTexts
from unmask.text.rows import Blank, Format
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

    def items(
        self, text: str | None, formats: tuple[Format, ...], pair: str | None = None, tabs: bool = False
    ) -> "Source | Item":
        """The text of the command line, or the name and the reader of an input.

        Args:
            text: that of the command line, if there is one.
            formats: those that the command reads.
            pair: the column of second texts.
            tabs: whether a text, or a line, is two with a tab between them.

        Raises:
            InvalidRequest: the format does not exist, or an option does not fit it.
        """
        columns = Columns(self.field, pair, tabs)
        if text is not None and text != STANDARD_INPUT:
            self.refuse_for_a_text()
            return typed(text, *pair_of(text, "the text", columns)) if tabs else typed(text, text)
        # Lines with a tab are read as such whatever the ending of the file's name.
        return source_of(self.file, self.format or ("lines" if tabs else None), formats, columns, self.blank)

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
class Source:
    """An input."""

    name: str
    format: Format
    read: Read


def source_of(
    file: str | None,
    requested: Format | None,
    formats: tuple[Format, ...],
    columns: Columns,
    blank: Blank = "error",
) -> Source:
    """A file, or standard input for None, and its reader.

    Raises:
        InvalidRequest: the format does not exist, or the columns do not fit it.
    """
    name = file or STANDARD_INPUT
    form = format_of("" if name == STANDARD_INPUT else name, requested, formats)
    return Source(name, form, item_reader(form, columns, blank))


def typed(text: str, value: str, second: str | None = None, choices: tuple[str, ...] = ()) -> Item:
    """A text of the command line."""
    return Item(text, "", 0, "the text", None, value, second, choices=choices)


Name = Callable[[int], str]
"""How errors name an input."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Shown:
    """How people see a prediction: see `print_prediction`."""

    heading: Text
    rows: Sequence[Sequence[str | Text]] | None
    styles: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Result]):
    """A command: what it computes for each input, and how that is shown to programs and to people."""

    verb: str
    run: RunOptions
    model: str
    predict: Callable[["Model", Sequence[Item], Name, Progress], Sequence[Result]]
    """Computes the predictions for some inputs."""
    lines: Callable[[Item, Result], str]
    """What a program reads: lines of cells that tabs separate."""
    details: Callable[[Item, Result], Mapping[str, object]]
    """What --json has beside the model and the place."""
    shown: Callable[[Item, Result], Shown] | None = None
    """What people see; None for the lines."""
    json: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)
    """What --json has of the command itself."""
    settings: tuple[object, ...] = ()
    """Options that the rows depend on."""
    finish: Callable[[Path, Path], None] | None = None
    """Makes the finished file (the second path) from the rows (the first)."""
    default_adapter: str | None = None
    """The adapter of the model "default" if none is named."""

    def load(self) -> "Model":
        """Load the model."""
        return self.run.load(self.model, self.default_adapter)

    def row(self, loaded: "Model", item: Item, result: Result) -> str:
        """The lines of a prediction, with their line ends."""
        if not self.json:
            return self.lines(item, result)
        facts = {"model": loaded.name, "revision": loaded.revision, **self.facts, **(item.place or {})}
        return json_line({**facts, **self.details(item, result)})

    def show(self, loaded: "Model", item: Item, result: Result) -> None:
        """Print a prediction."""
        if self.json or self.shown is None or not on_terminal():
            sys.stdout.write(self.row(loaded, item, result))
        else:
            shown = self.shown(item, result)
            print_prediction(shown.heading, shown.rows, shown.styles)


def predict(job: Job[Any], source: Source | Item, file: FileOptions = FILE) -> None:
    """Print the prediction for one text, or write that of every input, as soon as its part is computed.

    Raises:
        TextError: an input is blank, invalid or too long.
        InvalidRequest: an output file is named for one text.
        OutputError: the output exists, was begun with another input or options, or cannot be written.
    """
    if isinstance(source, Item):
        if file.output is not None:
            raise InvalidRequest("--output is for lines; leave it out, or give --file FILE")
        loaded = job.load()
        with progress(job.verb, 0) as report:
            (result,) = job.predict(loaded, [source], lambda _: "the text", over_windows(report, "the text"))
        job.show(loaded, source, result)
        return
    output = file.output
    with Inputs(
        [source.name],
        source.read,
        reread=output is not None,
        beside=None if output is None else output.parent,
    ) as inputs:
        surveyed = survey(inputs) if inputs.rereadable else None
        if surveyed is not None:
            require_texts(surveyed.texts)
        loaded = job.load()
        reader = LineReader(inputs.lines())
        if output is None:
            with progress(job.verb, surveyed.texts if surveyed else 0) as report:
                for items, results in _predicted(job, loaded, reader, surveyed, report):
                    with beside(report):
                        for item, result in zip(items, results, strict=True):
                            job.show(loaded, item, result)
            require_texts(reader.done)
            return
        assert surveyed is not None
        resumed = _write(job, loaded, reader, surveyed, file)
    earlier = f", {resumed:,} of them by an earlier run" if resumed else ""
    print(f"{counted(reader.done, 'input')}{earlier}, in {output}")


def _write(job: Job[Any], loaded: "Model", reader: LineReader, surveyed: Survey, file: FileOptions) -> int:
    """Write rows to a file; return how many an earlier run had written."""
    assert file.output is not None
    run = job.run
    of_settings = fingerprint(
        loaded.checkpoint, (job.verb, run.dtype, run.compat, run.kernel, run.device, *job.settings, job.json)
    )
    with ExitStack() as stack:
        target = stack.enter_context(
            ResumableFile(
                file.output,
                partial(_fingerprint, of_settings, reader),
                surveyed.texts,
                finish=job.finish,
                overwrite=file.overwrite,
                restart=file.restart,
            )
        )
        resumed = target.rows_done
        report = stack.enter_context(progress(job.verb, surveyed.texts))
        for items, results in _predicted(job, loaded, reader, surveyed, report):
            rows = "".join(job.row(loaded, *pair) for pair in zip(items, results, strict=True))
            target.append(rows.encode(), len(items))
        if reader.digest() != surveyed.digest:
            raise InvalidText("the input changed while it was read; run the command again")
    return resumed


def _fingerprint(of_settings: str, reader: LineReader, rows: int) -> str:
    """Fingerprint of the first rows; the reader advances to their end."""
    reader.skip_to(rows)
    return hashlib.sha256(repr((of_settings, reader.digest())).encode()).hexdigest()


def _predicted(
    job: Job[Any], loaded: "Model", reader: LineReader, surveyed: Survey | None, report: Progress
) -> Iterator[tuple[list[Item], Sequence[Any]]]:
    """Inputs with their predictions, part by part."""
    total = surveyed.texts if surveyed else 0
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
    noted = False

    def windows(done: int, of: int) -> None:
        nonlocal noted
        if of >= MANY_WINDOWS and not noted:
            noted = True
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
