"""Take all steps of a loop, with evaluations, checkpoints and log; signals can stop it between two steps."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from unmask.base.system import return_freed_memory
from unmask.errors import InvalidRequest, NonFiniteResult, OutOfMemory
from unmask.training.run.callbacks import Callback
from unmask.training.run.checkpoint import (
    Snapshot,
    newest_sound,
    place_of,
    placed,
    prune,
    save_sharded,
    save_snapshot,
)
from unmask.training.run.distributed import is_sharded
from unmask.training.run.log import read_events
from unmask.training.run.loop import Loop, MetricAccumulator
from unmask.training.run.report import Reporter
from unmask.training.run.settings import CheckpointSettings, EvaluationSettings, LogSettings, StepBatch
from unmask.training.run.state import capture_state, restore_state

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and has written a checkpoint; ``str(error)`` says how to resume."""


class StopRequest:
    """Whether a stop has been requested."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Context in which the first SIGINT or SIGTERM requests a stop; the second one acts as usual.

    Only the main thread can handle signals; in another thread this does nothing.
    """
    stop_request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop_request
        return

    # None is a handler that was not set from Python and cannot be restored.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        stop_request.requested = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield stop_request
    finally:
        restore()


REFUSED = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
"""Messages of torch and the libraries below it when an allocation fails."""


@contextmanager
def memory_named(batch: StepBatch, device: torch.device) -> Iterator[None]:
    """Context in which a failed allocation raises an error that names the setting to lower.

    Raises:
        OutOfMemory: the device or the machine has too little memory for a micro-batch of this size.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not out_of_memory and not any(words in str(error) for words in REFUSED):
            raise
        where = "the GPU" if device.type == "cuda" else "the machine"
        raise OutOfMemory(
            f"{where} has no memory left for a micro-batch of {batch.micro_size}; {batch.smaller}"
        ) from None


class Trainer:
    """Trains a loop to its last step, for any objective and items.

    Args:
        loop: before its first step.
        evaluate: computes figures of the present weights, by ``term/figure``; None evaluates nothing.
        settings: a dataclass of everything that determines the run, stored in checkpoints for
            `refuse_changes`.
        evaluation: when to evaluate.
        checkpoints: when to write checkpoints, and how many to keep.
        log: how often to log.
        out: the run's folder.
        write: writes the current model into a checkpoint's folder.
        callback: receives progress.
        finished: whether to end before the last step; asked after every step, with the same answer in every
            process.
    """

    def __init__(
        self,
        loop: Loop,
        evaluate: Callable[[], Mapping[str, float]] | None,
        *,
        settings: Any,
        evaluation: EvaluationSettings,
        checkpoints: CheckpointSettings,
        log: LogSettings,
        out: Path,
        write: Callable[[Path], None],
        callback: Callback,
        finished: Callable[[], bool] = lambda: False,
    ) -> None:
        self.loop = loop
        self.evaluate = evaluate
        self.finished = finished
        self.settings = settings
        self.evaluation, self.checkpointing, self.log = evaluation, checkpoints, log
        self.out = out
        self.write = write
        self.callback = callback
        self.metrics = MetricAccumulator()
        self.resumed = False

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints of the run."""
        return self.out / "checkpoints"

    def restore(self, snapshot: Snapshot) -> None:
        """Continue after the step of a checkpoint of this run."""
        self.metrics = restore_state(placed(snapshot, self.loop), self.loop)
        self.resumed = True
        steps = self.loop.settings.steps
        if snapshot.step == steps:
            self.callback.say(
                f"the run has already taken all of its {steps:,} steps; nothing is trained again"
            )
        elif self.finished():
            self.callback.say(
                f"the run ended early, after step {snapshot.step:,} of {steps:,}; nothing is trained again"
            )
        if snapshot.step == steps or self.finished():
            self.callback.say("the data and the first weights are those that it was trained on")
        else:
            self.callback.say(f"resuming after step {snapshot.step:,} of {steps:,}")

    def train(self) -> Mapping[str, float]:
        """Take all remaining steps; return the figures on held-out items after the last.

        Raises:
            InvalidRequest: the run has already taken more steps than it should have in total.
            NonFiniteResult: the loss or a gradient is not finite.
            Stopped: SIGINT or SIGTERM was received; a checkpoint of the last complete step is written.
        """
        loop, steps = self.loop, self.loop.settings.steps
        if loop.step > steps:
            raise InvalidRequest(
                f"the run has done {loop.step} steps and steps is {steps}; give at least as many"
            )
        if self.resumed and loop.step == steps and loop.ranks.first:
            self._prune()  # a kill after the last checkpoint may have prevented it
        with closing(loop), closing(self._reporter()) as reporter, catch_signals() as stop_request:
            if not self.resumed and self.evaluation.at_start:
                self._evaluate(reporter)
            last = time.monotonic()
            self.metrics.began = time.perf_counter()
            while loop.step < steps and not self.finished():
                self._step(reporter)
                with self.metrics.paused():
                    every = self.evaluation.every
                    if loop.step == steps or (every and loop.step % every == 0):
                        self._evaluate(reporter)
                    finished = loop.step == steps or self.finished()
                    # If one process is asked to stop or its clock runs out, all processes stop.
                    due = self._due(time.monotonic() - last)
                    requests = loop.ranks.sums({"stop": float(stop_request.requested), "due": float(due)})
                    if finished or requests["stop"] or requests["due"]:
                        self._save(reporter)
                        last = time.monotonic()
                if requests["stop"] and not finished:
                    raise Stopped(
                        f"stopped after step {loop.step:,} of {steps:,}; the same command resumes from there"
                    )
            reporter.complete = True
        return self._last_figures()

    def _reporter(self) -> Reporter:
        reporter = Reporter(
            self.loop,
            self.out,
            self.callback,
            settings=self.settings,
            log=self.log,
            resumed=self.resumed,
        )
        if self.resumed:
            reporter.resumed_from(place_of(self.loop.step, self.checkpoints))
        return reporter

    def _step(self, reporter: Reporter) -> None:
        """Take one step, and log it if that is due."""
        loop = self.loop
        skipped = loop.skipped
        try:
            with self._memory_named():
                norm = loop.one_step(self.metrics)
        except NonFiniteResult as error:
            raise NonFiniteResult(f"{error}; {self._way_out()}") from None
        if loop.skipped > skipped:
            reporter.skipped()
        if loop.step % self.log.every == 0 or loop.step == loop.settings.steps:
            reporter.step(self.metrics, norm)
            self.metrics = MetricAccumulator()

    def _evaluate(self, reporter: Reporter) -> None:
        if self.evaluate is not None:
            with self._memory_named():
                figures = self.evaluate()
            # What an evaluation frees lies between what steps take, which would grow the process each time.
            return_freed_memory()
            reporter.held_out(figures)

    def _memory_named(self) -> AbstractContextManager[None]:
        return memory_named(self.loop.settings.batch, self.loop.ranks.device)

    def _due(self, seconds: float) -> bool:
        """Whether to write a checkpoint after this step."""
        checkpointing, step = self.checkpointing, self.loop.step
        late = checkpointing.minutes > 0 and seconds > 60 * checkpointing.minutes
        return late or step % checkpointing.every == 0 or step in checkpointing.milestones

    def _save(self, reporter: Reporter) -> None:
        def also(folder: Path) -> None:
            self.write(folder / "model")

        ranks, sharded = self.loop.ranks, is_sharded(self.loop.objective)
        if not (ranks.first or sharded):
            return
        if ranks.first:
            # The log up to here must be on disk before the checkpoint from which a run resumes.
            reporter.log.sync()
        snapshot = capture_state(self.loop, self.metrics, self.settings)
        if sharded:
            place = save_sharded(snapshot, self.checkpoints, ranks, also)
        else:
            place = save_snapshot(snapshot, self.checkpoints, also=also)
        if not ranks.first:
            return
        reporter.checkpoint(place)
        self._prune()

    def _prune(self) -> None:
        prune(self.checkpoints, self.loop.step, self.checkpointing.keep, self.checkpointing.milestones)

    def _last_figures(self) -> Mapping[str, float]:
        """Figures on held-out items after the last step, read from the log."""
        figures: dict[str, float] = {}
        for event in read_events(self.out / "log.jsonl"):
            if event.get("event") == "held_out" and event.get("step") == self.loop.step:
                figures = {name: value for name, value in event.items() if "/" in name}
        return figures

    def _way_out(self) -> str:
        sound = newest_sound(self.checkpoints, self.loop.step)
        newest = "there is no good checkpoint yet" if sound is None else f"the newest good one is {sound}"
        return (
            f"{newest}; let the run skip such steps with faults.skip_non_finite, or start again in another "
            "folder with a lower learning rate, a longer warm-up or optimizer.clip"
        )
