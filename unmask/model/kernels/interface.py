"""What a kernel is: a capability record, a plan made once a batch, and one function on packed tokens."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unmask.model.kernels.tile import ScoreTerms
from unmask.model.spec import Reach
from unmask.model.spec.attention import AttentionPosition
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class Need:
    """What one attention layer asks of a kernel."""

    device: str
    dtype: str
    reach: Reach
    position: AttentionPosition
    """What is added to scores; rotary positions count as none, for they act before the kernel."""
    gradients: bool = False
    dropout: bool = False
    log_sum_exp: bool = False


@dataclass(frozen=True)
class Capability:
    """What one kernel can do, as data: printed by ``unmask kernels``, read by `choose`."""

    name: str
    computes: str
    """How, in a few words for people."""
    devices: frozenset[str]
    dtypes: frozenset[str]
    reaches: frozenset[type]
    positions: frozenset[type]
    gradients: bool
    dropout: bool
    log_sum_exp: bool

    def refusal(self, need: Need) -> str | None:
        """The one reason why this kernel cannot do it; None if it can."""
        if need.device not in self.devices:
            return f"runs on {' and '.join(sorted(self.devices))}, not on {need.device}"
        if need.dtype not in self.dtypes:
            return f"takes {', '.join(sorted(self.dtypes))}, not {need.dtype}"
        if type(need.reach) not in self.reaches:
            return f"has no {type(need.reach).__name__} reach"
        if type(need.position) not in self.positions:
            return f"has no {type(need.position).__name__} term in its scores"
        for feature in ("gradients", "dropout", "log_sum_exp"):
            if getattr(need, feature) and not getattr(self, feature):
                return f"gives no {feature.replace('_', '-')}"
        return None


class Attended(NamedTuple):
    """The result of attention."""

    o_THK: Tensor
    """Values mixed for each query and head, in the dtype of the queries."""
    lse_TH: Tensor | None
    """Log of the sum of exponentiated scores, where it was asked for."""


class Kernel(Protocol):
    """Softmax attention within each sequence of a packed batch.

    Every kernel computes what `unmask.model.kernels.tile` defines; `reference` is its proof. A kernel
    gives back the dtype it was given, and never drops a mask or looks into another sequence. Where it
    computes in a wider dtype it says so; what it cannot do its record says.
    """

    capability: Capability

    def plan(self, layout: SequenceLayout, reach: Reach, device: torch.device) -> Any:
        """Whatever depends only on the layout; made once a batch and handed to every layer."""

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: Any,
        *,
        reach: Reach,
        terms: ScoreTerms,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> Attended:
        """Mix the values of each query's keys in ``reach``, scores being content plus ``terms``.

        ``dropout`` is the share of probabilities dropped, already 0 in inference.
        """
