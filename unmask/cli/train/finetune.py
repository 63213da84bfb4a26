"""``unmask finetune``: train a head on labeled data, and the encoder with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import JsonOption
from unmask.cli.output import console, print_json, safe, table
from unmask.cli.train.pretrain import settings_or_path

if TYPE_CHECKING:
    from unmask.training.finetune.result import FinetuneResult
    from unmask.training.finetune.sweep import SeedsResult, SweepResult


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
        console().print(
            f"{safe(name)}: {value:.4f} (95 % interval {interval.low:.4f} to {interval.high:.4f})"
        )


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
