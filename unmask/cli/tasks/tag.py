"""``unmask tag``: the entities of a text, or the label of each of its words."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.base.arguments import comma_separated
from unmask.cli.items import Item
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import marked, plain, tabbed
from unmask.cli.tasks.bulk import BULK, BulkOptions, task_settings
from unmask.cli.tasks.predict import (
    FILE,
    INPUT,
    FileOptions,
    InputOptions,
    Job,
    LongTextsOption,
    Name,
    OverlapOption,
    Shown,
    Source,
    TextOption,
    predict,
)
from unmask.errors import InvalidRequest
from unmask.tasks import Progress
from unmask.tasks.classify import THRESHOLD
from unmask.tasks.values import Aggregation, SchemeName
from unmask.text.layouts import columns_of
from unmask.text.rows import TABLES

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.tag import Entity, TaggedWord, Tagging

TAB = "\t"
ADAPTER = "names"
"""The adapter of the default model that finds entities."""

BY_LABEL = "entities"
"""That which finds entities of labels that are named."""


def tag(
    text: TextOption = None,
    *,
    source: InputOptions = INPUT,
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
    labels: Annotated[
        str | None,
        Parameter(
            help="find entities of these types, separated by commas (those that hold commas in double "
            "quotes), with the default model's adapter entities, or a checkpoint of GLiNER"
        ),
    ] = None,
    threshold: Annotated[
        float, Parameter(help="with --labels, what probability an entity must exceed")
    ] = THRESHOLD,
    nested: Annotated[
        bool, Parameter(negative="", help="with --labels, let entities lie inside others")
    ] = False,
    multi_label: Annotated[
        bool, Parameter(negative="", help="with --labels, let the same words have several labels")
    ] = False,
    vectors: Annotated[
        bool, Parameter(negative="", help="with --labels and --json, write the vector of each entity's span")
    ] = False,
    truncation: LongTextsOption = "window",
    overlap_tokens: OverlapOption = None,
    target: FileOptions = FILE,
    bulk: BulkOptions = BULK,
    json: JsonOption = False,
) -> None:
    """Find the entities of a text, or of every input of a file; or its words' labels.

    Reads lines, JSON lines, CSV, TSV and Parquet, and CoNLL and CoNLL-U, whose words are used as they are.
    Prints start, end, label, probability and text of each entity or word, separated by tabs, with a blank
    line after each text; CoNLL is printed with the predicted label as its last column; with --json one object
    per text. Offsets count characters of the text. To resume a stopped run with --output, give the same
    command again. Without a model, the default one reads with its adapter "names": persons, organizations and
    places; with --labels person,drug, with its adapter "entities", a small model that knows some types
    and guesses others. A checkpoint of GLiNER (--model) does the same better.
    With --engine, several processes read shards of the file, and --output is a folder.
    """
    bulk.check()
    by_label = _label_options(labels, threshold, nested=nested, multi_label=multi_label)
    if by_label and (words or conll or scheme is not None):
        raise InvalidRequest("--labels finds entities; leave --words, --conll and --scheme out")
    _check_vectors(vectors, by_label, json=json or target.json, in_shards=bulk.engine is not None)
    if bulk.engine is not None:
        from unmask.bulk import BatchTagger

        if conll:
            raise InvalidRequest("--conll is for lines; with --engine, leave it out")
        task = BatchTagger(
            **task_settings(model, run, source.field, source.blank, BY_LABEL if by_label else ADAPTER),
            **by_label,
            words=words,
            scheme=scheme,
            aggregation=aggregation,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
        )
        target.run_bulk(task, source.files(text), bulk, json=json)
        return
    as_json = json or target.json

    def predicted(
        loaded: "Model", items: Sequence[Item], name: Name, progress: Progress
    ) -> "Sequence[Tagging]":
        options: dict[str, Any] = {
            "aggregation": aggregation,
            "truncation": truncation,
            "overlap_tokens": overlap_tokens,
            **by_label,
            "vectors": vectors,
        }
        results = _tagged(loaded, items, name, progress, options)
        return results if scheme is None else [result.in_scheme(scheme) for result in results]

    def details(item: Item, result: "Tagging") -> dict[str, object]:
        values = plain(result)
        if not words:
            del values["words"]
        return {"text": item.shown, **values}

    def spans(result: "Tagging") -> "Sequence[TaggedWord | Entity]":
        return result.words if words or not result.has_entities else result.entities

    def lines(item: Item, result: "Tagging") -> str:
        if conll or item.sentence is not None:
            return _conll(item, result)
        return tabbed(map(_cells, spans(result))) + "\n"

    def shown(item: Item, result: "Tagging") -> Shown:
        labeled = spans(result)
        entities = [(span.start, span.end) for span in labeled] if result.has_entities and not words else ()
        return Shown(marked(item.shown, entities), list(map(_cells, labeled)), ("dim", "dim", "bold cyan"))

    items = source.items(text, ("lines", *TABLES, "conll", "conllu"))
    if (
        isinstance(items, Source)
        and truncation == "end"
        and not as_json
        and (conll or items.format == "conll")
    ):
        raise InvalidRequest(
            "--truncation end would leave words of a CoNLL file without a label; use window, or --json"
        )
    in_columns = isinstance(items, Source) and items.format == "conll"
    job = Job(
        verb="tagging",
        run=run,
        model=model,
        predict=predicted,
        lines=lines,
        details=details,
        shown=None if conll or in_columns else shown,
        json=as_json,
        settings=(aggregation, words, conll, scheme, truncation, overlap_tokens, by_label, vectors),
        default_adapter=BY_LABEL if by_label else ADAPTER,
    )
    predict(job, items, target)


def _check_vectors(vectors: bool, by_label: Mapping[str, Any], *, json: bool, in_shards: bool) -> None:
    """Refuse vectors where none are computed, or there is no place for them."""
    if vectors and (not by_label or not json or in_shards):
        raise InvalidRequest(
            "--vectors needs --labels and --json, and no --engine; give it with both, or leave it out"
        )


def _label_options(
    labels: str | None, threshold: float, *, nested: bool, multi_label: bool
) -> dict[str, Any]:
    """The arguments of `Model.tag` for entities of labels that are named; none without labels."""
    if labels is None:
        if threshold != THRESHOLD or nested or multi_label:
            raise InvalidRequest(
                "--threshold, --nested and --multi-label are for labels; give --labels, or leave them out"
            )
        return {}
    return {
        "labels": tuple(comma_separated(labels)),
        "threshold": threshold,
        "nested": nested,
        "multi_label": multi_label,
    }


def _tagged(
    loaded: "Model",
    items: Sequence[Item],
    name: Name,
    progress: Progress,
    options: Mapping[str, Any],
) -> "list[Tagging]":
    """The predictions for texts and for lists of words, in the order of the items."""
    results: dict[int, Tagging] = {}
    for kind in (str, tuple):
        chosen = [index for index, item in enumerate(items) if isinstance(item.value, kind)]
        values: list[Any] = [items[index].value for index in chosen]
        called = partial(_called, name, chosen)
        tagged = loaded.tag(values, progress=progress, name=called, **options) if values else []
        results |= zip(chosen, tagged, strict=True)
    return [results[index] for index in range(len(items))]


def _called(name: Name, chosen: Sequence[int], index: int) -> str:
    return name(chosen[index])


def _cells(span: "TaggedWord | Entity") -> tuple[str, ...]:
    return str(span.start), str(span.end), span.label, f"{span.score:.4f}", span.text


def _conll(item: Item, result: "Tagging") -> str:
    """A word per line with its label last, after the columns that the input has."""
    if item.sentence is None:
        typed = isinstance(item.value, str)
        lines = [word.text for word in result.words] if typed else list(item.value)
        before: Sequence[str] = ()
    else:
        lines, before = list(item.sentence.lines), item.sentence.before
    rows = [_with_column(line, label) for line, label in zip(lines, result.labels(len(lines)), strict=True)]
    starts = [_with_column(line, "O") + "\n" for line in before]
    return "".join(row + "\n" for row in (*starts, *rows, ""))


def _with_column(line: str, value: str) -> str:
    """A line of CoNLL with one more column, separated as the others are."""
    return f"{line}{' ' if len(columns_of(line)) > 1 and TAB not in line else TAB}{value}"
