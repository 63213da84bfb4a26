"""What every fine-tuning run is made of, whatever it learns: its newest checkpoint and its loop."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import bfloat16, nn

from unmask.training.data.labeled import LabeledBatches
from unmask.training.data.ranking import RankingBatches
from unmask.training.finetune.grid import FREE
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.objectives.interface import Objective
from unmask.training.optim import build_optimizer
from unmask.training.pretrain.export import card_of, check_encoders, check_place
from unmask.training.run.callbacks import Callback
from unmask.training.run.checkpoint import Snapshot
from unmask.training.run.loop import Loop
from unmask.training.run.loop_settings import LoopSettings, TextBatchSettings
from unmask.training.run.ranks import Ranks
from unmask.training.run.report import counted
from unmask.training.run.sharded import newest_for_all
from unmask.training.run.state import refuse_changes
from unmask.weights import Checkpoint

TrainingBatches = LabeledBatches | RankingBatches


def newest_checkpoint(
    settings: FinetuneSettings, base: Path, out: Path, ranks: Ranks, callback: Callback
) -> Snapshot | None:
    """The newest intact checkpoint of a run; impossible requests are refused before it is read.

    Raises:
        InvalidRequest: the run was begun with other settings, or its card cannot be read.
        OutputError: the place of its model holds something else.
    """
    check_place(out / "model", settings.name)
    if settings.card is not None:
        card_of(settings, base, None)
    found = newest_for_all(out / "checkpoints", ranks, callback.say)
    if found is not None:
        refuse_changes(settings, found.state["settings"], out, FREE)
    return found


def new_loop(
    settings: FinetuneSettings,
    objective: Objective[Any, Any],
    checkpoint: Checkpoint,
    batches: TrainingBatches,
    ranks: Ranks,
    *,
    own_rates: Mapping[nn.Parameter, float] | None = None,
) -> Loop:
    """The loop of a run at its beginning; the objective is moved to the run's device.

    ``own_rates`` are learning rates of parameters that have one of their own.
    """
    check_encoders(objective, checkpoint)
    if settings.precision == "bfloat16":
        objective.to(bfloat16)
    objective.to(ranks.device).train()
    return Loop(
        LoopSettings(
            steps_of(settings, batches),
            TextBatchSettings(settings.batch_size, settings.micro_batches),
            settings.optimizer,
            settings.schedule,
            settings.precision,
            settings.seed,
            faults=settings.faults,
        ),
        objective,
        batches,
        optimizer=build_optimizer(objective, settings.optimizer, own_rates),
        averages=None,
        ranks=ranks,
        ahead=ranks.device.type != "cpu",
    )


def steps_of(settings: FinetuneSettings, batches: TrainingBatches) -> int:
    """Steps of a run: those that its settings name, or its epochs in whole steps, at least one."""
    if settings.max_steps is not None:
        return settings.max_steps
    return max(1, round(settings.epochs * batches.steps_per_epoch))


def planned(settings: FinetuneSettings, batches: TrainingBatches, unit: str, ranks: Ranks) -> str:
    """What a run is going to do, in a sentence; ``unit`` is what a batch consists of."""
    epochs = settings.epochs
    if settings.max_steps is not None:
        epochs = round(settings.max_steps / batches.steps_per_epoch, 3)
    return (
        f"{settings.name}: {epochs:g} {'epoch' if epochs == 1 else 'epochs'} of "
        f"{counted(batches.steps_per_epoch, 'step')}, {steps_of(settings, batches):,} in all, of "
        f"{counted(settings.batch_size, unit)}, in {settings.precision} on {ranks.device.type}"
    )
