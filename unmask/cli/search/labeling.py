"""``unmask label-errors`` and ``unmask next``: labels that are probably wrong, and texts to label next."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.base.progress import counted
from unmask.cli.inputs import Inputs
from unmask.cli.items import Columns, Item, format_of, item_reader, text_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, how_many
from unmask.cli.output import console, json_line, marked, on_terminal, progress, table
from unmask.cli.search.corpus import TEXTS, FilesArgument, TextOptions, items_of, opened_texts, place_of
from unmask.cli.streams import STANDARD_INPUT
from unmask.errors import InvalidRequest
from unmask.search.options import Acquisition
from unmask.text import Line
from unmask.text.row_copies import check_copy, copy_rows
from unmask.text.rows import TABLES, Format

if TYPE_CHECKING:
    from unmask.search.labeling import ChosenText, LabelErrors, SuspectLabel

LISTED = 20
"""Labels that are printed for people."""

LabelField = Annotated[str, Parameter(help="the column (or JSON key) of the label")]


def _labeled(
    files: Sequence[str], options: TextOptions, label: str, probabilities: str | None = None
) -> list[Item]:
    """The rows of tables with a text and a label each."""
    columns = Columns(
        options.field, label, numbers=True, probabilities=probabilities, options=("--field", "--label-field")
    )

    def read(stream: BinaryIO, name: str) -> Iterator[Line]:
        form = format_of(name, options.format, TABLES)
        yield from item_reader(form, columns, options.blank)(stream, name)

    with Inputs(files, read, reread=False) as inputs:
        return items_of(inputs)


def label_errors(
    files: FilesArgument = None,
    /,
    *,
    model: ModelOption = "default",
    label_field: LabelField = "label",
    probabilities_field: Annotated[
        str | None,
        Parameter(
            help="a column with the probability of each label, by a model that was not trained on these "
            "rows; no classifier is then fitted"
        ),
    ] = None,
    folds: Annotated[int, Parameter(help="parts of the texts; a label is judged by the other parts")] = 5,
    seed: Annotated[int, Parameter(help="of the folds")] = 0,
    top: Annotated[
        int | None, how_many("labels to list, least probable first; default: all that are probably wrong")
    ] = None,
    texts: TextOptions = TEXTS,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Find labels of texts that are probably wrong, by a classifier that was fitted to other texts.

    Reads tables with a text and a label in each row. Logistic regression on the vectors of the texts predicts
    each fold from the others (confident learning). Labels are listed by their probability, the lowest first,
    each with the most probable other label. In a pipe, and with --json, there is one JSON object for each,
    then a summary with the confident joint.
    """
    from unmask.search.labeling import find_label_errors

    if not files:
        raise InvalidRequest("no inputs are given; name tables, or - for standard input")
    if top is not None and top < 1:
        raise InvalidRequest(f"--top is {top}; it must be at least 1")
    items = _labeled(files, texts, label_field, probabilities_field)
    probabilities = None if probabilities_field is None else [item.probabilities for item in items]
    with progress("texts embedded", len(items)) as report:
        result = find_label_errors(
            [text_of(item) for item in items],
            [item.second or "" for item in items],
            model if probabilities is not None else run.load(model),
            probabilities=cast("list[dict[str, float]] | None", probabilities),
            folds=folds,
            seed=seed,
            truncation=texts.truncation,
            pooling=texts.pooling,
            progress=report,
        )
    suspects = [row for row in result.rows if row.is_confident] if top is None else result.rows[:top]
    if json or not on_terminal():
        for suspect in suspects:
            values = asdict(suspect)
            row = items[values.pop("row")]
            print(json_line(place_of(row) | {"text": row.value} | values), end="")
        summary = {key: value for key, value in vars(result).items() if key != "rows"}
        print(json_line({"kind": "summary", **summary}), end="")
    else:
        _show_errors(items, result, suspects)


def _show_errors(items: Sequence[Item], result: "LabelErrors", suspects: "Sequence[SuspectLabel]") -> None:
    columns = ("label", "probability", "rather", "probability", "text")
    grid = table(None, *columns, right=("probability",))
    for suspect in suspects[:LISTED]:
        grid.add_row(
            marked(suspect.label, bold=False),
            f"{suspect.self_confidence:.3f}",
            marked(suspect.suggested, bold=False),
            f"{suspect.suggested_probability:.3f}",
            marked(f"{items[suspect.row]}: {items[suspect.row].shown}", bold=False),
        )
    if suspects:
        console().print(grid)
    if len(suspects) > LISTED:
        print(f"and {len(suspects) - LISTED:,} more; --json lists all")
    print(
        f"{result.errors:,} of {counted(result.texts, 'label')} are probably wrong; {result.agreement:.1%} "
        "are the most probable ones"
    )
    if result.truncated_texts:
        print(f"{counted(result.truncated_texts, 'text')} read in the beginning alone")


def next_(
    files: FilesArgument = None,
    /,
    *,
    labeled: Annotated[
        list[str] | None,
        Parameter(negative="", help="tables with texts that have a label; repeat it for more"),
    ] = None,
    label_field: LabelField = "label",
    model: ModelOption = "default",
    number: Annotated[int, Parameter(name=["--number", "-n"], help="how many texts to choose")] = 20,
    by: Annotated[
        Acquisition | None,
        Parameter(
            help="how texts are chosen: the least sure, the farthest from what is labeled, or by both; "
            "default: margin, or both without labels"
        ),
    ] = None,
    seed: Annotated[int, Parameter(help="of what is drawn")] = 0,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="write the chosen rows, in the format of the pool"),
    ] = None,
    texts: TextOptions = TEXTS,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Choose the texts of a pool to label next: those that a classifier would learn most from.

    The classifier, logistic regression on the vectors of texts, is fitted to --labeled. Without it texts are
    chosen that differ from each other. Texts that are labeled are not chosen again. In a pipe, and with
    --json, there is one JSON object for each text, then a summary.
    """
    from unmask.search.labeling import choose_texts

    form: Format | None = None
    if output is not None:
        check_can_write(output)
        names = ["" if name == STANDARD_INPUT else name for name in files or ()]
        form = check_copy(output, [format_of(name, texts.format, ("lines", *TABLES)) for name in names])
    known = _labeled(labeled, texts, label_field) if labeled else []
    with opened_texts(files, texts, output) as inputs:
        items = items_of(inputs)
        with progress("texts embedded", len(items) + len(known)) as report:
            result = choose_texts(
                [text_of(item) for item in items],
                number,
                run.load(model),
                labeled=[text_of(item) for item in known],
                labels=[item.second or "" for item in known],
                by=by,
                seed=seed,
                truncation=texts.truncation,
                pooling=texts.pooling,
                progress=report,
            )
        if output is not None and form is not None:
            chosen = {(items[row.row].source, items[row.row].number) for row in result.rows}
            sources = inputs.sources
            copy_rows(inputs.streams(), form, lambda source, row: (sources[source], row) in chosen, output)
    if json or not on_terminal():
        for text in result.rows:
            values = asdict(text)
            row = items[values.pop("row")]
            print(json_line(place_of(row) | {"text": row.value} | values), end="")
        summary = {key: value for key, value in vars(result).items() if key != "rows"}
        print(json_line({"kind": "summary", **summary, "chosen": len(result.rows), "output": output}), end="")
    else:
        _show_chosen(items, result.rows)


def _show_chosen(items: Sequence[Item], rows: "Sequence[ChosenText]") -> None:
    grid = table(None, "predicted", "margin", "distance", "text", right=("margin", "distance"))
    for text in rows:
        grid.add_row(
            marked(text.predicted or "", bold=False),
            "" if text.margin is None else f"{text.margin:.3f}",
            "" if text.distance is None else f"{text.distance:.3f}",
            marked(f"{items[text.row]}: {items[text.row].shown}", bold=False),
        )
    console().print(grid)
