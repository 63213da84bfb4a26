"""``unmask similarity``: how similar two texts are, or the two texts on each line of a file."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, BinaryIO

from cyclopts import Parameter
from rich.text import Text

from unmask.cli.inputs import LongestText
from unmask.cli.items import Columns, Item
from unmask.cli.options import (
    RUN,
    BlankOption,
    FormatOption,
    JsonOption,
    ModelOption,
    PoolingOption,
    RunOptions,
    TruncationOption,
)
from unmask.cli.output import marked
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.predict import FILE, FileOptions, Job, Name, Shown, Source, predict, source_of, typed
from unmask.errors import EmptyText, InvalidRequest
from unmask.tasks import Progress
from unmask.tasks.embed import Metric
from unmask.tasks.prompts import chosen_prompt
from unmask.text import Blank, Line
from unmask.text.rows import TABLES, Format, format_by_name

if TYPE_CHECKING:
    from unmask.models.load import Model


def similarity(
    text: Annotated[
        str | None, Parameter(help="the first text; - reads standard input, one pair per line")
    ] = None,
    other: Annotated[str | None, Parameter(help="the second text")] = None,
    *,
    file: Annotated[
        str | None, Parameter(help="read this file instead: two texts per line, separated by a tab")
    ] = None,
    format: FormatOption = None,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    metric: Annotated[
        Metric, Parameter(help="how vectors are compared; distances are negated: larger is more similar")
    ] = "cosine",
    truncation: TruncationOption = "error",
    blank: BlankOption = "error",
    fields: Annotated[
        tuple[str, str] | None,
        Parameter(negative="", help="take the texts from these two columns of a table; lines are then JSON"),
    ] = None,
    pooling: PoolingOption = None,
    target: FileOptions = FILE,
    json: JsonOption = False,
) -> None:
    """Compare the embeddings of two texts, or of the two texts on every line of a file.

    Prints one score per pair, or with --json one JSON object. Input of any size is streamed. To resume a
    stopped run with --output, give the same command again.
    """
    source = _source(text, other, file)
    if source is None and (fields is not None or blank != "error" or format is not None):
        raise InvalidRequest(
            "--fields and --blank are for lines, as --format is; leave them out, or give --file FILE"
        )
    longest = LongestText()

    def predicted(loaded: "Model", items: Sequence[Item], name: Name, _: Progress) -> list[float]:
        head = loaded.embedding_head(pooling)
        prompt = chosen_prompt(head, None, None, loaded.name)

        def named(index: int) -> str:
            return name(index // 2) if source is not None else ("the first text", "the second text")[index]

        pairs = [text or "" for item in items for text in (item.shown, item.second)]
        encodings = longest.encode(loaded, pairs, truncation, named, prompt)
        embeddings_SE = loaded.embed_encodings(encodings, head, prompt=prompt, name=named)
        return [
            float(loaded.similarity(a_E, b_E, metric=metric)[0, 0])
            for a_E, b_E in zip(embeddings_SE[::2], embeddings_SE[1::2], strict=True)
        ]

    def shown(item: Item, score: float) -> Shown:
        first, second = (marked(text or "", bold=False) for text in (item.shown, item.second))
        line = Text().append(f"{score:7.4f}", "bold cyan").append("  ").append_text(first)
        return Shown(line.append("  |  ", "dim").append_text(second), None)

    job = Job(
        verb="comparing",
        run=run,
        model=model,
        predict=predicted,
        lines=lambda _, score: f"{score:.4f}\n",
        details=lambda item, score: {"text": item.value, "other": item.second, "score": score},
        shown=shown,
        json=json or target.json,
        settings=(metric, truncation, pooling),
        facts={"metric": metric},
    )
    if source is None:
        predict(job, typed(f"{text}\t{other}", text or "", other), target)
    else:
        predict(job, _pairs(source, format, fields, blank), target)
    longest.warn()


def _source(text: str | None, other: str | None, file: str | None) -> str | None:
    """The file or standard input that the pairs are read from; None if two texts are given.

    Raises:
        InvalidRequest: the arguments are neither of these.
    """
    match [text is not None, other is not None, file is not None]:
        case [True, True, False] if STANDARD_INPUT not in (text, other):
            return None
        case [True, False, False] if text == STANDARD_INPUT:
            return text
        case [False, False, True]:
            return file
        case _:
            raise InvalidRequest("give two texts, or --file FILE or - for lines with two texts each")


def _pairs(name: str, requested: Format | None, fields: tuple[str, str] | None, blank: Blank) -> Source:
    """The pairs of a file or of standard input, of which neither text is blank.

    Raises:
        InvalidRequest: the columns of a table are not named.
    """
    if fields is None and requested not in (None, "lines"):
        raise InvalidRequest(f"--format is {requested}, which has columns; name two of them with --fields")
    form = requested or format_by_name("" if name == STANDARD_INPUT else name)
    if fields is None:
        form, columns = "lines", Columns(None, tabs=True, options=("--fields", "--fields"))
    else:
        form = "jsonl" if form == "lines" else form
        columns = Columns(*fields, options=("--fields", "--fields"))
    source = source_of(name, form, ("lines", *TABLES), columns, blank)

    def read(stream: BinaryIO, where: str) -> Iterator[Line]:
        for item in source.read(stream, where):
            assert isinstance(item, Item)
            if not item.shown.strip() or not (item.second or "").strip():
                raise EmptyText(f"{item} holds a blank text; give two texts, or remove the line")
            yield item

    return replace(source, read=read)
