"""Run a task of a protocol with every seed and combination, each resumed where it was stopped."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unmask.base.files import whole_file
from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.protocol_report import (
    ProtocolReport,
    TaskReport,
    Trial,
    average_report,
    columns_of,
    markdown,
    note_of,
    task_report,
)
from unmask.evaluate.protocols.protocol_runs import (
    ScoredRun,
    TaskFiles,
    run_settings,
    scored_run,
    skipped_lines,
    trial_name,
    trials,
)
from unmask.evaluate.protocols.protocols import Protocol
from unmask.training.finetune.result import write_json
from unmask.training.run.callbacks import Callback
from unmask.training.run.settings import Device

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
                ignore_tensors=() if start else how.ignore_tensors,
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
                columns_of(one, figures, {seed: run.intervals for seed, run in runs.items()})
                if files.dev is not None
                else {},
            )
        )
    if files.dev is None:
        return TaskReport(one.title, start or how.model, tuple(seeds), {}, done[0].values, None, tuple(done))
    report = task_report(one, start or how.model, seeds, done)
    return replace(report, skipped_lines=skipped_lines(one, files))


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
        partial.write_text(markdown(report), "utf-8")


def named_model(model: str) -> str:
    """A folder as an absolute path, because runs name it relative to their own folder."""
    if not model.strip():
        raise InvalidRequest("the model is empty; name a checkpoint folder, a hub id, or default")
    return str(Path(model).resolve()) if Path(model).is_dir() else model
