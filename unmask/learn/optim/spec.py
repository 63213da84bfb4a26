"""What an optimizer is, as a value that a run's file can name field by field."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from unmask.errors import InvalidRequest

Kind = Literal["adamw", "stable_adamw", "muon"]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer and its numbers. Defaults are ModernBERT's, but for decay, rate and kind.

    Raises:
        InvalidRequest: a number outside its range.
    """

    kind: Kind = "adamw"
    """``muon`` is Muon for the matrices of layers and ``rest`` for every other parameter."""
    learning_rate: float = 5e-4
    """The highest; a schedule multiplies it by a factor."""
    betas: tuple[float, float] = (0.9, 0.98)
    """How much of the old first and second moment remains at each step."""
    eps: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """The share of a decaying weight that a step takes off is ``learning_rate * factor * weight_decay``."""
    decoupled: bool = False
    """With "fully decoupled" decay that share is ``factor * weight_decay``: the learning rate has no part in
    it, only the schedule. Such a ``weight_decay`` is smaller, such as ModernBERT's 1e-5."""
    clip: float | None = 1.0
    """The longest that all gradients together may be; 0 for no limit. The training loop applies it."""
    rest: Literal["adamw", "stable_adamw"] = "adamw"
    """Under ``muon``: what moves embeddings, norms, biases and output layers, with the fields above."""
    muon_learning_rate: float | None = None
    """None for ``learning_rate``: updates are scaled to the size of AdamW's, so rates carry over."""
    muon_weight_decay: float | None = None
    """None for ``weight_decay``."""
    muon_momentum: float = 0.95
    muon_nesterov: bool = True
    muon_iterations: int = 5
    """Newton-Schulz iterations."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        if self.clip == 0:  # TOML has no None
            object.__setattr__(self, "clip", None)
        if self.kind not in get_args(Kind):
            raise InvalidRequest(f"kind must be one of {', '.join(get_args(Kind))}, not {self.kind!r}")
        if self.rest not in ("adamw", "stable_adamw"):
            raise InvalidRequest(f"rest must be adamw or stable_adamw, not {self.rest!r}")
        if len(self.betas) != 2:
            raise InvalidRequest(f"betas must be two numbers, not {len(self.betas)}")
        for name in ("learning_rate", "eps", "muon_learning_rate"):
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

    @staticmethod
    def _check(name: str, value: float | None, low: float, high: float, *, open_below: bool = False) -> None:
        if value is None:
            return
        inside = (low < value if open_below else low <= value) and value < high
        if not inside:
            above = "above" if open_below else "at least"
            below = "finite" if high == math.inf else f"below {high:g}"
            raise InvalidRequest(f"{name} must be {above} {low:g} and {below}, not {value:g}")
