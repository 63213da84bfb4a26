"""``unmask prune``: the sentences of a document that a query needs, or those of every document of a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from unmask.cli.items import Columns, Item, text_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import marked, plain, printable, tabbed
from unmask.cli.streams import STANDARD_INPUT
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
    source_of,
    typed,
)
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.text.rows import TABLES

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.prune import PrunedText


def prune(
    document: Annotated[
        str | None, Parameter(help="a document; default: those of a file or of standard input")
    ] = None,
    *,
    query: Annotated[
        str | None,
        Parameter(help="what is asked of every document; default: that of each row of a table"),
    ] = None,
    input: InputOptions = INPUT,
    query_field: Annotated[
        str | None, Parameter(help='column (or key) of the query, in a table; default: "query"')
    ] = None,
    model: ModelOption,
    run: RunOptions = RUN,
    threshold: Annotated[
        float | None, Parameter(help="how much a sentence must be needed to stay; default: the checkpoint's")
    ] = None,
    keep_first: Annotated[
        bool, Parameter(negative="", help="keep the first sentence, such as a title, if any stays")
    ] = False,
    truncation: LongTextsOption = "window",
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Keep the sentences of a document that a query needs, with a checkpoint of Provence or OpenProvence.

    Prints the document's relevance, how many of its sentences stay, and the text of these, separated by tabs;
    with --json, one object with every sentence. To resume a stopped run with --output, give the same command
    again.
    """
    text = document if document != STANDARD_INPUT else None
    if text is not None and query is None:
        raise InvalidRequest("there is no query; give --query TEXT beside the document")
    if query is not None and query_field is not None:
        raise InvalidRequest("--query asks the same of every document; leave it or --query-field out")

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[PrunedText]":
        return loaded.prune(
            [text_of(item) for item in items],
            [str(item.second) for item in items] if query is None else query,
            threshold=threshold,
            keep_first=keep_first,
            truncation=truncation,
            progress=progress,
            name=name,
        )

    def counts(result: "PrunedText") -> tuple[str, str]:
        score = "" if result.score is None else f"{result.score:.4f}"
        staying = sum(sentence.stays for sentence in result.sentences)
        return score, f"{staying} of {len(result.sentences)}"

    def shown(item: Item, result: "PrunedText") -> Shown:
        rows: list[Sequence[str | Text]] = [
            (f"{it.score:.4f}", Text(printable(it.text), "bold cyan" if it.stays else "dim"))
            for it in result.sentences
        ]
        asked = query if query is not None else str(item.second)
        return Shown(marked(f"{asked}  |  {'  '.join(counts(result)).strip()}"), rows)

    job = Job(
        verb="pruning",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda _, result: tabbed([(*counts(result), result.text)]),
        details=lambda item, result: {
            "query": item.second if query is None else query,
            "document": item.value,
            **plain(result),
        },
        shown=shown,
        json=json or target.json,
        settings=(query, query_field, threshold, keep_first, truncation),
    )
    if text is not None:
        input.refuse_for_a_text()
        predict(job, typed(text, text, query), target)
        return
    pair = (query_field or "query") if query is None else None
    columns = Columns(input.field, pair, options=("--field", "--query-field"))
    formats = TABLES if query is None else ("lines", *TABLES)
    predict(job, source_of(input.file, input.format, formats, columns, input.blank), target)
