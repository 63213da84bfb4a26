"""The same run with several seeds, or for every point of a grid, one after another.

Seeds give a spread of the figures; a grid gives the run that is best on the dev data.
"""

import gc
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.optional import require
from unmask.errors import InvalidRequest, OutputError, UnmaskError
from unmask.training.finetune.grid import Value, with_values
from unmask.training.finetune.metrics import goodness
from unmask.training.finetune.result import (
    RESULT,
    UNCHANGED,
    FinetuneResult,
    inputs_of,
    read_result,
    write_json,
)
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.run.base_model import first_checkpoint
from unmask.training.run.callbacks import Callback
from unmask.training.run.log import LOWER_IS_BETTER
from unmask.training.run.ranks import Ranks
from unmask.training.run.run import exclusive_lock

if TYPE_CHECKING:
    from optuna import Study, Trial


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
            finished = finished_result(of_seed, folder, base, ranks)
            callback.say(
                f"seed {seed}, {number} of {len(settings.seeds)}" + (": already finished" if finished else "")
            )
            if finished is not None:
                callback.say(UNCHANGED)
            else:
                finished = train(of_seed, folder)
                gc.collect()  # the parts of a run refer to each other, so its memory is not free before
            runs[seed] = finished
        result = summarized(settings, out, runs)
        if ranks.first:
            write_json(out / RESULT, _seeds_table(result))
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


def _seeds_table(result: SeedsResult) -> Mapping[str, object]:
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


RECORD = "sweep.db"
"""Optuna's record of the trials, in the folder of the sweep. SQLite, because a process that is killed while
it writes leaves a database that can be read, and no lock."""

STUDY = "sweep"

CHOSEN = "chosen on the dev data, so its figures there are slightly optimistic"


@dataclass(frozen=True)
class TrialResult:
    """One finished trial of a sweep."""

    number: int
    values: Mapping[str, Value]
    """What this trial set, by dotted keys of the run file."""
    metric: float
    """The figure that is compared: of the exported weights, or the mean over all seeds."""
    run: FinetuneResult | SeedsResult


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep."""

    name: str
    folder: Path
    """The folder of all trials; that of each is ``trial-N`` in it."""
    metric: str
    """The figure by which trials were compared, on the dev data."""
    trials: Sequence[TrialResult]
    best_trial: int
    """The number of the best trial. It was chosen on the dev data, so its figures there are optimistic."""


class Trials:
    """The trials of a sweep, in the order of optuna's `GridSampler`, with a record that survives a kill.

    Args:
        settings: settings with a ``sweep``.
        record: the database; None for one in memory, for processes that do not write.

    Raises:
        InvalidRequest: the record is of another grid.
        OutputError: the record cannot be read or written.
    """

    def __init__(self, settings: FinetuneSettings, record: Path | None) -> None:
        from optuna import create_study
        from optuna.samplers import GridSampler

        class Grid(GridSampler):
            """Without the stop of `Study.optimize`, which is not used here."""

            def after_trial(self, *_: object) -> None:
                """Nothing."""

        grid = settings.sweep
        lower = settings.evaluation.metric in LOWER_IS_BETTER
        with _readable(record):
            self._study: Study = create_study(
                storage=None if record is None else _address(record),
                sampler=Grid(grid, seed=0),
                study_name=STUDY,
                direction="minimize" if lower else "maximize",
                load_if_exists=True,
            )
            before = self._study.user_attrs.get("grid")
            now = {key: list(values) for key, values in grid.items()}
            if before is None:
                self._study.set_user_attr("grid", now)
        if before not in (None, now):
            changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
            was = ", ".join(f"{key} was {before.get(key)} and is {now.get(key)}" for key in changed)
            raise InvalidRequest(
                f"the sweep was started with other values: {was}; restore the run file, or name another "
                "folder with out"
            )
        self._grid, self._record = grid, record

    def trial(self, number: int) -> "tuple[Trial, dict[str, Value]]":
        """A trial with the values that it sets; the one of a killed process is taken up again."""
        from optuna import Trial

        with _readable(self._record):
            started = self._study.get_trials(deepcopy=False)
            if number == len(started):
                trial = self._study.ask()
            else:
                trial = Trial(self._study, started[number]._trial_id)
                if started[number].state.is_finished():
                    return trial, {key: started[number].params[key] for key in self._grid}
            return trial, {key: trial.suggest_categorical(key, values) for key, values in self._grid.items()}

    def finished(self, trial: "Trial", value: float) -> None:
        """Record a trial's figure; a second record of the same trial changes nothing."""
        with _readable(self._record):
            self._study.tell(trial, value, skip_if_finished=True)


def _address(record: Path) -> str:
    """The address of a database; a path may have characters that mean something in one."""
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(record.absolute())).render_as_string()


@contextmanager
def _readable(record: Path | None) -> Iterator[None]:
    """Optuna is quiet within the block, and a record that it cannot use is one sentence."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (SQLAlchemyError, RuntimeError, optuna.exceptions.OptunaError) as error:
        reason = str(error).splitlines()[0]
        raise OutputError(
            f"cannot use {record}, the record of the sweep: {reason}; remove that file, and the trials that "
            "are finished are kept"
        ) from None
    finally:
        optuna.logging.set_verbosity(before)


def train_sweep(
    settings: FinetuneSettings,
    base: Path,
    ranks: Ranks,
    callback: Callback,
    train: Callable[[FinetuneSettings, Path], FinetuneResult | SeedsResult],
) -> SweepResult:
    """Run every trial in its own folder; a trial that is finished is not repeated.

    Args:
        settings: settings with a ``sweep``.
        base: the folder that paths in the settings are relative to.
        ranks: the processes that share the runs.
        callback: receives progress.
        train: starts or resumes one run, or the runs of all seeds, in a folder.

    Raises:
        InvalidRequest: a checkpoint that a trial names does not exist, or the folder has a sweep with other
            settings, data or first weights.
        OutputError: the record of the sweep cannot be read or written.
    """
    require("sweep")
    out, metric = base / settings.out, f"dev/{settings.evaluation.metric}"
    count = math.prod(map(len, settings.sweep.values()))
    results = []
    with exclusive_lock(out) if ranks.first else nullcontext():
        _check_checkpoints(settings, base)
        trials = Trials(settings, out / RECORD if ranks.first else None)
        for number in range(count):
            trial, values = trials.trial(number)
            point = replace(with_values(settings, values), out=str(Path(settings.out) / f"trial-{number}"))
            # With several seeds, each is asked for on its own.
            finished: FinetuneResult | SeedsResult | None
            finished = None if point.seeds else finished_result(point, base / point.out, base, ranks)
            what = ", ".join(f"{key} = {value}" for key, value in values.items())
            callback.say(
                f"trial {number}, {number + 1} of {count}: {what}"
                + (": already finished" if finished else "")
            )
            if finished is not None:
                callback.say(UNCHANGED)
            else:
                finished = train(point, base / point.out)
                gc.collect()  # the parts of a run refer to each other, so its memory is not free before
            result = TrialResult(number, values, figures_of(finished)[metric], finished)
            trials.finished(trial, result.metric)
            results.append(result)
        compared = _compared(settings, out, results)
        if ranks.first:
            write_json(out / RESULT, _grid_table(compared))
    return compared


def figures_of(run: FinetuneResult | SeedsResult) -> Mapping[str, float]:
    """The figures of a run on the dev data, or their means over all seeds."""
    return run.mean if isinstance(run, SeedsResult) else run.dev


def _check_checkpoints(settings: FinetuneSettings, base: Path) -> None:
    """Refuse before the first trial a checkpoint that a later one could not read."""
    key = "model.start_from"
    for name in settings.sweep.get(key, ()):
        try:
            first_checkpoint(with_values(settings, {key: name}), base)
        except UnmaskError as error:
            raise InvalidRequest(f"sweep cannot set {key} to {name!r}: {error}") from None


def _compared(settings: FinetuneSettings, out: Path, trials: Sequence[TrialResult]) -> SweepResult:
    """The result with the best trial; of equal ones the first."""
    metric = str(settings.evaluation.metric)
    best = max(trials, key=lambda trial: (goodness(metric, trial.metric), -trial.number))
    return SweepResult(settings.name, out, metric, tuple(trials), best.number)


def _grid_table(result: SweepResult) -> Mapping[str, object]:
    """The content of ``result.json``: the values and all figures of every trial."""
    return {
        "name": result.name,
        "metric": result.metric,
        "best_trial": result.best_trial,
        "best_trial_is": CHOSEN,
        "trials": [
            {
                "trial": trial.number,
                "values": dict(trial.values),
                result.metric: trial.metric,
                **_figures(trial),
            }
            for trial in result.trials
        ],
    }


def _figures(trial: TrialResult) -> Mapping[str, object]:
    run, folder = trial.run, f"trial-{trial.number}"
    if isinstance(run, FinetuneResult):
        return {
            "model": f"{folder}/{run.folder.name}",
            "steps": run.steps,
            "best_step": run.best_step,
            "dev": dict(run.dev),
        }
    return {
        "mean": dict(run.mean),
        "standard_deviation": dict(run.standard_deviation),
        "seeds": {
            str(seed): {"model": f"{folder}/seed-{seed}/{result.folder.name}", "dev": dict(result.dev)}
            for seed, result in run.runs.items()
        },
    }
