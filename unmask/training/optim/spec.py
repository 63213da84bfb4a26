"""The settings of an optimizer, as in a run file."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from unmask.errors import InvalidRequest

Kind = Literal["adamw", "stable_adamw", "muon"]
LayerDecayKind = Literal["electra", "plain"]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer and its settings. Defaults are those of ModernBERT, except decay, rate and kind.

    Raises:
        InvalidRequest: a number is out of range.
    """

    kind: Kind = "adamw"
    """``muon`` uses Muon for the matrices of layers and ``rest`` for all other parameters."""
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
        object.__setattr__(self, "betas", tuple(self.betas))
        if self.clip == 0:  # TOML has no None
            object.__setattr__(self, "clip", None)
        if self.kind not in get_args(Kind):
            raise InvalidRequest(f"kind must be one of {', '.join(get_args(Kind))}, not {self.kind!r}")
        if self.layer_decay_kind not in get_args(LayerDecayKind):
            raise InvalidRequest(f"layer_decay_kind must be electra or plain, not {self.layer_decay_kind!r}")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise InvalidRequest(f"layer_decay must be above 0 and at most 1, not {self.layer_decay:g}")
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
