"""``unmask extract``: what a schema names, of a text or of every input of a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from unmask.cli.items import Item, text_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import marked, plain, printable, tabbed
from unmask.cli.tasks.predict import (
    FILE,
    INPUT,
    FileOptions,
    InputOptions,
    Job,
    LongTextsOption,
    Name,
    Shown,
    predict,
)
from unmask.errors import InvalidRequest, quoted
from unmask.tasks import Progress
from unmask.text.rows import TABLES

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.schema import Extraction


def extract(
    text: Annotated[
        str | None, Parameter(help="a text; default: those of a file or of standard input")
    ] = None,
    *,
    schema: Annotated[
        str,
        Parameter(help='JSON such as {"entities": ["person"]}, or the name of a file of it'),
    ],
    source: InputOptions = INPUT,
    model: ModelOption,
    run: RunOptions = RUN,
    threshold: Annotated[
        float, Parameter(help="the least probability of a span, where the schema says none")
    ] = 0.5,
    truncation: LongTextsOption = "window",
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Extract the entities, relations, records and classes that a schema names, with a checkpoint of GLiNER2.

    Prints a line for each: its kind, its name, its text or texts, and its probability, separated by tabs;
    with --json, one object per text. To resume a stopped run with --output, give the same command again.
    """
    asked = _schema(schema)

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[Extraction]":
        return loaded.extract(
            [text_of(item) for item in items],
            asked,
            threshold=threshold,
            truncation=truncation,
            progress=progress,
            name=name,
        )

    def shown(item: Item, result: "Extraction") -> Shown:
        spans = [(entity.start, entity.end) for entity in result.entities]
        rows: list[Sequence[str | Text]] = [
            (kind, name, Text(printable(words), "bold cyan"), score)
            for kind, name, words, score in _rows(result)
        ]
        return Shown(marked(item.shown, spans), rows)

    job = Job(
        verb="extracting",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda _, result: tabbed(list(_rows(result))),
        details=lambda item, result: {"text": item.value, **plain(result)},
        shown=shown,
        json=json or target.json,
        settings=(asked, threshold, truncation),
    )
    predict(job, source.items(text, ("lines", *TABLES)), target)


def _schema(schema: str) -> dict[str, Any]:
    """The JSON of ``--schema``, or of the file that it names, checked before a model is loaded."""
    from pathlib import Path

    from unmask.base.files import read_bytes
    from unmask.base.json_settings import JsonSettings
    from unmask.tasks.schema import schema_of

    if schema.lstrip().startswith("{"):
        content, name = schema.encode(), "--schema"
    else:
        if not Path(schema).is_file():
            raise InvalidRequest(
                f"--schema is {quoted(schema)}, which is neither JSON nor a file; give JSON such as "
                '{"entities": ["person"]}, or the name of a file of it'
            )
        content, name = read_bytes(Path(schema), InvalidRequest), schema
    values = dict(JsonSettings.parse(content, name).values)
    schema_of(values)
    return values


def _rows(result: "Extraction") -> Sequence[tuple[str, str, str, str]]:
    """Kind, name, text and probability of everything that was extracted."""
    rows = [("entity", it.label, it.text, f"{it.score:.4f}") for it in result.entities]
    for relation in result.relations:
        ends = f"{relation.head.text} -> {relation.tail.text}"
        rows.append(("relation", relation.name, ends, f"{min(relation.head.score, relation.tail.score):.4f}"))
    for number, record in enumerate(result.records, start=1):
        for field, values in record.fields.items():
            for value in values:
                name = f"{record.name} {number}: {field}"
                rows.append(("record", name, value.text, f"{value.score:.4f}"))
    for name, classes in result.classes.items():
        rows += [("class", name, label, f"{classes.scores[label]:.4f}") for label in classes.labels]
    return rows
