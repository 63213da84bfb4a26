"""What every fine-tuning run has, whatever it learns: epochs, figures on dev data, and the best weights."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from unmask.base.files import replaced_folder
from unmask.base.progress import counted
from unmask.encoder.encoder import Encoder
from unmask.training.data.labeled import LabeledBatches
from unmask.training.data.ranking import RankingBatches
from unmask.training.finetune.grid import FREE
from unmask.training.finetune.metrics import check_metric, goodness
from unmask.training.finetune.result import FinetuneResult
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.objectives.interface import Objective
from unmask.training.run.callbacks import Callback
from unmask.training.run.checkpoint import Snapshot
from unmask.training.run.export import write_model
from unmask.training.run.log import read_events
from unmask.training.run.ranks import Ranks
from unmask.training.run.run import Evaluation, Run
from unmask.training.run.settings import EvaluationSettings, LoopSettings, TextBatchSettings
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build


class BestModel:
    """Follows a figure over a run's evaluations. Its state is the run's log, so a resumed run has the same.
    A figure that is not a number is never the best.

    Args:
        metric: the figure, such as "accuracy"; None follows nothing.
        patience: evaluations without a better figure before the run is finished; 0 for no limit.
        folder: where the best weights are kept.
        write: writes the present weights into a folder.
    """

    def __init__(
        self, metric: str | None, patience: int, folder: Path, write: Callable[[Path], None]
    ) -> None:
        self.metric = metric
        self.patience = patience
        self.folder = folder
        self.write = write
        self.best: float | None = None
        self.step = 0
        """The step of the best figure."""
        self._without = 0

    @property
    def stop(self) -> bool:
        """Whether no figure of the last evaluations was better."""
        return bool(self.patience) and self._without >= self.patience

    def restore(self, log: Path, step: int) -> None:
        """Take the evaluations up to a step from the run's log."""
        for event in read_events(log):
            if event.get("event") == "held_out" and 0 < event.get("step", 0) <= step and self.metric:
                self._better(float(event[f"dev/{self.metric}"]), int(event["step"]))

    def evaluated(self, figures: Mapping[str, float], step: int) -> None:
        """Take an evaluation's figures, and keep the weights if they are the best so far.

        Raises:
            InvalidRequest: there is no such figure.
        """
        if self.metric is None:
            return
        check_metric(self.metric, tuple(figures))
        if self._better(figures[self.metric], step):
            self.write(self.folder)

    def _better(self, value: float, step: int) -> bool:
        better = not math.isnan(value) and (
            self.best is None or goodness(self.metric, value) > goodness(self.metric, self.best)
        )
        if better:
            self.best, self.step, self._without = value, step, 0
        else:
            self._without += 1
        return better


TRAINED = "trained.safetensors"
"""The best weights of an adapter, by our names."""

TrainingBatches = LabeledBatches | RankingBatches


class SupervisedRun(Run[FinetuneSettings, FinetuneResult]):
    """A run that learns from records and chooses its weights by figures on dev data.

    See `unmask.training.run.run.Run`.
    """

    free = FREE
    unit = "text"
    """What a batch consists of, in the plan."""
    evaluates_at_start = False
    """Whether the weights that the run begins with are evaluated."""

    training: TrainingBatches
    """The batches; set by `build`."""
    dev: Any
    """The dev data, None or empty if there are none; set by `build`."""

    def __init__(
        self, settings: FinetuneSettings, base: Path, out: Path, ranks: Ranks, callback: Callback
    ) -> None:
        self.described: list[str] = []
        """What was said about the data."""
        super().__init__(settings, base, out, ranks, callback)

    @abstractmethod
    def dev_figures(self) -> dict[str, float]:
        """Figures of the present weights on the dev data; every process computes the same ones."""

    @abstractmethod
    def finish_best(self, figures: Mapping[str, float], step: int) -> FinetuneResult:
        """Export the weights of a step, whose figures on the dev data are given."""

    @property
    def encoder(self) -> Encoder:
        """The encoder that is trained."""
        return self.loop.objective.encoder

    def batches(self, objective: Objective[Any, Any]) -> TrainingBatches:
        """Those that `build` made."""
        return self.training

    def loop_settings(self) -> LoopSettings:
        """Steps of whole batches."""
        settings = self.settings
        return LoopSettings(
            self.steps,
            TextBatchSettings(settings.batch_size, settings.micro_batches),
            settings.optimizer,
            settings.schedule,
            settings.precision,
            settings.seed,
            faults=settings.faults,
        )

    @property
    def steps(self) -> int:
        """Those that the settings name, or their epochs in whole steps, at least one."""
        settings = self.settings
        if settings.max_steps is not None:
            return settings.max_steps
        return max(1, round(settings.epochs * self.training.steps_per_epoch))

    def plan(self) -> Iterable[str]:
        """Epochs, steps and batches, in a sentence."""
        settings, each = self.settings, self.training.steps_per_epoch
        epochs = settings.epochs if settings.max_steps is None else round(settings.max_steps / each, 3)
        yield (
            f"{settings.name}: {epochs:g} {'epoch' if epochs == 1 else 'epochs'} of "
            f"{counted(each, 'step')}, {self.steps:,} in all, of "
            f"{counted(settings.batch_size, self.unit)}, in {settings.precision} on {self.ranks.device.type}"
        )

    def evaluation(self) -> Evaluation:
        """After every epoch, or as often as the settings say."""
        settings = self.settings.evaluation
        self.best = BestModel(settings.metric, settings.patience, self.out / "best", self._keep_best)
        return Evaluation(
            self._evaluate_and_keep if self.dev else None,
            EvaluationSettings(
                every=settings.every or self.training.steps_per_epoch, at_start=self.evaluates_at_start
            ),
            lambda: self.best.stop,
        )

    def restore(self, newest: Snapshot) -> None:
        """Also the best figure so far."""
        self.best.restore(self.out / "log.jsonl", newest.step)
        super().restore(newest)

    def finish(self, figures: Mapping[str, float]) -> FinetuneResult:
        """Export the best weights, or the last."""
        step = self.loop.step
        if self.best.best is not None and self.best.step != step:
            step = self.best.step
            self.read_weights(self.best.folder)
            figures = self._evaluate()
        return self.finish_best(figures, step)

    def describe(self, sentences: Sequence[str]) -> None:
        """Say sentences about the data, which the card repeats."""
        self.described += sentences
        for sentence in sentences:
            self.callback.say(sentence)

    def write_weights(self, folder: Path) -> None:
        """Write the present weights into a new folder: a checkpoint, or of an adapter what is trained."""
        if self.settings.adapter is None:
            write_model(self.loop, self.checkpoint, folder)
            return
        parts = self.loop.objective.named_parameters()
        trained = {name: part.detach().contiguous() for name, part in parts if part.requires_grad}
        save_file(trained, folder / TRAINED)

    def read_weights(self, folder: Path) -> None:
        """Load what `write_weights` wrote."""
        if self.settings.adapter is not None:
            self.loop.objective.load_state_dict(load_file(folder / TRAINED), strict=False)
            return
        stored = build(read_checkpoint(Source(folder, self.settings.name)))
        self.encoder.load_state_dict(stored.state_dict())

    def _evaluate(self) -> dict[str, float]:
        return {f"dev/{name}": value for name, value in self.dev_figures().items()}

    def _evaluate_and_keep(self) -> dict[str, float]:
        figures = self.dev_figures()
        if self.loop.step:  # the weights that the run begins with are never the best ones
            self.best.evaluated(figures, self.loop.step)
        return {f"dev/{name}": value for name, value in figures.items()}

    def _keep_best(self, folder: Path) -> None:
        if self.ranks.first:
            with replaced_folder(folder) as partial:
                self.write_weights(partial)


def without_dev(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures by the names that they have in a task: ``accuracy`` for ``dev/accuracy``."""
    return {name.removeprefix("dev/"): value for name, value in figures.items()}
