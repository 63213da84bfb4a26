"""The runs of a protocol: settings of each, and each trained once, resumed where it was stopped."""

import dataclasses
import gc
import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.base.intervals import Interval
from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.protocols import Protocol, ProtocolTask, merged, nested
from unmask.evaluate.protocols.scores import labeled_figures
from unmask.text.lines import COMPRESSED
from unmask.training.data.labeled import check_unchanged, digest_of
from unmask.training.finetune.data_settings import DataSettings
from unmask.training.finetune.grid import FREE
from unmask.training.finetune.inputs import UNCHANGED, inputs_of
from unmask.training.finetune.records import ReadingNotes, read_labeled
from unmask.training.finetune.result import FinetuneResult, read_intervals, write_json, written_intervals
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import FinetuneSettings, settings_of_table
from unmask.training.run.callbacks import Callback
from unmask.training.run.settings import Device
from unmask.training.run.state import refuse_changes
from unmask.training.table import read_table

SCORES = "scores.json"
"""What is left of a finished run in its folder, beside the model."""


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task."""

    train: Path
    dev: Path | None
    also: Mapping[str, Path] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class ScoredRun:
    """A finished run of a protocol."""

    folder: Path
    """Its folder; the model is in ``model``, unless it was removed."""
    steps: int
    best_step: int
    figures: Mapping[str, float]
    """Every figure on the dev data; those of a further dev part with its name and a slash before them."""
    intervals: Mapping[str, Interval] = dataclasses.field(default_factory=dict)
    """The 95 % confidence interval of each."""


def official_file(folder: Path, name: str) -> Path | None:
    """A file of a task in the data folder, plain or compressed; None if there is none."""
    tried = [folder / name, *(folder / f"{name}{suffix}" for suffix in COMPRESSED)]
    return next((path for path in tried if path.is_file()), None)


def official_files(task: ProtocolTask, folder: Path) -> TaskFiles | str:
    """The files of a task in the data folder, or the name of one that is missing."""
    found = {}
    for name in (task.train, task.dev, *task.also.values()):
        path = official_file(folder, name)
        if path is None:
            return name
        found[name] = path.resolve()
    also = {part: found[name] for part, name in task.also.items()}
    return TaskFiles(found[task.train], found[task.dev], also)


def skipped_lines(task: ProtocolTask, files: TaskFiles) -> dict[str, int]:
    """By file of the task, the lines that its runs leave out."""
    data = read_table(DataSettings, {"train": [str(files.train)], **task.data}, "data")
    notes = ReadingNotes()
    if data.skip_short_lines:
        names = [str(path) for path in (files.train, files.dev, *files.also.values()) if path is not None]
        for _ in read_labeled(names, data, Path(), notes):
            pass
    return {f"{path.parent.name}/{path.name}": count for path, count in notes.skipped.items()}


def trials(protocol: Protocol, task: str) -> list[Mapping[str, Any]]:
    """Every combination of the grid's values; one without any if there is no grid."""
    grid = protocol.grid_of(task)
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def trial_name(values: Mapping[str, Any]) -> str:
    """A folder's name for one combination, such as ``learning_rate=1e-05,epochs=2``."""
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def run_settings(
    protocol: Protocol,
    task: str,
    files: TaskFiles,
    *,
    model: str,
    seed: int,
    values: Mapping[str, Any],
    out: str,
    device: Device = "auto",
    ignore_tensors: Sequence[str] = (),
) -> FinetuneSettings:
    """The settings of one run.

    Args:
        protocol: the protocol.
        task: one of its tasks.
        files: the files of the task.
        model: the checkpoint to start from.
        seed: of the run.
        values: one combination of the grid.
        out: the folder of the run.
        device: where to compute, which is not part of a protocol.
        ignore_tensors: tensors of the checkpoint that are left out, by name.

    Raises:
        InvalidRequest: the protocol has a value that no run can have.
    """
    one = protocol.tasks[task]
    dev = [] if files.dev is None else [str(files.dev)]
    table = merged(
        protocol.run,
        {"data": one.data},
        one.run,
        nested(values),
        {
            "name": f"{task}-{seed}",
            "task": one.task,
            "model": {"start_from": model, "ignore_tensors": list(ignore_tensors)},
            "data": {"train": [str(files.train)], "dev": dev},
            "seed": seed,
            "out": out,
            "device": device,
        },
    )
    if not dev:  # nothing can be chosen, so the last weights count
        table.pop("evaluation", None)
    settings = settings_of_table(table)
    if protocol.evaluate is None or not dev:
        return settings
    texts = sum(1 for _ in read_labeled(settings.data.train, settings.data, Path()))
    texts *= 2 if settings.data.both_orders else 1
    steps = -(-texts // settings.batch_size)
    every = max(1, min(protocol.evaluate.most_steps, steps // protocol.evaluate.per_epoch))
    return replace(settings, evaluation=replace(settings.evaluation, every=every))


def scored_run(
    settings: FinetuneSettings, base: Path, files: TaskFiles, callback: Callback, *, keep_model: bool = True
) -> ScoredRun:
    """Train with these settings, or resume, and score; a run that is finished is read from its folder.

    Args:
        settings: of the run.
        base: the folder that paths in them are relative to.
        files: the files of the task, of which `TaskFiles.also` are scored too.
        callback: receives progress.
        keep_model: False removes the model once it is scored.

    Raises:
        InvalidRequest: the run in the folder was made with other settings, data or first weights.
    """
    folder = base / settings.out
    found = _finished(settings, base, files)
    if found is not None and (not keep_model or (folder / "model" / "config.json").is_file()):
        callback.say(f"{settings.out}: already finished")
        callback.say(UNCHANGED)
        return found
    inputs = _inputs(settings, base, files)
    result = finetune(settings, base=base, callback=callback)
    assert isinstance(result, FinetuneResult)
    gc.collect()  # the parts of a run refer to each other, so its memory is not free before
    figures = {name.removeprefix("dev/"): value for name, value in result.dev.items()}
    between = {name.removeprefix("dev/"): one for name, one in result.intervals.items()}
    for part, path in files.also.items():
        data = replace(settings.data, dev=(str(path),))
        also, around = labeled_figures(result.folder, settings.task, data, base)
        figures |= {f"{part}/{name}": value for name, value in also.items()}
        between |= {f"{part}/{name}": one for name, one in around.items()}
    scored = ScoredRun(folder, result.steps, result.best_step, figures, between)
    table = {"steps": scored.steps, "best_step": scored.best_step, "figures": figures}
    table["intervals"] = written_intervals(between)
    write_json(folder / SCORES, table | {"inputs": inputs, "settings": dataclasses.asdict(settings)})
    for part in ("checkpoints", "best", *(() if keep_model else ("model",))):
        shutil.rmtree(folder / part, ignore_errors=True)
    return scored


def _inputs(settings: FinetuneSettings, base: Path, files: TaskFiles) -> dict[str, str]:
    """The digests of what is trained and scored on, by their names in errors."""
    names = [str(path) for path in files.also.values()]
    records = read_labeled(names, settings.data, base)
    found = digest_of(replace(one, where="") for one in records)
    return inputs_of(settings, base) | {"texts or labels of the further dev files": found}


def _finished(settings: FinetuneSettings, base: Path, files: TaskFiles) -> ScoredRun | None:
    folder = base / settings.out
    try:
        table = json.loads((folder / SCORES).read_bytes())
        between = read_intervals(table.get("intervals", {}))
        found = ScoredRun(folder, table["steps"], table["best_step"], table["figures"], between)
        stored, before = table["settings"], table["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    refuse_changes(settings, stored, folder, FREE)
    check_unchanged(before, _inputs(settings, base, files))
    return found


def data_settings(table: Mapping[str, Any], path: Path) -> DataSettings:
    """The reading of one file, from keys of a run file's ``[data]``.

    Raises:
        InvalidRequest: a key is not one of them.
    """
    if not path.exists():
        raise InvalidRequest(f"{path} does not exist; name a file with labeled data")
    given = {key: value for key, value in table.items() if value is not None}
    return read_table(DataSettings, {**given, "train": [str(path)], "dev": [str(path)]}, "data")


def seeds_given(seeds: Sequence[int]) -> tuple[int, ...]:
    """Seeds, each once and none negative.

    Raises:
        InvalidRequest: there is none, one twice, or a negative one.
    """
    found = tuple(seeds)
    if not found or min(found) < 0 or len(set(found)) != len(found):
        raise InvalidRequest(
            f"seeds is {', '.join(map(str, found)) or 'empty'}; give different numbers of at least 0"
        )
    return found
