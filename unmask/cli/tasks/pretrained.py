"""Commands for the heads of pretraining: ``unmask fill`` and ``unmask follows``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from unmask.cli.inputs import LongestText
from unmask.cli.items import Columns, Item, text_of
from unmask.cli.options import (
    RUN,
    BlankOption,
    FormatOption,
    JsonOption,
    ModelOption,
    RunOptions,
    TruncationOption,
    how_many,
)
from unmask.cli.output import for_programs, marked, plain, printable, safe, tabbed, table
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.predict import (
    FILE,
    INPUT,
    FileOptions,
    InputOptions,
    Job,
    Name,
    Shown,
    predict,
    source_of,
    typed,
)
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.text.rows import TABLES, format_by_name

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.fill import FilledMask
    from unmask.tasks.follows import Continuation

    Masks = tuple[FilledMask, ...]


def fill(
    text: Annotated[
        str | None,
        Parameter(help="a text with mask tokens; default: standard input, one text per line"),
    ] = None,
    *,
    source: InputOptions = INPUT,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    top: Annotated[int, how_many("number of predictions per mask")] = 5,
    truncation: TruncationOption = "error",
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Predict the words at the mask tokens of a text, such as [MASK], or of every line of a file.

    Input of any size is streamed. With --json, each text gives one JSON object. To resume a stopped run with
    --output, give the same command again.
    """
    longest = LongestText()

    def predicted(loaded: "Model", items: Sequence[Item], name: Name, _: Progress) -> "Sequence[Masks]":
        from unmask.tasks.fill import of_encodings

        words = loaded.spec.embedding.vocabulary
        if not 1 <= top <= words:
            raise InvalidRequest(f"--top is {top}; it can be 1 to {words}")
        texts = [text_of(item) for item in items]
        encodings = longest.encode(loaded, texts, truncation, name)
        return of_encodings(loaded.reader, encodings, top_k=top, name=name)(loaded.engine)

    job = Job(
        verb="filling",
        run=run,
        model=model,
        predict=predicted,
        lines=_lines,
        details=lambda item, masks: {"text": item.value, "masks": plain(masks)},
        shown=_shown,
        json=json or target.json,
        settings=(top, truncation),
    )
    predict(job, source.items(text, ("lines", *TABLES)), target)
    longest.warn()


def _lines(item: Item, masks: "Masks") -> str:
    parts: list[str | Table] = []
    for mask in masks:
        before, after = item.shown[max(0, mask.start - 40) : mask.start], item.shown[mask.end : mask.end + 40]
        rows = [
            (f"{guess.probability:.4f}", safe(guess.text), safe(guess.piece)) for guess in mask.predictions
        ]
        parts += [
            f"{safe(before)}[bold]___[/bold]{safe(after)}",
            table(None, "probability", "word", "token", right=("probability",), rows=rows),
        ]
    return for_programs(*parts)


def _shown(item: Item, masks: "Masks") -> Shown:
    """The best words of each mask, after its number if there are several."""
    rows: list[Sequence[str | Text]] = [
        (
            *([str(number) if place == 0 else ""] if len(masks) > 1 else []),
            f"{best.probability:.4f}",
            Text(printable(best.text.strip() or best.text), "bold cyan"),
            Text(printable(best.piece), "dim"),
        )
        for number, mask in enumerate(masks, start=1)
        for place, best in enumerate(mask.predictions)
    ]
    return Shown(marked(item.shown, [(mask.start, mask.end) for mask in masks]), rows)


def follows(
    first: Annotated[
        str | None, Parameter(help="a text; default: standard input, two texts with a tab between them")
    ] = None,
    second: Annotated[str | None, Parameter(help="the text that may follow it")] = None,
    *,
    file: Annotated[str | None, Parameter(help="read this file instead of standard input")] = None,
    format: FormatOption = None,
    field: Annotated[
        str | None, Parameter(help='column (or key) of the first text, in a table; default: "text"')
    ] = None,
    pair_field: Annotated[
        str | None, Parameter(help='column (or key) of the second text, in a table; default: "pair"')
    ] = None,
    blank: BlankOption = "error",
    model: ModelOption,
    run: RunOptions = RUN,
    truncation: TruncationOption = "error",
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Say whether one text follows another, for checkpoints with the head of BERT's or ALBERT's pretraining.

    Reads lines of two texts with a tab between them, or JSON lines, CSV, TSV and Parquet. Prints yes or no, a
    tab and the probability. With --json, one object per pair. To resume a stopped run with --output, give the
    same command again.
    """
    if first == STANDARD_INPUT:
        first = None
    if (first is None) != (second is None) or (first is not None and file is not None):
        raise InvalidRequest("give two texts, or neither and a file or standard input with pairs")

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[Continuation]":
        return loaded.follows(
            [text_of(item) for item in items],
            [item.second or "" for item in items],
            truncation=truncation,
            progress=progress,
            name=name,
        )

    def cells(result: "Continuation") -> tuple[str, str]:
        return "yes" if result.follows else "no", f"{result.probability:.4f}"

    job = Job(
        verb="judging",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda _, result: tabbed([cells(result)]),
        details=lambda item, result: {"text": item.value, "pair": item.second, **plain(result)},
        shown=lambda item, result: Shown(
            marked(f"{item.value}  |  {item.second}"), [cells(result)], ("bold cyan",)
        ),
        json=json or target.json,
        settings=(field, pair_field, truncation),
    )
    if first is not None and second is not None:
        predict(job, typed(f"{first}\t{second}", first, second), target)
        return
    if (format or format_by_name(file or "")) in TABLES:
        columns = Columns(field, pair_field or "pair")
    elif field is None and pair_field is None:
        columns = Columns(None, tabs=True)
    else:
        raise InvalidRequest("--field and --pair-field are for tables, and lines are read; leave them out")
    predict(job, source_of(file, format, ("lines", *TABLES), columns, blank), target)
