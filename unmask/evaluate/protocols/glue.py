"""GLUE by a protocol: tasks from official files, intermediate models first, and the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.protocols import Protocol, read_protocol, tasks_of
from unmask.evaluate.protocols.report import ProtocolReport, TaskReport
from unmask.evaluate.protocols.runs import (
    How,
    TaskFiles,
    made_report,
    named_model,
    official_files,
    run_folder,
    seeds_given,
    train_task,
    write_report,
)
from unmask.training.run.callbacks import Callback, listener
from unmask.training.run.run import exclusive_lock
from unmask.training.run.settings import Device


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
        callback: receives what runs tell, see `unmask.finetune`; None prints it to standard error.

    Raises:
        InvalidRequest: a task, its data or a seed is impossible, or ``output`` has runs with other settings.
        Stopped: SIGINT or SIGTERM was received.
    """
    chosen = protocol if isinstance(protocol, Protocol) else read_protocol(protocol, "glue")
    out = Path(output)
    names = tasks_of(chosen, tasks)
    files, skipped = _files(chosen, names, Path(data), strict=tasks is None)
    steps = seeds_given(seeds) if seeds is not None else None
    _refuse_missing_intermediate(chosen, files, Path(data), intermediate)
    reports: dict[str, TaskReport] = {}
    starts = {} if intermediate is None else {"": named_model(intermediate)}
    out.mkdir(parents=True, exist_ok=True)
    with listener(callback) as receiver, exclusive_lock(out):
        how = How(named_model(model), out, steps, device, keep_models, receiver)
        for task in files:
            start = _start(chosen, task, data=Path(data), starts=starts, reports=reports, how=how)
            if task not in reports:
                reports[task] = train_task(chosen, task, files[task], how, start=start)
        ordered = {task: reports[task] for task in chosen.tasks if task in reports}
        report = made_report(chosen, model, ordered, skipped)
        write_report(report, out)
    return report


def _files(
    protocol: Protocol, tasks: Sequence[str], data: Path, *, strict: bool
) -> tuple[dict[str, TaskFiles], dict[str, str]]:
    """The files of each task, and the tasks without theirs.

    Raises:
        InvalidRequest: files are missing, of any task if ``strict``, else of all.
    """
    if not data.is_dir():
        raise InvalidRequest(f"{data} is not a folder; name the one with the files of GLUE")
    files_of: dict[str, TaskFiles] = {}
    skipped = {}
    for task in tasks:
        files = official_files(protocol.tasks[task], data)
        if isinstance(files, str):
            skipped[task] = f"{data} has no {files}"
        else:
            files_of[task] = files
    if skipped and (strict or not files_of):
        missing = ", ".join(f"{task} ({why.partition(' has no ')[2]})" for task, why in skipped.items())
        raise InvalidRequest(
            f"{data} lacks files of {missing}; add them, or name other tasks"
            + (f", such as {','.join(files_of)}" if files_of else "")
        )
    return files_of, skipped


def _refuse_missing_intermediate(
    protocol: Protocol, files: Mapping[str, TaskFiles], data: Path, intermediate: str | None
) -> None:
    for task in files:
        before = protocol.tasks[task].intermediate
        if before and intermediate is None:
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
        trial = next(entry for entry in report.trials if entry.values == report.chosen)
        choose = protocol.tasks[before].choose
        seed = max(trial.figures, key=lambda seed: trial.figures[seed][choose])
        starts[before] = f"{run_folder(before, trial.values, seed)}/model"
    return starts[before]
