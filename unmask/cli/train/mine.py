"""``unmask mine``: hard negatives for training a retriever."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from unmask.cli.options import RUN, JsonOption, PoolingOption, RunOptions
from unmask.cli.output import console, print_json


def mine(
    pairs: Annotated[Path, Parameter(help="JSONL rows with query and positive")],
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="the JSONL file to write")],
    model: Annotated[str, Parameter(help="folder, hub id or default")] = "default",
    corpus: Annotated[
        Path | None, Parameter(help="JSONL rows with text; None searches the positive documents")
    ] = None,
    num_negatives: Annotated[int, Parameter(help="negatives of each query")] = 5,
    range_min: Annotated[int, Parameter(help="best candidates that are left out")] = 0,
    range_max: Annotated[int, Parameter(help="candidates of each query at most")] = 100,
    max_score: Annotated[float | None, Parameter(help="the highest score of a negative")] = None,
    absolute_margin: Annotated[
        float | None, Parameter(help="a negative scores lower than the positive by so much")
    ] = None,
    relative_margin: Annotated[
        float | None,
        Parameter(help="0.05: a negative scores at most 95 % of the positive; none: no limit"),
    ] = 0.05,
    sampling_strategy: Annotated[
        Literal["top", "random"], Parameter(help="take the best candidates, or draw")
    ] = "top",
    seed: Annotated[int, Parameter(help="determines what is drawn")] = 0,
    pooling: PoolingOption = None,
    run: RunOptions = RUN,
    json: JsonOption = False,
) -> None:
    """Find documents near each query that probably do not answer it, as negatives for training.

    The rows written are what `unmask finetune` reads for the task retrieval. A stopped job resumes.
    """
    from unmask.search.mining import MiningSettings
    from unmask.search.mining import mine as find
    from unmask.training.run.callbacks import ProgressPrinter

    settings = MiningSettings(
        num_negatives,
        range_min,
        range_max,
        max_score,
        absolute_margin,
        relative_margin,
        sampling_strategy,
        seed,
        pooling,
    )
    teller = ProgressPrinter()
    try:
        facts = find(run.load(model), pairs, output, corpus=corpus, settings=settings, say=teller.say)
    finally:
        teller.close()
    if json:
        print_json(facts)
        return
    console().print(
        f"{facts.negatives:,} negatives for {facts.queries - facts.without:,} of {facts.queries:,} queries, "
        f"of {facts.documents:,} documents: {output}"
    )
