"""``unmask tag``: the entities of a text, or the label of each of its words."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.cli.items import Item
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import plain, safe
from unmask.cli.streams import STANDARD_INPUT
from unmask.cli.tasks.bulk import BULK, BulkOptions, task_settings
from unmask.cli.tasks.predict import (
    FILE,
    INPUT,
    FileOptions,
    InputOptions,
    Job,
    LongTextsOption,
    OverlapOption,
    TextOption,
    named,
    predict_items,
    predict_text,
)
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.tasks.values import Aggregation, SchemeName
from unmask.text.layouts import columns_of
from unmask.text.rows import TABLES

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.tag import Entity, TaggedWord, Tagging

TAB = "\t"
ADAPTER = "names"
"""The adapter of the default model that finds entities."""


def tag(
    text: TextOption = None,
    *,
    given: InputOptions = INPUT,
    model: ModelOption = "default",
    run: RunOptions = RUN,
    aggregation: Annotated[
        Aggregation, Parameter(help="label a word by its first token, or by the mean over its tokens")
    ] = "first",
    words: Annotated[
        bool, Parameter(negative="", help="print every word with its label, also where there are entities")
    ] = False,
    conll: Annotated[
        bool,
        Parameter(negative="", help="print a word and its label per line; default for input in that format"),
    ] = False,
    scheme: Annotated[
        SchemeName | None,
        Parameter(help="write labels of entities in this scheme; default: that of the model"),
    ] = None,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    file: FileOptions = FILE,
    bulk: BulkOptions = BULK,
    json: JsonOption = False,
) -> None:
    """Find the entities of a text, or of every input of a file; or its words' labels.

    Reads lines, JSON lines, CSV, TSV and Parquet, and CoNLL and CoNLL-U, whose words are used as they are.
    Prints start, end, label, probability and text of each entity or word, separated by tabs, with a blank
    line after each text; CoNLL is printed with the predicted label as its last column; with --json one object
    per text. Offsets count characters of the text. To resume a stopped run with --output, give the same
    command again. Without a model, the default one reads with its adapter "names": persons, organizations and
    places. With --engine, several processes read shards of the file, and --output is a folder.
    """
    bulk.check()
    if bulk.engine is not None:
        from unmask.bulk import BatchTagger

        if conll:
            raise InvalidRequest("--conll is for lines; with --engine, leave it out")
        task = BatchTagger(
            **task_settings(model, run, given.field, given.blank, ADAPTER),
            words=words,
            scheme=scheme,
            aggregation=aggregation,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
        )
        file.run_bulk(task, given.files(text), bulk, json=json)
        return
    json = json or file.json

    def predict(
        loaded: "Model", items: Sequence[Item], name: Callable[[int], str], progress: Progress
    ) -> "Sequence[Tagging]":
        options: dict[str, Any] = {
            "aggregation": aggregation,
            "truncation": truncation,
            "overlap_tokens": overlap_tokens,
        }
        found = _tagged(loaded, items, name, progress, options)
        return found if scheme is None else [one.in_scheme(scheme) for one in found]

    def row(loaded: "Model", item: Item, found: "Tagging") -> str:
        if json:
            result = plain(found)
            if not words:
                del result["words"]
            shown = item.value if isinstance(item.value, str) else " ".join(item.value)
            return named(loaded, item, text=shown, **result)
        if conll or item.sentence is not None:
            return _conll(item, found)
        return _table(found.words if words or not found.has_entities else found.entities)

    settings = (aggregation, words, conll, scheme, truncation, overlap_tokens, json)
    job = Job(
        "tagging", run, model, predict, row, settings, default_adapter=ADAPTER, in_tabs=not json and not conll
    )
    if text is not None and text != STANDARD_INPUT:
        given.refuse_for_a_text()
        predict_text(job, Item(text, "", 0, "the text", None, text))
    else:
        source = given.given(("lines", *TABLES, "conll", "conllu"))
        if truncation == "end" and not json and (conll or source.format == "conll"):
            raise InvalidRequest(
                "--truncation end would leave words of a CoNLL file without a label; use window, or --json"
            )
        predict_items(job, source, file)


def _tagged(
    loaded: "Model",
    items: Sequence[Item],
    name: Callable[[int], str],
    progress: Progress,
    options: Mapping[str, Any],
) -> "list[Tagging]":
    """The predictions for texts and for lists of words, in the given order."""
    found: dict[int, Tagging] = {}
    for kind in (str, tuple):
        chosen = [index for index, item in enumerate(items) if isinstance(item.value, kind)]
        values: list[Any] = [items[index].value for index in chosen]
        called = partial(_called, name, chosen)
        tagged = loaded.tag(values, progress=progress, name=called, **options) if values else []
        found |= zip(chosen, tagged, strict=True)
    return [found[index] for index in range(len(items))]


def _called(name: Callable[[int], str], chosen: Sequence[int], index: int) -> str:
    return name(chosen[index])


def _table(shown: "Sequence[TaggedWord | Entity]") -> str:
    rows = (
        f"{one.start}\t{one.end}\t{safe(one.label)}\t{one.score:.4f}\t{safe(one.text)}\n" for one in shown
    )
    return "".join(rows) + "\n"


def _conll(item: Item, found: "Tagging") -> str:
    """A word per line with its label last, after the columns that the input has."""
    if item.sentence is None:
        given = item.value
        lines = [one.text for one in found.words] if isinstance(given, str) else list(given)
        before: Sequence[str] = ()
    else:
        lines, before = list(item.sentence.lines), item.sentence.before
    rows = [_with_column(line, label) for line, label in zip(lines, found.labels(len(lines)), strict=True)]
    starts = [_with_column(line, "O") + "\n" for line in before]
    return "".join(row + "\n" for row in (*starts, *rows, ""))


def _with_column(line: str, value: str) -> str:
    """A line of CoNLL with one more column, separated as the others are."""
    return f"{line}{' ' if len(columns_of(line)) > 1 and TAB not in line else TAB}{value}"
