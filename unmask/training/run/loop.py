"""The training loop: global batches of micro-batches, independent of which process computes which."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from unmask.encoder.layers.parts import balance_loss
from unmask.errors import NonFiniteResult
from unmask.training.data.stream import Batches
from unmask.training.objectives.interface import Example, Objective
from unmask.training.optim import Ema, Optimizer, clip_gradients, lr_multiplier
from unmask.training.run.distributed import sum_gradients
from unmask.training.run.flops import Work
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import LoopSettings, Precision

MASK_STREAM, TORCH_STREAM, EVALUATION_STREAM = 1, 2, 3
"""Seed streams, so that masks and dropout are drawn independently."""

ASIDE = ("tokens", "sequences", "flops")
"""Counts kept in addition to the terms of a loss."""

LOSS_SHARE = 0.1
"""Weight of a step's loss in the running average of losses."""

DIVERGED = 2.0
"""A run counts as diverged when its loss exceeds the lowest running average by this factor."""


@dataclass
class MetricAccumulator:
    """Sums since the last line of the log."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    """Counts of each term, and of `ASIDE`."""
    steps: int = 0
    seconds: float = 0.0
    """Time before ``began``: a resumed run has spent some in another process."""
    began: float = field(default_factory=time.perf_counter)

    def add(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> None:
        """Add one global batch."""
        for totals, new in ((self.sums, sums), (self.counts, counts)):
            for name, value in new.items():
                totals[name] = totals.get(name, 0.0) + value
        self.steps += 1

    def add_skipped(self, counts: Mapping[str, float]) -> None:
        """Add a skipped global batch: its time and tokens count, its non-finite loss does not."""
        self.add({}, {name: counts[name] for name in ASIDE})

    def means(self) -> dict[str, float]:
        """``term/figure`` divided by the count of ``term``; terms with a count of 0 are left out."""
        counts = {name: self.counts[name.split("/")[0]] for name in self.sums}
        return {name: value / counts[name] for name, value in self.sums.items() if counts[name]}

    @property
    def elapsed(self) -> float:
        """Seconds since the start, including earlier processes of the run."""
        return self.seconds + time.perf_counter() - self.began

    def state(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {"sums": self.sums, "counts": self.counts, "steps": self.steps, "seconds": self.elapsed}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose duration is not counted."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.began += time.perf_counter() - start


@dataclass(frozen=True, eq=False)
class Ready:
    """The examples of a step, prepared ahead or on demand, and the data position after them."""

    count: int
    """Micro-batches of all ranks."""
    numbers: range
    """Numbers of this rank's micro-batches, in the order of the run."""
    examples: Sequence[Example]
    flops: float
    position: dict[str, Any] | None
    """None if nothing is prepared ahead; the batches then know their position."""
    fill_ratio: float


class Loop:
    """The steps of one run, on items of any type that the objective prepares. The state consists of the
    parts' states and a few numbers.

    Args:
        settings: the settings that determine a step.
        objective: the objective, on its device.
        batches: micro-batches, at the run's position.
        optimizer: the optimizer of the objective's parameters.
        averages: averages of the objective's parameters, or None.
        ranks: the processes of the run.
        ahead: prepare the next step's examples in a thread while this step is computed. This is faster if the
        device is not the CPU; results are the same.
    """

    def __init__(
        self,
        settings: LoopSettings,
        objective: Objective[Any, Any],
        batches: Batches[Any],
        *,
        optimizer: Optimizer,
        averages: Ema | None,
        ranks: Ranks,
        ahead: bool = False,
    ) -> None:
        self.settings = settings
        self.objective = objective
        self.batches = batches
        self.optimizer = optimizer
        self.averages = averages
        self.ranks = ranks
        self.work = Work(objective)
        self.step = 0
        """Completed steps."""
        self.micro_batches = 0
        """Processed micro-batches, over all ranks."""
        self.tokens = 0
        """Processed tokens, over all ranks."""
        self.skipped = 0
        """Steps skipped because they were not finite."""
        self.loss: float | None = None
        """Loss of the global batch, averaged over about the last ten steps; None before the first."""
        self.lowest_loss: float | None = None
        """Lowest value of `loss` so far."""
        self.inputs: Mapping[str, str] = {}
        """A digest of each input that the batches do not check, by its name in errors; a resumed run knows
        its inputs again by them."""
        self._worker = ThreadPoolExecutor(1) if ahead else None
        self._next: Future[Ready] | None = None
        self._last: Ready | None = None

    @property
    def data_state(self) -> dict[str, Any]:
        """The data position after the completed steps, regardless of examples prepared ahead."""
        last = self._last.position if self._last is not None else None
        return last if last is not None else self.batches.state()

    @property
    def fill_ratio(self) -> float:
        """Tokens divided by the capacity of the micro-batches of the completed steps."""
        return self._last.fill_ratio if self._last is not None else self.batches.fill_ratio

    def one_step(self, metrics: MetricAccumulator) -> float:
        """Take a step, or skip a non-finite one if `FaultSettings` allow it.

        Returns:
            The gradient norm before clipping; not finite if the step was skipped.

        Raises:
            NonFiniteResult: the loss or the gradient is not finite; the weights are unchanged.
        """
        settings = self.settings
        ready = self._ready()
        counts = self._totals(ready)
        sums = self._gradients(ready.examples, ready.numbers, counts)
        loss = sums.pop("loss")
        self.optimizer.set_learning_rate(lr_multiplier(settings.schedule, self.step, settings.steps))
        norm = float(clip_gradients(self.objective.parameters(), settings.optimizer.clip))
        # Sums and norm are over all ranks, so all of them make the same decision.
        wrong = _not_finite({**sums, "the loss": loss}) or _not_finite({"the gradient": norm})
        if not wrong:
            self.optimizer.step()
            if self.averages is not None:
                self.averages.update()
            metrics.add(sums, counts)
            self._add_loss(loss)
        elif self.skipped < settings.faults.skip_non_finite:
            self.skipped += 1
            metrics.add_skipped(counts)
            norm = float("nan")
        else:
            raise NonFiniteResult(f"{wrong} of step {self.step + 1} is not finite")
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.micro_batches += ready.count
        self.tokens += int(counts["tokens"])
        return norm

    @property
    def diverged(self) -> bool:
        """Whether the loss is far above its lowest value."""
        if self.loss is None or self.lowest_loss is None:
            return False
        return self.loss > DIVERGED * self.lowest_loss

    def _add_loss(self, loss: float) -> None:
        self.loss = loss if self.loss is None else self.loss + LOSS_SHARE * (loss - self.loss)
        self.lowest_loss = self.loss if self.lowest_loss is None else min(self.loss, self.lowest_loss)

    def close(self) -> None:
        """Stop the thread that prepares examples ahead."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)

    def _ready(self) -> Ready:
        """The examples of this step; preparation of the next step's examples is started."""
        ready = self._make(self.step, self.micro_batches) if self._next is None else self._next.result()
        self._last, self._next = ready, None
        if self._worker is not None and self.step + 1 < self.settings.steps:
            self._next = self._worker.submit(self._make, self.step + 1, self.micro_batches + ready.count)
        return ready

    def _make(self, step: int, first: int) -> Ready:
        """Prepare this rank's examples of a step whose first micro-batch has the number ``first``."""
        settings, rank, world = self.settings, self.ranks.rank, self.ranks.world
        count = settings.batch.micro_batches(step, settings.steps)
        micro_batches = self.batches.next(count, rank=rank, world=world)
        numbers = range(first + rank, first + count, world)
        examples = [
            self.objective.prepare(
                items, generator(settings.seed, MASK_STREAM, number), step / settings.steps
            )
            for items, number in zip(micro_batches, numbers, strict=True)
        ]
        flops = self.objective.passes * sum(
            self.work.of(example.batch.layout.lengths, example.predicted) for example in examples
        )
        position = self.batches.state() if self._worker is not None else None
        return Ready(count, numbers, examples, flops, position, self.batches.fill_ratio)

    def _totals(self, ready: Ready) -> dict[str, float]:
        """Counts of the whole global batch."""
        counts: dict[str, float] = {"tokens": 0.0, "sequences": 0.0, "flops": ready.flops}
        for example in ready.examples:
            counts["tokens"] += example.tokens
            counts["sequences"] += example.sequences
            for term, count in example.counts.items():
                counts[term] = counts.get(term, 0.0) + count
        return self.ranks.sums(counts)

    def _gradients(
        self, examples: Sequence[Example], numbers: Sequence[int], counts: Mapping[str, float]
    ) -> dict[str, float]:
        """Accumulate this rank's gradients; return the sums of figures and of ``loss`` over all ranks."""
        totals = {term: int(count) for term, count in counts.items() if term not in ASIDE}
        figures: dict[str, Any] = {}
        for example, number in zip(examples, numbers, strict=True):
            # Dropout depends only on the micro-batch: neither resuming nor the number of ranks changes it.
            torch.manual_seed(torch_seed(self.settings.seed, number))
            with precision_context(self.settings.precision, self.ranks.device):
                outcome = self.objective(example, totals)
            balance = balance_loss(self.objective)
            share = example.tokens / counts["tokens"]
            (outcome.loss if balance is None else outcome.loss + share * balance).backward()
            for name, value in {**outcome.sums, "loss": outcome.loss.detach()}.items():
                figures[name] = figures.get(name, 0) + value
        sum_gradients(self.objective.parameters(), self.ranks)
        return self.ranks.sums({name: float(value) for name, value in figures.items()})

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Figures on held-out items, whose masks are the same every time, over all ranks, which share the
        work.

        Torch's generator and every module's mode are restored afterwards.
        """
        metrics, ranks = MetricAccumulator(), self.ranks
        averaged = self.settings.averaged_evaluation and self.averages is not None
        cuda = [self.ranks.device] if self.ranks.device.type == "cuda" else []
        with (
            evaluating(self.objective),
            torch.random.fork_rng(devices=cuda),
            self.averages.swap() if averaged and self.averages else nullcontext(),
        ):
            # All ranks compute the same number, as sharded weights require; surplus ones are not counted.
            for number in range(ranks.rank, -(-len(micro_batches) // ranks.world) * ranks.world, ranks.world):
                counts = number < len(micro_batches)
                items = micro_batches[number if counts else -1]
                draw = generator(self.settings.seed, EVALUATION_STREAM, number)
                example = self.objective.prepare(items, draw, 1.0)
                torch.manual_seed(torch_seed(self.settings.seed, number))
                with precision_context(self.settings.precision, self.ranks.device):
                    outcome = self.objective(example, example.counts)
                metrics.add(
                    {name: counts * float(value) for name, value in outcome.sums.items()},
                    {term: counts * count for term, count in example.counts.items()},
                )
        metrics.sums, metrics.counts = ranks.sums(metrics.sums), ranks.sums(metrics.counts)
        return metrics.means()


def _not_finite(values: Mapping[str, float]) -> str:
    """The name of the first value that is not finite; empty if all are finite."""
    return next((name for name, value in values.items() if not np.isfinite(value)), "")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each part's mode is restored, because a teacher is never in training
    mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def generator(seed: int, stream: int, number: int) -> np.random.Generator:
    """A generator that depends only on the run's seed, the stream and a number."""
    return np.random.Generator(np.random.PCG64DXSM([seed, stream, number]))


def torch_seed(seed: int, number: int) -> int:
    """The seed of torch's generator for a micro-batch."""
    return int(np.random.SeedSequence([seed, TORCH_STREAM, number]).generate_state(1, np.uint64)[0] >> 1)


def precision_context(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """The context of the forward pass."""
    if precision == "autocast":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
