"""Settings of the training loop, independent of the model and the data."""

import bisect
from dataclasses import dataclass, field
from typing import Literal, Protocol

from unmask.errors import InvalidRequest
from unmask.training.optim import OptimizerSpec, ScheduleSpec

Precision = Literal["float32", "autocast", "bfloat16"]


class StepBatch(Protocol):
    """How a step is divided into micro-batches."""

    def micro_batches(self, step: int, steps: int) -> int:
        """Micro-batches in the global batch of this step, counted from 0."""

    @property
    def micro_size(self) -> str:
        """The size of a micro-batch, as errors name it."""

    @property
    def smaller(self) -> str:
        """How to make micro-batches smaller, as errors say it."""


@dataclass(frozen=True)
class BatchSettings:
    """How many tokens a step processes."""

    tokens: int
    """Per global batch: all micro-batches of all ranks."""
    micro_tokens: int
    """Per micro-batch; memory grows with it."""
    start_tokens: int | None = None
    """Batch size of the first step, if it ramps up; None starts with ``tokens``."""
    ramp_share: float = 0.0
    """Share of the run's steps over which it ramps up."""

    def __post_init__(self) -> None:
        if not 1 <= self.micro_tokens <= self.tokens:
            raise InvalidRequest(
                f"micro_tokens is {self.micro_tokens}; it must be from 1 to tokens, which is {self.tokens}"
            )
        if self.start_tokens is not None and not self.micro_tokens <= self.start_tokens <= self.tokens:
            raise InvalidRequest(
                f"start_tokens is {self.start_tokens}; it must lie between micro_tokens and tokens"
            )
        if not 0 <= self.ramp_share <= 1:
            raise InvalidRequest(f"ramp_share is {self.ramp_share}; it must lie between 0 and 1")

    @property
    def micro_size(self) -> str:
        """See `StepBatch`."""
        return f"{self.micro_tokens:,} tokens"

    @property
    def smaller(self) -> str:
        """See `StepBatch`."""
        return f"lower batch.micro_tokens, which is {self.micro_tokens}"

    def micro_batches(self, step: int, steps: int) -> int:
        """Micro-batches in the global batch of this step, counted from 0."""
        tokens = self.tokens
        ramp = self.ramp_share * steps
        if self.start_tokens is not None and step < ramp:
            tokens = int(self.start_tokens + (self.tokens - self.start_tokens) * step / ramp)
        return max(1, round(tokens / self.micro_tokens))

    def phases(self, steps: int) -> list[tuple[int, int]]:
        """Micro-batches per step and the number of consecutive steps, in the order of the run.

        The batch never shrinks, so changes are found by bisection, which is fast for runs of any length.
        """
        phases: list[tuple[int, int]] = []
        step = 0
        while step < steps:
            count = self.micro_batches(step, steps)
            after = bisect.bisect_right(
                range(steps), count, lo=step, key=lambda later: self.micro_batches(later, steps)
            )
            phases.append((count, after - step))
            step = after
        return phases


@dataclass(frozen=True)
class TextBatchSettings:
    """A fixed number of texts per step, as in fine-tuning."""

    texts: int
    count: int = 1
    """Micro-batches per step."""

    @property
    def micro_size(self) -> str:
        """See `StepBatch`."""
        return f"{-(-self.texts // self.count)} texts"

    @property
    def smaller(self) -> str:
        """See `StepBatch`."""
        return f"raise micro_batches, which is {self.count}, or lower data.max_tokens"

    def micro_batches(self, step: int, steps: int) -> int:
        """The same in every step."""
        return self.count


@dataclass(frozen=True)
class AveragingSettings:
    """An exponential moving average of the weights, which is what is exported."""

    decay: float = 0.999
    """How much of the old average remains at each step."""
    warm_up: bool = True
    """Correct for the initial weights, as Adam corrects its moments for their zeros; see
    `unmask.training.optim.Ema`."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise InvalidRequest(f"decay is {self.decay}; it must be at least 0 and below 1")


@dataclass(frozen=True)
class FaultSettings:
    """What to do about failed steps."""

    skip_non_finite: int = 0
    """Steps of the run that may be skipped because their loss or gradient is not finite: weights, moments and
    averages stay as they are, and the next step has the next text. One more such step ends the run."""

    def __post_init__(self) -> None:
        at_least("skip_non_finite", self.skip_non_finite, 0)


@dataclass(frozen=True)
class LoopSettings:
    """Everything that determines what a step computes, except the model and the items."""

    steps: int
    """Total optimizer steps."""
    batch: StepBatch
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    """Only its ``clip`` is used; the optimizer itself is created before the loop."""
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    precision: Precision = "float32"
    seed: int = 0
    """Determines masks and dropout."""
    averaged_evaluation: bool = True
    """Evaluate with the averaged weights, if the run keeps them."""
    faults: FaultSettings = field(default_factory=FaultSettings)


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise if a value is below ``least`` or NaN; None is accepted."""
    if value is not None and not value >= least:
        raise InvalidRequest(f"{name} is {value}; it must be at least {least}")
