"""Learning rate schedules, as functions of the step."""

import math
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

from unmask.errors import InvalidRequest

Kind = Literal["constant", "linear", "cosine", "inverse_sqrt", "wsd"]
Shape = Literal["linear", "cosine", "one_minus_sqrt"]

WARMUP_SHARE = 0.02
DECAY_SHARE = 0.4


@dataclass(frozen=True)
class ScheduleSpec:
    """A warm-up and the schedule after it.

    Raises:
        InvalidRequest: a number is out of range, both steps and a share are given, or the kind has no decay.
    """

    kind: Kind = "wsd"
    """After the warm-up: ``constant``; ``linear`` or ``cosine`` decay until the end of the run;
    ``inverse_sqrt`` (Vaswani et al. 2017); or ``wsd``, constant followed by a decay (warm-up, stable,
    decay)."""
    warmup_steps: int | None = None
    """Steps over which the multiplier rises linearly to 1, reached in the last of them; 0 for no warm-up."""
    warmup_share: float | None = None
    """The warm-up as a share of the run, instead of steps; 0.02 if neither is given."""
    decay_steps: int | None = None
    """For ``wsd``: steps at the end of the run over which the multiplier decays."""
    decay_share: float | None = None
    """The decay as a share of the run, instead of steps; 0.4 if neither is given."""
    decay_shape: Shape = "linear"
    """Shape of the decay for ``wsd``; ``one_minus_sqrt`` is ``1 - sqrt(progress)`` (Haegele et al. 2024)."""
    floor: float = 0.0
    """The multiplier at the end of the run."""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("kind", self.kind, get_args(Kind)),
            ("decay_shape", self.decay_shape, get_args(Shape)),
        ):
            if value not in allowed:
                raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        for part in ("warmup", "decay"):
            steps, share = getattr(self, f"{part}_steps"), getattr(self, f"{part}_share")
            if steps is not None and share is not None:
                raise InvalidRequest(f"{part}_steps is {steps} and {part}_share {share}; give one of the two")
            if steps is not None and steps < 0:
                raise InvalidRequest(f"{part}_steps must be at least 0, not {steps}")
            if share is not None and not 0 <= share <= 1:
                raise InvalidRequest(f"{part}_share must be from 0 to 1, not {share}")
        if not 0 <= self.floor <= 1:
            raise InvalidRequest(f"floor must be between 0 and 1, not {self.floor}")
        if self.kind != "wsd" and not (self.decay_steps is None and self.decay_share is None):
            raise InvalidRequest(
                f"kind {self.kind} has no decay_steps or decay_share; leave them out, or use kind wsd"
            )

    def lengths(self, steps: float) -> tuple[float, float]:
        """The steps of warm-up and of decay in a run of ``steps``; not necessarily whole numbers.

        Raises:
            InvalidRequest: together they exceed the run.
        """
        warmup = _length(self.warmup_steps, self.warmup_share, WARMUP_SHARE, steps)
        decay = _length(self.decay_steps, self.decay_share, DECAY_SHARE, steps) if self.kind == "wsd" else 0.0
        if warmup + decay > steps * (1 + 1e-9):
            raise InvalidRequest(
                f"warm-up and decay take {warmup + decay:g} steps of a run of {steps:g}; shorten them"
            )
        return warmup, decay


def _length(length: float | None, share: float | None, otherwise: float, steps: float) -> float:
    if length is not None:
        return length
    return (otherwise if share is None else share) * steps


def lr_multiplier(spec: ScheduleSpec, step: float, steps: float) -> float:
    """The multiplier of the learning rate at a step.

    Args:
        spec: the schedule.
        step: steps taken before this one, from 0 to ``steps``.
        steps: the length of the run.

    Returns:
        ``(step + 1) / warm-up`` during the warm-up. A decay starts at 1 in the first step after the warm-up
        or, for ``wsd``, in the first of the last ``decay`` steps. It would reach ``floor`` at the step
        ``steps``, which is after the end of the run, so no step has a multiplier of 0.

    Raises:
        InvalidRequest: the step is not in the run, or warm-up and decay exceed the run.
    """
    if not 0 <= step <= steps:
        raise InvalidRequest(f"step {step} is not between 0 and the {steps} steps of the run")
    warmup, decay = spec.lengths(steps)
    if step + 1 <= warmup:
        return (step + 1) / warmup
    match spec.kind:
        case "constant":
            return 1.0
        case "inverse_sqrt":
            return max(spec.floor, math.sqrt(max(warmup, 1.0) / (step + 1)))
        case "linear" | "cosine":
            return _fall(spec.kind, (step - warmup) / max(steps - warmup, 1.0), spec.floor)
        case "wsd":
            progress = (step - (steps - decay)) / decay if decay else 0.0
            return _fall(spec.decay_shape, progress, spec.floor)
        case _:
            assert_never(spec.kind)


def _fall(shape: Shape, progress: float, floor: float) -> float:
    """Falls from 1 at progress 0 or below to ``floor`` at progress 1."""
    progress = min(max(progress, 0.0), 1.0)
    match shape:
        case "linear":
            remaining = 1 - progress
        case "cosine":
            remaining = (1 + math.cos(math.pi * progress)) / 2
        case "one_minus_sqrt":
            remaining = 1 - math.sqrt(progress)
        case _:
            assert_never(shape)
    return floor + (1 - floor) * remaining
