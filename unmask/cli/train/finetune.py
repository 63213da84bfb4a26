"""``unmask finetune``, ``pretrain`` and ``mine``: runs of training by run files, and negatives for them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Parameter

from unmask.cli.options import RUN, JsonOption, PoolingOption, RunOptions
from unmask.cli.output import console, plain, print_json, safe, table

if TYPE_CHECKING:
    from unmask.training.finetune.result import FinetuneResult
    from unmask.training.finetune.sweep import SeedsResult, SweepResult
    from unmask.training.run.callbacks import Callback


def finetune(
    run: Annotated[Path, Parameter(help="a TOML file, see docs/finetune.md")],
    *,
    test: Annotated[
        Path | None, Parameter(help="a file whose texts are predicted in the end, beside the run")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fine-tune an encoder on labeled data, as a TOML file describes; resumes a stopped run.

    Paths in the file are relative to it. torchrun starts several processes: torchrun -m unmask finetune FILE.
    """
    from unmask.training.finetune.settings import read_settings
    from unmask.training.run.callbacks import ProgressPrinter

    teller = ProgressPrinter()
    settings = settings_or_path(run, read_settings, teller)
    from unmask.training.finetune.run import finetune as train
    from unmask.training.finetune.sweep import SeedsResult, SweepResult
    from unmask.training.pretrain import joined

    try:
        with joined() as ranks:
            result = train(settings, base=run.parent, ranks=ranks, callback=teller, test=test)
    finally:
        teller.close()
    if not ranks.first:
        return
    if json:
        print_json(result)
        return
    if isinstance(result, SeedsResult):
        _print_seeds(result)
        return
    if isinstance(result, SweepResult):
        _print_sweep(result)
        return
    console().print(
        f"{safe(str(result.folder))}: {result.steps:,} {'step' if result.steps == 1 else 'steps'}, "
        f"weights of step {result.best_step:,}"
    )
    if result.adapter is not None:
        console().print(f"{safe(str(result.adapter))}: the adapter")
    if result.encoder is not None:
        console().print(
            f"{safe(str(result.encoder))}: the encoder without its head, for sentence-transformers"
        )
    for name, value in result.dev.items():
        console().print(f"{safe(name)}: {value:.4f}")
    _print_test(result)


def _print_test(result: "FinetuneResult") -> None:
    for name, value in result.test.items():
        interval = result.test_intervals[name]
        console().print(f"{safe(name)}: {value:.4f} (95 % interval {interval:.4f})")


def _print_seeds(result: "SeedsResult") -> None:
    """Every figure of every seed, its mean and standard deviation, and the best seed."""
    for seed, run in result.runs.items():
        console().print(f"seed {seed}: {safe(str(run.folder))}, weights of step {run.best_step:,}")
        _print_test(run)
    for name, mean in result.mean.items():
        each = ", ".join(f"{run.dev[name]:.4f}" for run in result.runs.values())
        console().print(f"{safe(name)}: {mean:.4f} ± {result.standard_deviation[name]:.4f} ({each})")
    if result.best_seed is not None:
        console().print(f"the best seed is {result.best_seed}")


def _print_sweep(result: "SweepResult") -> None:
    """A row for each trial: its values, and the figure that is compared; then the best trial."""
    from unmask.training.finetune.sweep import CHOSEN, SeedsResult

    keys = list(result.trials[0].values)
    metric = f"dev/{result.metric}"
    rows = table(
        None, "trial", *map(safe, keys), safe(metric), right=("trial", *map(safe, keys), safe(metric))
    )
    for trial in result.trials:
        figure = f"{trial.metric:.4f}"
        if isinstance(trial.run, SeedsResult):
            figure += f" ± {trial.run.standard_deviation[metric]:.4f}"
        rows.add_row(str(trial.number), *(safe(str(trial.values[key])) for key in keys), figure)
    console().print(rows)
    console().print(f"the best trial is {result.best_trial}, {CHOSEN}")


Settings = TypeVar("Settings")
"""The settings in a run file."""


def pretrain(
    run: Annotated[Path, Parameter(help="the TOML file that describes the run; see docs/pretrain.md")],
    *,
    json: JsonOption = False,
) -> None:
    """Pretrain an encoder from a run file, or resume a stopped run.

    For several processes, use torchrun: torchrun --nproc-per-node=2 -m unmask pretrain run.toml
    """
    from unmask.training.pretrain import read_run
    from unmask.training.run.callbacks import ProgressPrinter

    teller = ProgressPrinter()
    settings = settings_or_path(run, read_run, teller)
    from unmask.training.pretrain import joined, train

    try:
        with joined() as ranks:
            result = train(settings, base=run.parent, ranks=ranks, callback=teller)
    finally:
        teller.close()
    if not ranks.first:
        return
    if json:
        print_json({**plain(result), "folder": str(result.folder)})
        return
    console().print(
        f"{safe(str(result.folder))}: {result.steps:,} steps, {result.tokens:,} tokens, "
        f"micro-batches {result.fill_ratio:.2%} full"
    )
    for name, value in result.held_out.items():
        console().print(f"held out {name}: {value:.4f}")


def settings_or_path(run: Path, read: Callable[[Path], Settings], teller: "Callback") -> Settings | Path:
    """The settings in a run file, so that a mistake in it is reported before torch is imported.

    Processes of torchrun join first, so that only one of them reports it; they get the path.
    """
    return run if "WORLD_SIZE" in os.environ else read(run)


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
