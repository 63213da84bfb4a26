"""The kernel interface: a capability record, a plan made once per batch, a function on packed tokens."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmask.kernels.tile import AttentionBias
from unmask.spec import AttentionPattern, SlidingWindow
from unmask.spec.attention import AttentionPosition
from unmask.text.batch import SequenceLayout


@dataclass(frozen=True)
class AttentionRequest:
    """The requirements of one attention layer."""

    device: str
    dtype: str
    pattern: AttentionPattern
    position: AttentionPosition
    """The position term of the scores; rotary positions count as none, since they act before the kernel."""
    head_width: int
    longest: int
    """Tokens of the longest sequence."""
    gradients: bool = False
    dropout: bool = False
    log_sum_exp: bool = False
    unattended: bool = False
    """Whether some tokens are attended to by no token, see `SequenceLayout.unattended_T`."""


@dataclass(frozen=True)
class Capability:
    """The capabilities of one kernel, as data: printed by ``unmask kernels``, read by `choose`."""

    name: str
    computes: str
    """A short description of the method."""
    devices: frozenset[str]
    dtypes: frozenset[str]
    patterns: frozenset[type]
    positions: frozenset[type]
    gradients: bool
    dropout: bool
    log_sum_exp: bool
    """Whether it returns the log-sum-exp, with a gradient if the kernel has gradients."""
    head_widths: frozenset[int] | None = None
    """Supported head widths; None for any."""
    preferred_lengths: tuple[int, int | None] = (1, None)
    """The range of longest sequences, by measurement, for which it deserves its place in the order. Outside
    the range it still works, and is used if no other kernel can run or if it is named."""
    preferred_lengths_by: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Preferred lengths for special cases: ``unattended``, if some tokens are attended to by no token; the
    class of a position term; a device; with gradients,
    ``gradients bfloat16`` (or another dtype) or ``gradients``; or a dtype. The first matching key, in this
    order, applies."""
    unattended: bool = False
    """Whether it leaves out the keys of `SequenceLayout.unattended_T`."""
    module: str | None = None
    """A module that must be importable, such as triton."""
    dilation: bool = True
    """Whether its windows, if supported, may be dilated."""

    def unavailable(self) -> str | None:
        """Why it cannot run in this installation at all; None if it can."""
        if self.module is not None and not _importable(self.module):
            return f"needs {self.module}, which is not installed"
        return None

    def is_preferred(self, request: AttentionRequest) -> bool:
        """Whether the longest sequence is within the kernel's preferred lengths."""
        trained = (f"gradients {request.dtype}", "gradients") if request.gradients else ()
        hidden = ("unattended",) if request.unattended else ()
        asked = (*hidden, type(request.position).__name__, request.device, *trained, request.dtype)
        first, last = next(
            (self.preferred_lengths_by[aspect] for aspect in asked if aspect in self.preferred_lengths_by),
            self.preferred_lengths,
        )
        return first <= request.longest and (last is None or request.longest <= last)

    def refusal(self, request: AttentionRequest) -> str | None:
        """The first reason why this kernel does not support the request; None if it does."""
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
        if request.unattended and not self.unattended:
            yield "attends to every token, and some are not to be attended to"
        for feature in ("gradients", "dropout", "log_sum_exp"):
            if getattr(request, feature) and not getattr(self, feature):
                yield f"gives no {feature.replace('_', '-')}"


class AttentionOutput(NamedTuple):
    """The result of attention."""

    o_THK: Tensor
    """Values mixed for each query and head, in the dtype of the queries."""
    lse_TH: Tensor | None
    """Log of the sum of exponentiated scores, if requested, in at least float32."""


class AttentionCall(NamedTuple):
    """What a kernel computes with a plan, see `Kernel.attend`."""

    q_THK: Tensor
    k_THK: Tensor
    v_THK: Tensor
    pattern: AttentionPattern
    bias: AttentionBias
    dropout: float
    log_sum_exp: bool


class Kernel(ABC):
    """Softmax attention within each sequence of a packed batch.

    Every kernel computes what `unmask.kernels.tile` defines; `reference` implements it
    directly. A kernel returns the dtype of its inputs, and never drops a mask or attends across sequences.
    Its documentation states any wider dtype it computes in, its record what it does not support.
    """

    capability: Capability

    @abstractmethod
    def plan(self, layout: SequenceLayout, pattern: AttentionPattern, device: torch.device) -> Any:
        """Everything that depends only on the layout; made once per batch and passed to every layer."""

    @abstractmethod
    def compute(self, call: AttentionCall, plan: Any) -> AttentionOutput:
        """What `attend` gives."""

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
        """Mix the values of the keys that ``pattern`` allows each query; scores are content plus ``bias``.

        ``dropout`` is the dropout rate of probabilities, already 0 in inference. Rows of global tokens with
        separate projections are computed by the layer: a kernel may leave any numbers there.
        """
        return self.compute(AttentionCall(q_THK, k_THK, v_THK, pattern, bias, dropout, log_sum_exp), plan)


@cache
def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing too
        return False
