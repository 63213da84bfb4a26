"""The same run with several seeds, one after another, and the spread of its figures."""

import gc
import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.training.finetune.inputs import UNCHANGED, inputs_of
from unmask.training.finetune.metrics import goodness
from unmask.training.finetune.result import RESULT, FinetuneResult, read_result, write_json
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks
from unmask.training.run.run import exclusive_lock


@dataclass(frozen=True)
class SeedsResult:
    """Finished runs that differ in their seed alone."""

    name: str
    folder: Path
    """The folder of all runs; that of each run is ``seed-N`` in it."""
    runs: Mapping[int, FinetuneResult]
    """Every run by its seed."""
    mean: Mapping[str, float]
    """The mean of each figure on the dev data over all seeds."""
    standard_deviation: Mapping[str, float]
    """The standard deviation of each, of a sample: with n - 1 in the denominator."""
    best_seed: int | None
    """The seed with the best ``evaluation.metric``; None without a metric."""


def train_seeds(
    settings: FinetuneSettings,
    out: Path,
    ranks: Ranks,
    callback: Callback,
    train: Callable[[FinetuneSettings, Path], FinetuneResult],
    *,
    base: Path,
) -> SeedsResult:
    """Train with every seed in its own folder; a run that is finished is not repeated.

    Args:
        settings: settings with ``seeds``.
        out: the folder of all runs.
        ranks: the processes that share the runs.
        callback: receives progress.
        train: starts or resumes one run in a folder.
        base: the folder that paths in the settings are relative to.

    Raises:
        InvalidRequest: a finished run in the folder was made with other settings, data or first weights.
    """
    runs: dict[int, FinetuneResult] = {}
    with exclusive_lock(out) if ranks.first else nullcontext():
        for number, seed in enumerate(settings.seeds, start=1):
            folder = out / f"seed-{seed}"
            of_seed = replace(settings, seed=seed, seeds=(), out=str(Path(settings.out) / folder.name))
            done = finished_result(of_seed, folder, base, ranks)
            callback.say(
                f"seed {seed}, {number} of {len(settings.seeds)}" + (": already finished" if done else "")
            )
            if done is not None:
                callback.say(UNCHANGED)
            else:
                done = train(of_seed, folder)
                gc.collect()  # the parts of a run refer to each other, so its memory is not free before
            runs[seed] = done
        result = summarized(settings, out, runs)
        if ranks.first:
            write_json(out / RESULT, _table(result))
    return result


def finished_result(settings: FinetuneSettings, out: Path, base: Path, ranks: Ranks) -> FinetuneResult | None:
    """The result of a run that needs no training, see `read_result`."""
    result = read_result(settings, out, partial(inputs_of, settings, base))
    if ranks.sums({"finished": float(result is not None)})["finished"] < ranks.world:
        return None  # processes of several machines may not see the same files
    return result


def summarized(settings: FinetuneSettings, out: Path, runs: Mapping[int, FinetuneResult]) -> SeedsResult:
    """Mean and standard deviation of every figure that all runs have, and the best seed."""
    first, *others = runs.values()
    names = [name for name in first.dev if all(name in other.dev for other in others)]
    values = {name: [run.dev[name] for run in runs.values()] for name in names}
    metric = settings.evaluation.metric
    best = None
    if metric is not None:
        if f"dev/{metric}" not in values:
            raise InvalidRequest(f"no run has the figure {metric!r}, which evaluation.metric names")
        best = max(runs, key=lambda seed: goodness(metric, runs[seed].dev[f"dev/{metric}"]))
    return SeedsResult(
        settings.name,
        out,
        dict(runs),
        {name: statistics.fmean(figures) for name, figures in values.items()},
        {name: statistics.stdev(figures) for name, figures in values.items()},
        best,
    )


def _table(result: SeedsResult) -> Mapping[str, object]:
    """The content of ``result.json``: every value, and what follows from them."""
    return {
        "name": result.name,
        "seeds": {
            str(seed): {
                "model": f"seed-{seed}/{run.folder.name}",
                "steps": run.steps,
                "best_step": run.best_step,
                "dev": dict(run.dev),
            }
            for seed, run in result.runs.items()
        },
        "mean": dict(result.mean),
        "standard_deviation": dict(result.standard_deviation),
        "best_seed": result.best_seed,
    }
