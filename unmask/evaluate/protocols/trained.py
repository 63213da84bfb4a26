"""Fine-tuning by a protocol of one task with files of the user, and the scores of the models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.protocol import (
    How,
    made_report,
    named_model,
    run_folder,
    train_task,
    write_report,
)
from unmask.evaluate.protocols.protocol_report import ProtocolReport, columns_of
from unmask.evaluate.protocols.protocol_runs import TaskFiles, seeds_given
from unmask.evaluate.protocols.protocols import Protocol
from unmask.training.run.callbacks import Callback, listener
from unmask.training.run.run import exclusive_lock
from unmask.training.run.settings import Device

GIVEN = "These are scores on the data given, with the model of every seed."


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
