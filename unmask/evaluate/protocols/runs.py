"""The runs of a protocol: settings of each, each trained once or resumed, and their report."""

import dataclasses
import gc
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from unmask.base.files import whole_file
from unmask.base.intervals import Interval
from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.protocols import Protocol, ProtocolTask, merged, nested
from unmask.evaluate.protocols.report import (
    ProtocolReport,
    TaskReport,
    Trial,
    average_report,
    columns_of,
    markdown,
    note_of,
    task_report,
)
from unmask.evaluate.protocols.scores import labeled_figures
from unmask.text.lines import COMPRESSED
from unmask.training.data.labeled import check_unchanged, digest_of
from unmask.training.finetune.grid import FREE
from unmask.training.finetune.records import ReadingNotes, read_labeled
from unmask.training.finetune.result import (
    UNCHANGED,
    FinetuneResult,
    inputs_of,
    read_intervals,
    write_json,
    written_intervals,
)
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import DataSettings, FinetuneSettings, settings_of_table
from unmask.training.run.callbacks import Callback, listener
from unmask.training.run.run import exclusive_lock
from unmask.training.run.settings import Device
from unmask.training.run.state import refuse_changes
from unmask.training.table import read_table

SCORES = "scores.json"
"""What is left of a finished run in its folder, beside the model."""

REPORT = "report.json"
PAGE = "report.md"
GIVEN = "These are scores on the data given, with the model of every seed."


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
    paths = {}
    for name in (task.train, task.dev, *task.also.values()):
        path = official_file(folder, name)
        if path is None:
            return name
        paths[name] = path.resolve()
    also = {part: paths[name] for part, name in task.also.items()}
    return TaskFiles(paths[task.train], paths[task.dev], also)


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
    definition = protocol.tasks[task]
    dev = [] if files.dev is None else [str(files.dev)]
    table = merged(
        protocol.run,
        {"data": definition.data},
        definition.run,
        nested(values),
        {
            "name": f"{task}-{seed}",
            "task": definition.task,
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
    finished = _finished(settings, base, files)
    if finished is not None and (not keep_model or (folder / "model" / "config.json").is_file()):
        callback.say(f"{settings.out}: already finished")
        callback.say(UNCHANGED)
        return finished
    inputs = _inputs(settings, base, files)
    result = finetune(settings, base=base, callback=callback)
    assert isinstance(result, FinetuneResult)
    gc.collect()  # the parts of a run refer to each other, so its memory is not free before
    figures = {name.removeprefix("dev/"): value for name, value in result.dev.items()}
    between = {name.removeprefix("dev/"): interval for name, interval in result.intervals.items()}
    for part, path in files.also.items():
        data = replace(settings.data, dev=(str(path),))
        also, around = labeled_figures(result.folder, settings.task, data, base)
        figures |= {f"{part}/{name}": value for name, value in also.items()}
        between |= {f"{part}/{name}": interval for name, interval in around.items()}
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
    digest = digest_of(replace(record, where="") for record in records)
    return inputs_of(settings, base) | {"texts or labels of the further dev files": digest}


def _finished(settings: FinetuneSettings, base: Path, files: TaskFiles) -> ScoredRun | None:
    folder = base / settings.out
    try:
        table = json.loads((folder / SCORES).read_bytes())
        between = read_intervals(table.get("intervals", {}))
        run = ScoredRun(folder, table["steps"], table["best_step"], table["figures"], between)
        stored, before = table["settings"], table["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    refuse_changes(settings, stored, folder, FREE)
    check_unchanged(before, _inputs(settings, base, files))
    return run


def data_settings(table: Mapping[str, Any], path: Path) -> DataSettings:
    """The reading of one file, from keys of a run file's ``[data]``.

    Raises:
        InvalidRequest: a key is not one of them.
    """
    if not path.exists():
        raise InvalidRequest(f"{path} does not exist; name a file with labeled data")
    keys = {key: value for key, value in table.items() if value is not None}
    return read_table(DataSettings, {**keys, "train": [str(path)], "dev": [str(path)]}, "data")


def seeds_given(seeds: Sequence[int]) -> tuple[int, ...]:
    """Seeds, each once and none negative.

    Raises:
        InvalidRequest: there is none, one twice, or a negative one.
    """
    numbers = tuple(seeds)
    if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
        raise InvalidRequest(
            f"seeds is {', '.join(map(str, numbers)) or 'empty'}; give different numbers of at least 0"
        )
    return numbers


@dataclass(frozen=True)
class How:
    """What the runs of a protocol share and the protocol does not decide."""

    model: str
    """The checkpoint to start from, as the runs name it."""
    out: Path
    seeds: tuple[int, ...] | None
    device: Device
    keep_models: bool
    callback: Callback
    ignore_tensors: Sequence[str] = ()
    """Tensors that are left out of the checkpoint, not of an intermediate one."""


def train_task(
    protocol: Protocol, task: str, files: TaskFiles, how: How, *, start: str = "", keep: bool = False
) -> TaskReport:
    """Every combination of a task with every seed.

    Args:
        protocol: the protocol.
        task: one of its tasks.
        files: the files of the task.
        how: what the runs share.
        start: the checkpoint to start from; empty for that of ``how``.
        keep: keep the models, whatever ``how`` says.
    """
    seeds = how.seeds or protocol.seeds_of(task)
    definition, combinations = protocol.tasks[task], trials(protocol, task)
    finished: list[Trial] = []
    for number, values in enumerate(combinations):
        runs: dict[int, ScoredRun] = {}
        for place, seed in enumerate(seeds):
            count, of = number * len(seeds) + place + 1, len(combinations) * len(seeds)
            what = f", {trial_name(values)}" if values else ""
            how.callback.say(f"{definition.title}, run {count} of {of}: seed {seed}{what}")
            settings = run_settings(
                protocol,
                task,
                files,
                model=start or how.model,
                seed=seed,
                values=values,
                out=run_folder(task, values, seed),
                device=how.device,
                ignore_tensors=() if start else how.ignore_tensors,
            )
            keep_model = how.keep_models or keep
            runs[seed] = scored_run(settings, how.out, files, how.callback, keep_model=keep_model)
        figures = {seed: run.figures for seed, run in runs.items()}
        finished.append(
            Trial(
                values,
                figures,
                {seed: run.steps for seed, run in runs.items()},
                {seed: run.best_step for seed, run in runs.items()},
                columns_of(definition, figures, {seed: run.intervals for seed, run in runs.items()})
                if files.dev is not None
                else {},
            )
        )
    if files.dev is None:
        return TaskReport(
            definition.title, start or how.model, tuple(seeds), {}, finished[0].values, None, tuple(finished)
        )
    report = task_report(definition, start or how.model, seeds, finished)
    return replace(report, skipped_lines=skipped_lines(definition, files))


def run_folder(task: str, values: Mapping[str, Any], seed: int) -> str:
    """The folder of a run, relative to that of the protocol."""
    return "/".join(filter(None, (task, trial_name(values), f"seed-{seed}")))


def made_report(
    protocol: Protocol,
    model: str,
    tasks: Mapping[str, TaskReport],
    skipped: Mapping[str, str],
    *,
    note: str | None = None,
) -> ProtocolReport:
    """The report of finished tasks."""
    return ProtocolReport(
        protocol.name,
        model,
        note_of(protocol, tasks) if note is None else note,
        protocol.source,
        protocol.comparable,
        protocol.unverified,
        protocol.differences,
        dict(tasks),
        dict(skipped),
        average_report(protocol, tasks),
    )


def write_report(report: ProtocolReport, out: Path) -> None:
    """Write the report as JSON and as Markdown.

    Raises:
        OutputError: the disk is full or read-only.
    """
    write_json(out / REPORT, asdict(report))
    with whole_file(out / PAGE) as partial:
        partial.write_text(markdown(report), "utf-8", newline="\n")


def named_model(model: str) -> str:
    """A folder as an absolute path, because runs name it relative to their own folder."""
    if not model.strip():
        raise InvalidRequest("the model is empty; name a checkpoint folder, a hub id, or default")
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def evaluate_trained(
    model: str,
    protocol: Protocol,
    train: Path,
    output: Path,
    score: Callable[[Path], Any],
    *,
    dev: Path | None = None,
    seeds: Sequence[int] | None = None,
    device: Device = "auto",
    ignore_tensors: Sequence[str] = (),
    callback: Callback | None = None,
) -> ProtocolReport:
    """Fine-tune a checkpoint by a protocol of one task, with files of the user, and score each seed's model.

    Args:
        model: a checkpoint folder, a hub id, or "default".
        protocol: of one task, such as "squad/v1" or "ner/conll".
        train: the training data.
        output: the folder of the runs; those in it are resumed or kept.
        score: scores the model in a folder; its result has the protocol's metrics as attributes.
        dev: data that may choose the evaluation that counts.
        seeds: instead of the protocol's.
        device: where to train.
        ignore_tensors: tensors of the checkpoint that are left out, by name.
        callback: receives what runs tell, see `unmask.finetune`; None prints it to standard error.

    Raises:
        InvalidRequest: a file or a seed is impossible, or ``output`` has runs with other settings.
        Stopped: SIGINT or SIGTERM was received.
    """
    for path in (train, dev):
        if path is not None and not path.exists():
            raise InvalidRequest(f"{path} does not exist; name a file with labeled data")
    ((task, definition),) = protocol.tasks.items()
    if protocol.grid_of(task) and dev is None:
        raise InvalidRequest(
            f"{protocol.name} has a grid, and no dev data are given that choose in it; add them"
        )
    numbers = seeds_given(seeds) if seeds is not None else None
    files = TaskFiles(train.resolve(), None if dev is None else dev.resolve())
    output.mkdir(parents=True, exist_ok=True)
    with listener(callback) as receiver, exclusive_lock(output):
        how = How(named_model(model), output, numbers, device, True, receiver, ignore_tensors)
        trained = train_task(protocol, task, files, how)
        scores = {
            seed: score(output / run_folder(task, trained.chosen, seed) / "model") for seed in trained.seeds
        }
        figures = {seed: flat(some) for seed, some in scores.items()}
        between = {seed: getattr(some, "intervals", {}) for seed, some in scores.items()}
        report_of_task = replace(trained, columns=columns_of(definition, figures, between), scores=figures)
        report = made_report(protocol, model, {task: report_of_task}, {}, note=GIVEN)
        write_report(report, output)
    return report


def flat(scores: Any, before: str = "") -> dict[str, float]:
    """All numbers of a result, by their names within each other, such as ``has_answer.f1``."""
    numbers: dict[str, float] = {}
    table = (
        {entry.name: getattr(scores, entry.name) for entry in fields(scores)}
        if is_dataclass(scores)
        else scores
    )
    for name, value in table.items():
        if name == "intervals":
            continue  # they are about texts, and a report compares seeds
        if is_dataclass(value) or isinstance(value, Mapping):
            numbers |= flat(value, f"{before}{name}.")
        elif isinstance(value, int | float):
            numbers[f"{before}{name}"] = float(value)
    return numbers
