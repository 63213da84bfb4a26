"""``unmask choose``: the choice that fits a question, or each row of a file with a question and choices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from unmask.cli.items import Columns, Item, text_of
from unmask.cli.options import RUN, BlankOption, FormatOption, JsonOption, ModelOption, RunOptions
from unmask.cli.output import marked, plain, printable, tabbed
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.predict import (
    FILE,
    FileOptions,
    Job,
    LongTextsOption,
    Name,
    OverlapOption,
    Shown,
    Source,
    predict,
    source_of,
    typed,
)
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.text.rows import TABLES, format_by_name

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.choose import Choice


def choose(
    question: Annotated[
        str | None, Parameter(help="a question; default: standard input, one JSON object per line")
    ] = None,
    *,
    choice: Annotated[
        list[str] | None,
        Parameter(negative="", help="a choice of the question; repeat it for each choice"),
    ] = None,
    file: Annotated[
        str | None, Parameter(help="read this file instead: JSON lines, a JSON list, CSV, TSV or Parquet")
    ] = None,
    format: FormatOption = None,
    model: ModelOption,
    run: RunOptions = RUN,
    question_field: Annotated[str, Parameter(help="the key or column of the question")] = "question",
    choices_field: Annotated[
        str,
        Parameter(help="the key or column of the list of choices, or several columns, separated by commas"),
    ] = "choices",
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    blank: BlankOption = "error",
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Choose between the choices of a question, or of every line, with the best one's probability.

    A line is a JSON object, such as {"question": "Where are we?", "choices": ["Here.", "There."]}; a table
    has these columns. Prints the number of the choice, counted from 0, its probability and its text,
    separated by tabs. With --json, one object per question, with the probability of every choice. To resume a
    stopped run with --output, give the same command again.
    """
    if question == STANDARD_INPUT:
        question = None
    if (question is not None) != bool(choice):
        raise InvalidRequest("give a question together with its choices (--choice), or lines of JSON")

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[Choice]":
        return loaded.choose(
            [text_of(item) for item in items],
            [item.choices for item in items],
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            progress=progress,
            name=name,
        )

    def details(item: Item, result: "Choice") -> dict[str, object]:
        return {"question": item.value, "choices": list(item.choices), **plain(result)}

    def shown(item: Item, result: "Choice") -> Shown:
        rows = [
            (
                str(number),
                f"{score:.4f}",
                Text(printable(text), "bold cyan" if number == result.index else ""),
            )
            for number, (score, text) in enumerate(zip(result.scores, item.choices, strict=True))
        ]
        return Shown(marked(item.shown), rows, ("dim",))

    job = Job(
        verb="choosing",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda _, result: tabbed([(str(result.index), f"{result.score:.4f}", result.label)]),
        details=details,
        shown=shown,
        json=json or target.json,
        settings=(question_field, choices_field, truncation, overlap_tokens),
    )
    items: Item | Source
    if question is not None:
        items = typed(question, question, choices=tuple(choice or ()))
    else:
        columns = Columns(
            question_field, choices=choices_field, options=("--question-field", "--choices-field")
        )
        in_lines = format is None and format_by_name(file or "") == "lines"
        items = source_of(file, "jsonl" if in_lines else format, TABLES, columns, blank)
    predict(job, items, target)
