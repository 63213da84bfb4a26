"""``unmask evaluate retrieval``: how well search finds the judged documents of a test collection."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.cli.options import OUTPUT, RUN, OutputOptions, RunOptions, listed
from unmask.cli.output import console, progress, safe, table
from unmask.cli.search.index import model_names
from unmask.search.options import Mode

if TYPE_CHECKING:
    from unmask.evaluate.retrieval.retrieval import ModeFigures, RetrievalResult


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CollectionIndexOptions:
    """The index of the collection."""

    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="a checkpoint folder, a hub id, default, or none for BM25 alone; repeat it for several "
            "views of each passage",
        ),
    ] = None
    index: Annotated[
        Path | None,
        Parameter(help="keep the index in this folder, and reuse what it has; default: a temporary folder"),
    ] = None
    passages: Annotated[
        Literal["whole", "window", "late"] | None,
        Parameter(
            help="read the beginning of each document (whole), or split it into passages that are embedded "
            "each on its own (window) or within the document (late); default: whole, or as --index was made"
        ),
    ] = None
    passage_tokens: Annotated[
        int | None, Parameter(help="the longest passage in tokens; default: 256, or what the model reads")
    ] = None
    overlap_tokens: Annotated[
        int | None, Parameter(help="the most tokens that neighboring passages share")
    ] = None


COLLECTION_INDEX = CollectionIndexOptions()


def retrieval(
    *,
    data: Annotated[
        Path, Parameter(name="--data", help="a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv")
    ],
    new: CollectionIndexOptions = COLLECTION_INDEX,
    mode: Annotated[
        list[Mode] | None,
        listed("rank by this view, or hybrid; default: all"),
    ] = None,
    reranker: Annotated[
        str | None, Parameter(help="a model that scores hits again, measured, too: a folder or a hub id")
    ] = None,
    candidates: Annotated[
        int | None,
        Parameter(
            help="documents that the reranker scores (default: 50), or that --mode multi_vector does "
            "(default: all)"
        ),
    ] = None,
    split: Annotated[
        str | None, Parameter(help="the judgments to use (default: test, or the only split)")
    ] = None,
    drop_same_id: Annotated[
        bool,
        Parameter(negative="", help="leave out the document whose id is the query's (ArguAna, Quora)"),
    ] = False,
    run: RunOptions = RUN,
    output: OutputOptions = OUTPUT,
) -> None:
    """Retrieval: nDCG, recall, MRR and MAP of an index of a test collection in BEIR's layout."""
    output.check()
    from unmask.evaluate.retrieval.collection import (
        CollectionSettings,
        add_collection,
        collection_index,
        holds_files,
        read_beir,
    )
    from unmask.evaluate.retrieval.retrieval import Measurement, check, measure

    judged = read_beir(data)
    settings = CollectionSettings(new.passages, new.passage_tokens, new.overlap_tokens)
    measurement = Measurement(
        modes=mode or (),
        reranker=None if reranker is None else run.of_another_model().load(reranker),
        candidates=candidates,
        split=split,
        drop_same_id=drop_same_id,
    )
    check(measurement, judged)
    exists = new.index is not None and holds_files(new.index)
    names = new.model or [] if exists else model_names(new.model or ())
    with collection_index(
        judged,
        [run.load(name) for name in names],
        new.index,
        settings,
        sources=names,
        loader=lambda identity: replace(run, revision=identity.revision).load(identity.source),
    ) as index:
        measurement.modes_of(index)
        with progress("indexing passages", 0) as report:
            indexed = add_collection(index, judged, progress=report)
        with progress("searching", 0) as report:
            result = measure(indexed, measurement, progress=report)
    output.finish(result, _show)


def _show(result: "RetrievalResult") -> None:
    screen = console()
    right = ("value", "95 % interval")
    for mode in result.modes:
        grid = table(_heading(mode), "figure", *right, right=right)
        for figure in mode.figures:
            grid.add_row(figure.name, f"{figure.value:.4f}", f"{figure.low:.4f} to {figure.high:.4f}")
        screen.print(grid)
        ties = ", ".join(f"{count:,} at {cutoff}" for cutoff, count in mode.ties_at.items() if count)
        if ties:
            screen.print(f"queries with equal scores across the cutoff, ordered by document id: {ties}")
        if mode.without_results:
            screen.print(f"queries for which nothing was found: {mode.without_results:,}")
    models = (
        ", ".join(f"{model.name} ({model.view}, {model.dtype})" for model in result.models) or "BM25 alone"
    )
    screen.print(
        safe(
            f"{models}, on {result.data} ({result.split}): {result.queries:,} queries, "
            f"{result.documents:,} documents, {result.passages:,} passages ({result.passage_mode})"
        )
    )
    _show_gaps(result)


def _heading(mode: "ModeFigures") -> str:
    if mode.reranker is None:
        return f"{mode.mode}, {mode.depth:,} documents per query"
    return safe(f"{mode.mode}, the best {mode.depth:,} ordered by {mode.reranker}")


def _show_gaps(result: "RetrievalResult") -> None:
    """What was not read or not found."""
    screen = console()
    if result.truncated_documents:
        total = result.tokens.dropped + result.tokens.tokens
        screen.print(
            f"documents longer than the model reads: {result.truncated_documents:,}; "
            f"{result.tokens.dropped:,} of {total:,} tokens were dropped (--passages window reads all)"
        )
    if result.truncated_queries:
        screen.print(f"queries longer than a model reads, cut at their end: {result.truncated_queries:,}")
    if result.skipped:
        name, reason = result.skipped[0]
        screen.print(safe(f"documents skipped: {len(result.skipped):,}; {name}: {reason}"))
    if result.missing_documents:
        screen.print(f"relevant documents that are not in the index: {result.missing_documents:,}")
