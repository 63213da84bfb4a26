"""``unmask dedup`` and ``unmask topics``: duplicates among the texts of files, and their topics."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from unmask.base.files import check_can_write
from unmask.base.progress import counted
from unmask.cli.inputs import Inputs, require_texts
from unmask.cli.items import Item, format_of, text_reader
from unmask.cli.options import (
    OUTPUT,
    RUN,
    BlankOption,
    FieldOption,
    FormatOption,
    JsonOption,
    ModelOption,
    OutputOptions,
    PoolingOption,
    RunOptions,
    TruncationOption,
)
from unmask.cli.output import console, json_line, marked, on_terminal, progress, table
from unmask.cli.search.index import open_index
from unmask.cli.streams import STANDARD_INPUT
from unmask.errors import InvalidRequest
from unmask.search.options import ClusterMethod, Representative
from unmask.text.row_copies import check_copy, copy_rows
from unmask.text.rows import TABLES, Format

if TYPE_CHECKING:
    from unmask.search.duplicates import Duplicate, Duplicates
    from unmask.search.topics import Topics

LISTED = 20
"""Duplicates that are printed for people; --json and pipes have all."""
DIFFERENT_WORDS = 6
"""Words of one text alone that are printed for people."""

FilesArgument = Annotated[
    list[str] | None,
    Parameter(name="files", negative="", help="text, JSONL, CSV, TSV or Parquet files; -: standard input"),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How texts are read and embedded."""

    format: FormatOption = None
    field: FieldOption = None
    blank: BlankOption = "error"
    truncation: TruncationOption = "error"
    pooling: PoolingOption = None


TEXTS = TextOptions()


@contextmanager
def opened_texts(files: Sequence[str] | None, options: TextOptions, beside: Path | None) -> Iterator[Inputs]:
    """The texts of files; with a path to write to, they can be read again."""
    if not files:
        raise InvalidRequest("no inputs are given; name files, or - for standard input")
    read = text_reader(options.format, options.field, options.blank)
    with Inputs(
        files, read, reread=beside is not None, beside=None if beside is None else beside.parent
    ) as inputs:
        yield inputs


def items_of(inputs: Inputs) -> list[Item]:
    """All texts, at least one."""
    items = [cast("Item", line) for line in inputs.lines()]
    require_texts(len(items))
    return items


def place_of(item: Item) -> dict[str, object]:
    """Where a text was read, for JSON."""
    return dict(item.place or {})


def dedup(
    files: FilesArgument = None,
    /,
    *,
    model: Annotated[
        str | None,
        Parameter(name=["--model", "-m"], help="gives the vectors; default: that of --against, or default"),
    ] = None,
    threshold: Annotated[float, Parameter(help="the lowest cosine of two duplicates")] = 0.9,
    representative: Annotated[
        Representative, Parameter(help="the text of a group that stays: the longest, or the first")
    ] = "longest",
    against: Annotated[
        Path | None, Parameter(help="an index: texts that it has already do not stay (see: unmask index)")
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="write the rows that stay, in the format of the inputs"),
    ] = None,
    texts: TextOptions = TEXTS,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Find duplicate texts of files: equal ones, and those whose vectors are nearly the same.

    Every pair is compared exactly. Pairs at or above the threshold are joined to groups, of which one text
    stays. Each of the others is shown with the text that it is nearest to, their cosine, and the words that
    only one of them has. In a pipe, and with --json, there is one JSON object for each duplicate, then a
    summary.
    """
    from unmask.search.duplicates import deduplicate

    form: Format | None = None
    if output is not None:
        check_can_write(output)
        names = ["" if name == STANDARD_INPUT else name for name in files or ()]
        form = check_copy(output, [format_of(name, texts.format, ("lines", *TABLES)) for name in names])
    index = None if against is None else open_index(against, [] if model is None else [model], run)
    loaded = run.load(model or "default") if index is None else None
    with opened_texts(files, texts, output) as inputs:
        items = items_of(inputs)
        with progress("texts embedded and compared", 2 * len(items)) as report:
            result = deduplicate(
                [str(item.value) for item in items],
                loaded,
                threshold=threshold,
                representative=representative,
                against=index,
                truncation=texts.truncation,
                pooling=texts.pooling,
                progress=report,
            )
        if output is not None and form is not None:
            stays = {(items[row].source, items[row].number) for row in result.rows}
            sources = inputs.sources
            copy_rows(
                inputs.streams(), form, lambda source, number: (sources[source], number) in stays, output
            )
    if json or not on_terminal():
        _print_lines(items, result, output)
    else:
        _show_duplicates(items, result, output)


def _summary(result: "Duplicates", output: Path | None) -> dict[str, Any]:
    return {
        "kind": "summary",
        "model": result.model,
        "threshold": result.threshold,
        "representative": result.representative,
        "texts": result.texts,
        "stay": len(result.rows),
        "groups": result.groups,
        **{str(kind): count for kind, count in result.counts.items()},
        "truncated_texts": result.truncated_texts,
        "output": output,
    }


def _print_lines(items: Sequence[Item], result: "Duplicates", output: Path | None) -> None:
    """One JSON object for each duplicate, and the summary."""

    def told(row: int | None) -> dict[str, object] | None:
        return None if row is None else place_of(items[row]) | {"text": items[row].value}

    for duplicate in result.duplicates:
        values = asdict(duplicate)
        row = values.pop("row")
        values["nearest"], values["representative"] = told(duplicate.nearest), told(duplicate.representative)
        print(json_line((told(row) or {}) | values), end="")
    print(json_line(_summary(result, output)), end="")


def _show_duplicates(items: Sequence[Item], result: "Duplicates", output: Path | None) -> None:
    screen = console()
    if result.duplicates:
        grid = table(None, "text", "kind", "cosine", "like", "only here / only there", right=("cosine",))
        for duplicate in result.duplicates[:LISTED]:
            grid.add_row(*_shown(items, duplicate))
        screen.print(grid)
    if len(result.duplicates) > LISTED:
        print(f"and {len(result.duplicates) - LISTED:,} more; --json lists all")
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.counts.items())
    print(
        f"{len(result.rows):,} of {counted(result.texts, 'text')} stay; duplicates: {kinds}, "
        f"in {counted(result.groups, 'group')}; the {result.representative} of a group stays, pairs from "
        f"cosine {result.threshold} by {result.model}"
    )
    if result.truncated_texts:
        print(f"{counted(result.truncated_texts, 'text')} compared by the beginning alone")
    if output is not None:
        print(f"the rows that stay are in {output}")


def _shown(items: Sequence[Item], duplicate: "Duplicate") -> list[Any]:
    if duplicate.nearest is None:
        other = f"{duplicate.document}: {duplicate.passage}"
    else:
        other = f"{items[duplicate.nearest]}: {items[duplicate.nearest].shown}"
    words = [" ".join(only[:DIFFERENT_WORDS]) or "-" for only in (duplicate.only_here, duplicate.only_there)]
    return [
        marked(f"{items[duplicate.row]}: {items[duplicate.row].shown}", bold=False),
        duplicate.kind,
        "" if duplicate.cosine is None else f"{duplicate.cosine:.4f}",
        marked(other, bold=False),
        marked(" / ".join(words), bold=False),
    ]


def topics(
    files: FilesArgument = None,
    /,
    *,
    model: ModelOption = "default",
    method: Annotated[
        ClusterMethod, Parameter(help="every text in one of --topics clusters, or dense regions alone")
    ] = "kmeans",
    number: Annotated[
        int | None,
        Parameter(name="--topics", help="clusters of kmeans; default: the root of half the number of texts"),
    ] = None,
    min_size: Annotated[int, Parameter(help="texts of the smallest topic")] = 10,
    words: Annotated[int, Parameter(help="words of each topic")] = 10,
    resamples: Annotated[int, Parameter(help="bootstrap samples that measure the stability; 0: none")] = 20,
    seed: Annotated[int, Parameter(help="of the starts and the resamples")] = 0,
    texts: TextOptions = TEXTS,
    run: RunOptions = RUN,
    result: OutputOptions = OUTPUT,
) -> None:
    """Group the texts of files into topics, with names, examples and the stability of each.

    Topics are clusters of the texts' vectors, named by the words that are frequent in them and rare
    elsewhere. The stability of a topic says how much of it is found again in resamples of the texts.
    """
    from unmask.search.topics import find_topics

    result.check()
    with opened_texts(files, texts, None) as inputs:
        items = items_of(inputs)
    with progress("texts embedded", len(items)) as report:
        found_topics = find_topics(
            [str(item.value) for item in items],
            run.load(model),
            method=method,
            topics=number,
            min_size=min_size,
            words=words,
            resamples=resamples,
            seed=seed,
            truncation=texts.truncation,
            pooling=texts.pooling,
            progress=report,
        )
    result.write(_topics_as_json(items, found_topics))
    if not result.printed(_topics_as_json(items, found_topics)):
        _show_topics(items, found_topics)


def _topics_as_json(items: Sequence[Item], result: "Topics") -> Mapping[str, Any]:
    """The result with examples as texts, and the topic of each row."""
    values = asdict(result)
    labels = values.pop("labels")
    for topic in values["topics"]:
        topic["examples"] = [place_of(items[row]) | {"text": items[row].value} for row in topic["examples"]]
    rows = [place_of(item) | {"topic": label} for item, label in zip(items, labels, strict=True)]
    return values | {"rows": rows}


def _show_topics(items: Sequence[Item], result: "Topics") -> None:
    grid = table(None, "", "texts", "stability", "words", "example", right=("texts", "stability"))
    for number, topic in enumerate(result.topics):
        stability = "" if topic.stability is None else f"{topic.stability:.2f}"
        named = marked(" ".join(word.word for word in topic.words), bold=False)
        grid.add_row(
            str(number),
            f"{topic.size:,}",
            stability,
            named,
            marked(items[topic.examples[0]].shown, bold=False),
        )
    console().print(grid)
    print(f"{counted(result.texts, 'text')}, of which {result.without_topic:,} belong to no topic")
    if result.adjusted_rand is not None:
        print(
            f"clusters of {counted(result.resamples, 'resample')} agree with these by an adjusted Rand index "
            f"of {result.adjusted_rand:.2f}, at least {result.lowest_adjusted_rand:.2f} (1: equal, 0: chance)"
        )
    if result.truncated_texts:
        print(f"{counted(result.truncated_texts, 'text')} read in the beginning alone")
