"""Run a task of a protocol with every seed and combination, each resumed where it was stopped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
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
    seeds_given,
    skipped_lines,
    trial_name,
    trials,
)
from unmask.evaluate.protocols.protocols import Protocol
from unmask.training.finetune.result import write_json
from unmask.training.run.callbacks import Callback, listener
from unmask.training.run.run import exclusive_lock
from unmask.training.run.settings import Device

REPORT = "report.json"
PAGE = "report.md"
GIVEN = "These are scores on the data given, with the model of every seed."


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
    ((task, one),) = protocol.tasks.items()
    if protocol.grid_of(task) and dev is None:
        raise InvalidRequest(
            f"{protocol.name} has a grid, and no dev data are given that choose in it; add them"
        )
    numbers = seeds_given(seeds) if seeds is not None else None
    files = TaskFiles(train.resolve(), None if dev is None else dev.resolve())
    output.mkdir(parents=True, exist_ok=True)
    with listener(callback) as told, exclusive_lock(output):
        how = How(named_model(model), output, numbers, device, True, told, ignore_tensors)
        trained = train_task(protocol, task, files, how)
        scores = {
            seed: score(output / run_folder(task, trained.chosen, seed) / "model") for seed in trained.seeds
        }
        figures = {seed: flat(some) for seed, some in scores.items()}
        between = {seed: getattr(some, "intervals", {}) for seed, some in scores.items()}
        found = replace(trained, columns=columns_of(one, figures, between), scores=figures)
        report = made_report(protocol, model, {task: found}, {}, note=GIVEN)
        write_report(report, output)
    return report


def flat(scores: Any, before: str = "") -> dict[str, float]:
    """All numbers of a result, by their names within each other, such as ``has_answer.f1``."""
    found: dict[str, float] = {}
    table = (
        {one.name: getattr(scores, one.name) for one in fields(scores)} if is_dataclass(scores) else scores
    )
    for name, value in table.items():
        if name == "intervals":
            continue  # they are about texts, and a report compares seeds
        if is_dataclass(value) or isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif isinstance(value, int | float):
            found[f"{before}{name}"] = float(value)
    return found
