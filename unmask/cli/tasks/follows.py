"""``unmask follows``: whether one text follows another, or the second text of each pair of a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.items import Columns, Item, text_of
from unmask.cli.options import (
    RUN,
    BlankOption,
    FormatOption,
    JsonOption,
    ModelOption,
    RunOptions,
    TruncationOption,
)
from unmask.cli.output import marked, plain, tabbed
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.predict import FILE, FileOptions, Job, Name, Shown, predict, source_of, typed
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.text.rows import TABLES, format_by_name

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.follows import Continuation


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
