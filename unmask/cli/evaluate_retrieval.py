"""``unmask evaluate retrieval``: how well a model finds the judged documents of a test collection."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.cli.options import OUTPUT, RUN, ModelOption, OutputOptions, RunOptions
from unmask.cli.output import console, progress, safe, table
from unmask.tasks.similarity import Metric

if TYPE_CHECKING:
    from unmask.search.evaluation.retrieval import RetrievalResult


def retrieval(
    *,
    data: Annotated[
        Path, Parameter(name="--data", help="a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv")
    ],
    model: ModelOption = "default",
    run: RunOptions = RUN,
    split: Annotated[
        str | None, Parameter(help="the judgments to use (default: test, or the only split)")
    ] = None,
    mode: Annotated[Literal["dense"], Parameter(help="compare one vector per text, exactly")] = "dense",
    passages: Annotated[
        Literal["none", "window", "late"],
        Parameter(
            help="read the beginning of each document, or split it into passages that are embedded each on "
            "its own (window) or within the whole document (late)"
        ),
    ] = "none",
    passage_tokens: Annotated[
        int | None,
        Parameter(help="tokens of a passage (default: what the model reads; 256 with --passages late)"),
    ] = None,
    overlap_tokens: Annotated[int, Parameter(help="the most tokens that neighboring passages share")] = 0,
    metric: Annotated[
        Metric, Parameter(help="how vectors are compared; distances are negated: larger is more similar")
    ] = "cosine",
    drop_same_id: Annotated[
        bool,
        Parameter(negative="", help="leave out the document whose id is the query's (ArguAna, Quora)"),
    ] = False,
    output: OutputOptions = OUTPUT,
) -> None:
    """Retrieval: nDCG, recall, MRR and MAP of a model on a test collection in BEIR's layout."""
    output.check()
    from unmask.search.evaluation.collection import read_beir
    from unmask.search.evaluation.dense import DenseSettings
    from unmask.search.evaluation.retrieval import evaluate_retrieval

    judged = read_beir(data)
    settings = DenseSettings(passages, passage_tokens, overlap_tokens, metric)
    loaded = run.load(model)
    with progress("Embedding documents", 0) as report:
        result = evaluate_retrieval(
            loaded,
            judged,
            split=split,
            mode=mode,
            settings=settings,
            drop_same_id=drop_same_id,
            progress=report,
        )
    output.write(result)
    if not output.printed(result):
        _show(result)


def _show(result: "RetrievalResult") -> None:
    screen = console()
    right = ("value", "95 % interval")
    made = table(None, "figure", *right, right=right)
    for one in result.figures:
        made.add_row(one.name, f"{one.value:.4f}", f"{one.low:.4f} to {one.high:.4f}")
    screen.print(made)
    screen.print(
        safe(
            f"{result.model}, {result.dtype}, on {result.data} ({result.split}): {result.queries:,} queries, "
            f"{result.documents:,} documents, {result.passages:,} passages, {result.mode}, {result.metric}"
        )
    )
    if result.truncated_documents:
        total = result.tokens.dropped + result.tokens.tokens
        screen.print(
            f"documents longer than the model reads: {result.truncated_documents:,}; "
            f"{result.tokens.dropped:,} of {total:,} tokens were dropped (--passages window reads all)"
        )
    if result.skipped:
        first = result.skipped[0]
        screen.print(safe(f"documents skipped: {len(result.skipped):,}; {first.name}: {first.reason}"))
    if result.missing_documents:
        screen.print(f"relevant documents that are not in the corpus: {result.missing_documents:,}")
    ties = ", ".join(f"{count:,} at {cutoff}" for cutoff, count in result.ties_at.items() if count)
    if ties:
        screen.print(f"queries with equal scores across the cutoff, ordered by document id: {ties}")
