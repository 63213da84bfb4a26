"""What a kernel is: a capability record, a plan made once a batch, and one function on packed tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unmask.model.kernels.tile import AttentionBias
from unmask.model.spec import AttentionPattern, SlidingWindow
from unmask.model.spec.attention import AttentionPosition
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class AttentionRequest:
    """What one attention layer asks of a kernel."""

    device: str
    dtype: str
    pattern: AttentionPattern
    position: AttentionPosition
    """What is added to scores; rotary positions count as none, for they act before the kernel."""
    head_width: int
    longest: int
    """Tokens of the longest sequence."""
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
    patterns: frozenset[type]
    positions: frozenset[type]
    gradients: bool
    dropout: bool
    log_sum_exp: bool
    """Whether it gives the log-sum-exp; where it gives gradients too, that has one."""
    head_widths: frozenset[int] | None = None
    """Widths of a head it takes; None for any."""
    preferred_lengths: tuple[int, int | None] = (1, None)
    """From and up to which longest sequence it is worth its place in the order, by measurement. Beyond
    that it can, and does where no other can or where it is named."""
    preferred_lengths_by: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """The same for what measured otherwise: a device; where gradients are asked for, ``gradients bfloat16``
    (or another dtype) or ``gradients``; or a dtype. The first of them that is here, in this order."""
    module: str | None = None
    """A module that must be importable, such as triton."""
    dilation: bool = True
    """Whether windows, where it has them, may have gaps."""

    def unavailable(self) -> str | None:
        """Why it cannot run in this installation, whatever is asked; None if it can."""
        if self.module is not None and not _importable(self.module):
            return f"needs {self.module}, which is not installed"
        return None

    def is_preferred(self, request: AttentionRequest) -> bool:
        """Whether the longest sequence is within the lengths it was measured to be good at."""
        trained = (f"gradients {request.dtype}", "gradients") if request.gradients else ()
        asked = (request.device, *trained, request.dtype)
        first, last = next(
            (self.preferred_lengths_by[one] for one in asked if one in self.preferred_lengths_by),
            self.preferred_lengths,
        )
        return first <= request.longest and (last is None or request.longest <= last)

    def refusal(self, request: AttentionRequest) -> str | None:
        """The one reason why this kernel cannot do it; None if it can."""
        return next(self._refusals(request), None)

    def _refusals(self, request: AttentionRequest) -> Iterator[str]:
        missing = self.unavailable()
        if missing is not None:
            yield missing
        if request.device not in self.devices:
            yield f"runs on {' and '.join(sorted(self.devices))}, not on {request.device}"
        if request.dtype not in self.dtypes:
            yield f"takes {', '.join(sorted(self.dtypes))}, not {request.dtype}"
        if type(request.pattern) not in self.patterns:
            yield f"has no {type(request.pattern).__name__} attention"
        elif (
            isinstance(request.pattern, SlidingWindow) and request.pattern.dilation > 1 and not self.dilation
        ):
            yield "has no windows with gaps"
        if type(request.position) not in self.positions:
            yield f"has no {type(request.position).__name__} term in its scores"
        if self.head_widths is not None and request.head_width not in self.head_widths:
            widths = ", ".join(map(str, sorted(self.head_widths)))
            yield f"takes heads of width {widths}, not {request.head_width}"
        for feature in ("gradients", "dropout", "log_sum_exp"):
            if getattr(request, feature) and not getattr(self, feature):
                yield f"gives no {feature.replace('_', '-')}"


class AttentionOutput(NamedTuple):
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

    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Any:
        """Whatever depends only on the layout; made once a batch and handed to every layer."""

    def attend(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THK: Tensor,
        plan: Any,
        *,
        pattern: AttentionPattern,
        bias: AttentionBias,
        dropout: float = 0.0,
        log_sum_exp: bool = False,
    ) -> AttentionOutput:
        """Mix the values of each query's keys in ``reach``, scores being content plus ``terms``.

        ``dropout`` is the share of probabilities dropped, already 0 in inference. Rows of global tokens
        whose projections are their own are the layer's to make: a kernel may leave any numbers there.
        """


@cache
def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is a part of is not there either
        return False
