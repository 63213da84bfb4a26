"""Run a protocol: every task with every seed and combination, each resumed where it was stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest
from unmask.files import whole_file
from unmask.finetuning.protocol_report import (
    ProtocolReport,
    TaskReport,
    Trial,
    average_report,
    columns_of,
    markdown,
    note_of,
    task_report,
)
from unmask.finetuning.protocol_runs import (
    ScoredRun,
    TaskFiles,
    official_files,
    run_settings,
    scored_run,
    seeds_given,
    trial_name,
    trials,
)
from unmask.finetuning.protocols import Protocol, read_protocol, tasks_of
from unmask.finetuning.result import write_json
from unmask.learn.pretrain.report import Callback, NullCallback
from unmask.learn.pretrain.run import exclusive_lock
from unmask.learn.pretrain.settings import Device

REPORT = "report.json"
PAGE = "report.md"


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


def evaluate_glue(
    model: str,
    protocol: Protocol | str | Path,
    data: Path | str,
    output: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    intermediate: str | None = None,
    device: Device = "auto",
    keep_models: bool = True,
    callback: Callback | None = None,
) -> ProtocolReport:
    """Fine-tune a checkpoint on tasks of GLUE by a protocol, and report every metric of every run.

    A stopped run is resumed exactly, and finished runs are kept, if the same is called again. ``output`` then
    has ``report.json``, ``report.md`` and a folder for each task.

    Args:
        model: a checkpoint folder, a hub id, or "default".
        protocol: its name, such as "run_glue", its file, or itself.
        data: the folder with the official files, such as ``MRPC/train.tsv``, plain or compressed.
        output: a folder.
        tasks: names such as "mrpc"; those without data are then skipped. None: all, and all must have data.
        seeds: instead of the protocol's.
        intermediate: a model that is fine-tuned on the intermediate task, MNLI; None fine-tunes one first if
            a task needs it.
        device: where to compute.
        keep_models: False removes each model once it is scored, except those that others start from.
        callback: receives progress.

    Raises:
        InvalidRequest: a task, its data or a seed is impossible, or ``output`` has runs with other settings.
        Stopped: SIGINT or SIGTERM was received.
    """
    found = protocol if isinstance(protocol, Protocol) else read_protocol(protocol, "glue")
    callback = callback or NullCallback()
    out = Path(output)
    wanted = tasks_of(found, tasks)
    files, skipped = _files(found, wanted, Path(data), strict=tasks is None)
    steps = seeds_given(seeds) if seeds is not None else None
    how = How(_named(model), out, steps, device, keep_models, callback)
    _refuse_missing_intermediate(found, files, Path(data), intermediate)
    reports: dict[str, TaskReport] = {}
    starts = {} if intermediate is None else {"": _named(intermediate)}
    out.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(out):
        for task in files:
            start = _start(found, task, data=Path(data), starts=starts, reports=reports, how=how)
            if task not in reports:
                reports[task] = train_task(found, task, files[task], how, start=start)
        ordered = {task: reports[task] for task in found.tasks if task in reports}
        report = made_report(found, model, ordered, skipped)
        write_report(report, out)
    return report


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
    one, combinations = protocol.tasks[task], trials(protocol, task)
    done: list[Trial] = []
    for number, values in enumerate(combinations):
        runs: dict[int, ScoredRun] = {}
        for place, seed in enumerate(seeds):
            count, of = number * len(seeds) + place + 1, len(combinations) * len(seeds)
            what = f", {trial_name(values)}" if values else ""
            how.callback.say(f"{one.title}, run {count} of {of}: seed {seed}{what}")
            settings = run_settings(
                protocol,
                task,
                files,
                model=start or how.model,
                seed=seed,
                values=values,
                out=run_folder(task, values, seed),
                device=how.device,
            )
            kept = how.keep_models or keep
            runs[seed] = scored_run(settings, how.out, files, how.callback, keep_model=kept)
        figures = {seed: run.figures for seed, run in runs.items()}
        done.append(
            Trial(
                values,
                figures,
                {seed: run.steps for seed, run in runs.items()},
                {seed: run.best_step for seed, run in runs.items()},
                columns_of(one, figures) if files.dev is not None else {},
            )
        )
    if files.dev is None:
        return TaskReport(one.title, start or how.model, tuple(seeds), {}, done[0].values, None, tuple(done))
    return task_report(one, start or how.model, seeds, done)


def run_folder(task: str, values: Mapping[str, Any], seed: int) -> str:
    """The folder of a run, relative to that of the protocol."""
    return "/".join(filter(None, (task, trial_name(values), f"seed-{seed}")))


def made_report(
    protocol: Protocol, model: str, tasks: Mapping[str, TaskReport], skipped: Mapping[str, str]
) -> ProtocolReport:
    """The report of finished tasks."""
    return ProtocolReport(
        protocol.name,
        model,
        note_of(protocol, tasks),
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
        partial.write_text(markdown(report), "utf-8")


def _named(model: str) -> str:
    """A folder as an absolute path, because runs name it relative to their own folder."""
    if not model.strip():
        raise InvalidRequest("the model is empty; name a checkpoint folder, a hub id, or default")
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _files(
    protocol: Protocol, wanted: Sequence[str], data: Path, *, strict: bool
) -> tuple[dict[str, TaskFiles], dict[str, str]]:
    """The files of each task, and the tasks without theirs.

    Raises:
        InvalidRequest: files are missing, of any task if ``strict``, else of all.
    """
    if not data.is_dir():
        raise InvalidRequest(f"{data} is not a folder; name the one with the files of GLUE")
    found: dict[str, TaskFiles] = {}
    skipped = {}
    for task in wanted:
        files = official_files(protocol.tasks[task], data)
        if isinstance(files, str):
            skipped[task] = f"{data} has no {files}"
        else:
            found[task] = files
    if skipped and (strict or not found):
        missing = ", ".join(f"{task} ({why.partition(' has no ')[2]})" for task, why in skipped.items())
        raise InvalidRequest(
            f"{data} lacks files of {missing}; add them, or name other tasks"
            + (f", such as {','.join(found)}" if found else "")
        )
    return found, skipped


def _refuse_missing_intermediate(
    protocol: Protocol, files: Mapping[str, TaskFiles], data: Path, given: str | None
) -> None:
    for task in files:
        before = protocol.tasks[task].intermediate
        if before and given is None:
            missing = official_files(protocol.tasks[before], data)
            if isinstance(missing, str):
                raise InvalidRequest(
                    f"{task} starts from a model of {before} in {protocol.name}, and {data} has no "
                    f"{missing}; add it, or name a model that is fine-tuned on it as intermediate"
                )


def _start(
    protocol: Protocol,
    task: str,
    *,
    data: Path,
    starts: dict[str, str],
    reports: dict[str, TaskReport],
    how: How,
) -> str:
    """The checkpoint that a task starts from; empty for the given model. Trains the intermediate one."""
    before = protocol.tasks[task].intermediate
    if not before or "" in starts:
        return starts.get("", "") if before else ""
    if before not in starts:
        files = official_files(protocol.tasks[before], data)
        assert isinstance(files, TaskFiles)
        report = reports[before] = train_task(protocol, before, files, how, keep=True)
        trial = next(one for one in report.trials if one.values == report.chosen)
        choose = protocol.tasks[before].choose
        seed = max(trial.figures, key=lambda seed: trial.figures[seed][choose])
        starts[before] = f"{run_folder(before, trial.values, seed)}/model"
    return starts[before]
