"""The settings of an optimizer and of a learning-rate schedule, and schedules as functions of the step."""

import math
from typing import Literal, assert_never

from unmask.errors import InvalidRequest
from unmask.training.table import settings

OptimizerKind = Literal["adamw", "stable_adamw", "lamb", "muon"]
LayerDecayKind = Literal["electra", "plain"]


@settings
class OptimizerSpec:
    """An optimizer and its settings. Defaults are those of ModernBERT, except decay, rate and kind.

    Raises:
        InvalidRequest: a number is out of range.
    """

    kind: OptimizerKind = "adamw"
    """``lamb`` gives each decaying tensor a step in proportion to its norm, for very large batches, and the
    others AdamW's. ``muon`` uses Muon for the matrices of layers and ``rest`` for all other parameters."""
    learning_rate: float = 5e-4
    """Maximum learning rate, which the schedule multiplies."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the first and second moment."""
    eps: float = 1e-6
    """Added to the square root of the second moment."""
    weight_decay: float = 0.01
    """Each step subtracts the fraction ``learning_rate * multiplier * weight_decay`` of a decaying weight."""
    decoupled: bool = False
    """With fully decoupled decay, each step subtracts the fraction ``multiplier * weight_decay`` instead,
    which depends on the schedule but not on the learning rate. It needs a smaller ``weight_decay``, such as
    ModernBERT's 1e-5."""
    clip: float | None = 1.0
    """Maximum norm of all gradients, applied by the training loop; 0 for no clipping."""
    layer_decay: float | None = None
    """Layer-wise decay of learning rates: the factor from one layer to the one below it, such as 0.8; None
    for the same rate everywhere. Weights that several layers share have the rate of the highest of them."""
    layer_decay_kind: LayerDecayKind = "electra"
    """The k-th layer from the top has ``learning_rate`` times ``layer_decay`` to the power of k (``plain``,
    as in the code of BEiT and MAE) or of k + 1 (``electra``, as in ELECTRA's code, where the top layer has
    the square). Embeddings count as one layer below the lowest, and the head, a pooler and a final norm have
    the full rate."""
    head_learning_rate: float | None = None
    """Maximum learning rate of the heads, and of what a task adds to the encoder; None for ``learning_rate``.
    A new head on an encoder with small states, such as a sentence encoder, needs a higher one."""
    rest: Literal["adamw", "stable_adamw"] = "adamw"
    """With ``muon``: the optimizer of embeddings, norms, biases and output layers, with the fields above."""
    muon_learning_rate: float | None = None
    """None for ``learning_rate``: updates have the scale of AdamW's, so the same rates work."""
    muon_weight_decay: float | None = None
    """None for ``weight_decay``."""
    muon_momentum: float = 0.95
    muon_nesterov: bool = True
    muon_iterations: int = 5
    """Newton-Schulz iterations."""

    def __post_init__(self) -> None:
        if self.clip == 0:  # TOML has no None
            object.__setattr__(self, "clip", None)
        if self.decoupled and self.kind == "lamb":
            raise InvalidRequest(
                "decoupled is true and kind lamb, whose decay is part of what it scales; leave decoupled out"
            )
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise InvalidRequest(f"layer_decay must be above 0 and at most 1, not {self.layer_decay:g}")
        for name in ("learning_rate", "head_learning_rate", "eps", "muon_learning_rate"):
            self._check(name, getattr(self, name), 0.0, math.inf, open_below=True)
        for name in ("weight_decay", "clip", "muon_weight_decay"):
            self._check(name, getattr(self, name), 0.0, math.inf)
        for name, value in (
            ("the first of betas", self.betas[0]),
            ("the second of betas", self.betas[1]),
            ("muon_momentum", self.muon_momentum),
        ):
            self._check(name, value, 0.0, 1.0)
        if self.muon_iterations < 1:
            raise InvalidRequest(f"muon_iterations must be at least 1, not {self.muon_iterations}")

    def rate_factor(self, below: int) -> float:
        """The factor of the learning rate of parameters at a level; see `Placed.below`."""
        if self.layer_decay is None or below == 0:
            return 1.0
        return self.layer_decay ** (below + (self.layer_decay_kind == "electra"))

    @staticmethod
    def _check(name: str, value: float | None, low: float, high: float, *, open_below: bool = False) -> None:
        if value is None:
            return
        inside = (low < value if open_below else low <= value) and value < high
        if not inside:
            above = "above" if open_below else "at least"
            below = "finite" if high == math.inf else f"below {high:g}"
            raise InvalidRequest(f"{name} must be {above} {low:g} and {below}, not {value:g}")


ScheduleKind = Literal["constant", "linear", "cosine", "inverse_sqrt", "wsd"]
Shape = Literal["linear", "cosine", "one_minus_sqrt"]

WARMUP_SHARE = 0.02
DECAY_SHARE = 0.4


@settings
class ScheduleSpec:
    """A warm-up and the schedule after it.

    Raises:
        InvalidRequest: a number is out of range, both steps and a share are given, or the kind has no decay.
    """

    kind: ScheduleKind = "wsd"
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
    power: float = 1.0
    """For ``linear``: the exponent of what remains of the decay, such as 3 for Longformer; above 1 the rate
    falls fast at first and slowly at the end."""

    def __post_init__(self) -> None:
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
        if not 0 < self.power < math.inf:
            raise InvalidRequest(f"power must be above 0 and finite, not {self.power:g}")
        if self.kind != "linear" and self.power != 1:
            raise InvalidRequest(f"kind {self.kind} has no power; leave it out, or use kind linear")
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
            return _fall(spec.kind, (step - warmup) / max(steps - warmup, 1.0), spec.floor, spec.power)
        case "wsd":
            progress = (step - (steps - decay)) / decay if decay else 0.0
            return _fall(spec.decay_shape, progress, spec.floor)
        case _:
            assert_never(spec.kind)


def _fall(shape: Shape, progress: float, floor: float, power: float = 1.0) -> float:
    """Falls from 1 at progress 0 or below to ``floor`` at progress 1; ``power`` is that of ``linear``."""
    progress = min(max(progress, 0.0), 1.0)
    match shape:
        case "linear":
            remaining = math.pow(1 - progress, power)
        case "cosine":
            remaining = (1 + math.cos(math.pi * progress)) / 2
        case "one_minus_sqrt":
            remaining = 1 - math.sqrt(progress)
        case _:
            assert_never(shape)
    return floor + (1 - floor) * remaining
