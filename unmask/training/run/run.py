"""What every run has, whatever it trains: a locked folder, its newest checkpoint, its parts, its export."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import bfloat16, nn

from unmask.base.files import unwritable
from unmask.base.system import locked
from unmask.encoder.trained_linear import train_with_onednn
from unmask.engines.native.training import train_natively
from unmask.training.data.stream import Batches
from unmask.training.objectives.interface import Objective
from unmask.training.optim import Ema, OptimizerSpec, build_optimizer
from unmask.training.run.callbacks import Callback
from unmask.training.run.checkpoint import Snapshot, newest_for_all
from unmask.training.run.distributed import is_sharded
from unmask.training.run.export import (
    ExportSettings,
    card_of,
    check_encoders,
    check_place,
    export,
    write_model,
)
from unmask.training.run.loop import Loop
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import (
    CheckpointSettings,
    EvaluationSettings,
    LogSettings,
    LoopSettings,
    Precision,
)
from unmask.training.run.state import FREE, refuse_changes
from unmask.training.run.trainer import Trainer
from unmask.weights import Checkpoint


class AnySettings(ExportSettings, Protocol):
    """What the settings of every kind of run say."""

    @property
    def precision(self) -> Precision:
        """Of weights and products."""

    @property
    def optimizer(self) -> OptimizerSpec:
        """The optimizer."""

    @property
    def checkpoints(self) -> CheckpointSettings:
        """When checkpoints are written."""

    @property
    def log(self) -> LogSettings:
        """How often the run is logged."""


Settings = TypeVar("Settings", bound=AnySettings)
"""The settings of a run, a dataclass."""

Result = TypeVar("Result")
"""What a finished run gives."""


@dataclass(frozen=True)
class Evaluation:
    """What a run measures on held-out items."""

    figures: Callable[[], Mapping[str, float]] | None
    """Figures of the present weights by ``term/figure``; None evaluates nothing."""
    when: EvaluationSettings
    finished: Callable[[], bool] = lambda: False
    """Whether they end the run before its last step; the same answer in every process."""


class Run(ABC, Generic[Settings, Result]):
    """A run with its parts, at its newest intact checkpoint.

    A kind of run says what its parts are; the order in which they are made is the same for all. What takes
    longest is last, so that a mistake in the settings is found before.

    Args:
        settings: settings of the run.
        base: the folder that paths in the settings are relative to.
        out: the run's folder.
        ranks: the processes of the run.
        callback: receives progress.

    Raises:
        InvalidRequest: the run was begun with other settings or inputs, or a setting is impossible.
        OutputError: the place of its model holds something else.
        CorruptCheckpoint: no checkpoint of the run is intact.
    """

    free: ClassVar[frozenset[str]] = FREE
    """Settings that may differ when the run is resumed."""

    checkpoint: Checkpoint
    """What is saved in the end; set by `build`."""

    def __init__(self, settings: Settings, base: Path, out: Path, ranks: Ranks, callback: Callback) -> None:
        self.settings = settings
        self.base, self.out, self.ranks, self.callback = base, out, ranks, callback
        newest = self._newest_checkpoint()
        objective = self.build(resumed=newest is not None)
        self.prepare(objective)
        optimizer = build_optimizer(objective, settings.optimizer, self.learning_rates(objective))
        averages = self.averages(objective)
        batches = self.batches(objective)
        self.loop = Loop(
            self.loop_settings(),
            objective,
            batches,
            optimizer=optimizer,
            averages=averages,
            ranks=ranks,
            # Examples are prepared ahead if the device computes in parallel with the host.
            ahead=ranks.device.type != "cpu",
        )
        self.loop.inputs = self.inputs()
        evaluation = self.evaluation()
        self.trainer = Trainer(
            self.loop,
            evaluation.figures,
            settings=settings,
            evaluation=evaluation.when,
            checkpoints=settings.checkpoints,
            log=settings.log,
            out=out,
            # Not a method of the run: a reference cycle would keep text files open.
            write=partial(write_model, self.loop, self.checkpoint),
            callback=callback,
            finished=evaluation.finished,
        )
        for sentence in self.plan():
            callback.say(sentence)
        if newest is None:
            self.begin()
        else:
            self.restore(newest)
        self.optimize_steps()

    @abstractmethod
    def build(self, *, resumed: bool) -> Objective[Any, Any]:
        """Make ``checkpoint`` and the objective, and whatever else has to be known before training.

        ``resumed``: the weights are those of a checkpoint of the run, so none of another are read.
        """

    @abstractmethod
    def batches(self, objective: Objective[Any, Any]) -> Batches[Any]:
        """The micro-batches of the run, at its beginning."""

    @abstractmethod
    def loop_settings(self) -> LoopSettings:
        """The settings that determine a step; `batches` was called before."""

    @abstractmethod
    def evaluation(self) -> Evaluation:
        """What is measured, and when."""

    @abstractmethod
    def inputs(self) -> Mapping[str, str]:
        """A digest of each input by its name in errors, see `Loop.inputs`."""

    @abstractmethod
    def plan(self) -> Iterable[str]:
        """Sentences about what the run is going to do."""

    @abstractmethod
    def finish(self, figures: Mapping[str, float]) -> Result:
        """Export the model after the last step, whose figures on held-out items are given."""

    def prepare(self, objective: Objective[Any, Any]) -> None:
        """Bring the objective into the run's dtype, onto its device, and into training mode."""
        check_encoders(objective, self.checkpoint)
        if self.settings.precision == "bfloat16":
            objective.to(bfloat16)
        objective.to(self.ranks.device).train()

    def learning_rates(self, objective: Objective[Any, Any]) -> Mapping[nn.Parameter, float] | None:
        """Learning rates of parameters that do not have that of the optimizer."""
        return None

    def averages(self, objective: Objective[Any, Any]) -> Ema | None:
        """Averages of the weights, if the run keeps them."""
        return None

    def begin(self) -> None:
        """Called before the first step of a run without a checkpoint."""

    def restore(self, newest: Snapshot) -> None:
        """Continue after a checkpoint of the run."""
        self.trainer.restore(newest)

    def optimize_steps(self) -> None:
        """Change how steps are computed, but not what they compute, after weights are loaded."""
        if self.ranks.device.type == "cpu":
            train_with_onednn(self.loop.objective)
            train_natively(self.loop.objective)

    def train(self) -> Result:
        """Take all remaining steps, then export."""
        return self.finish(self.trainer.train())

    def export(self, figures: Mapping[str, float], card: str | None = None) -> Path:
        """Export the model with its figures and card; its folder."""
        folder = self.out / "model"
        if self.ranks.first or is_sharded(self.loop.objective):
            export(
                self.loop,
                self.settings,
                self.checkpoint,
                folder,
                base=self.base,
                held_out=figures,
                written_card=card,
            )
        return folder

    def _newest_checkpoint(self) -> Snapshot | None:
        """The newest intact checkpoint of the run; impossible requests are refused before it is read."""
        settings = self.settings
        check_place(self.out / "model", settings.name)
        card_of(settings, self.base, None)
        newest = newest_for_all(self.out / "checkpoints", self.ranks, self.callback.say)
        if newest is not None:
            refuse_changes(settings, newest.state["settings"], self.out, self.free)
        return newest


def read_settings_and_base(
    settings: Settings | Path | str | Mapping[str, Any],
    base: Path | str | None,
    read: Callable[[Path], Settings],
    of_table: Callable[[Mapping[str, Any]], Settings],
) -> tuple[Settings, Path]:
    """Settings in one of the forms that a run can be started with, and the folder its paths start at.

    Args:
        settings: the path of a run file, its keys, or settings.
        base: a folder; None for the folder of the file, or the current one if there is no file.
        read: reads a run file.
        of_table: reads its keys.

    Raises:
        InvalidRequest: they cannot be read.
    """
    if isinstance(settings, Path | str):
        base = Path(settings).parent if base is None else base
        settings = read(Path(settings))
    elif isinstance(settings, Mapping):
        settings = of_table(settings)
    return settings, Path() if base is None else Path(base)


def locked_folder(out: Path, ranks: Ranks) -> AbstractContextManager[None]:
    """`exclusive_lock` in the first process of a run."""
    return exclusive_lock(out) if ranks.first else nullcontext()


@contextmanager
def exclusive_lock(out: Path) -> Iterator[None]:
    """Lock the run's folder for this process.

    Raises:
        OutputError: another process has locked it, or it cannot be written.
    """
    refusal = f"another process is using the run in {out}; wait for it, or stop it"
    held = ExitStack()
    try:
        out.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(out / ".lock", refusal))
    except OSError as error:
        raise unwritable(out, error) from None
    with held:
        yield
