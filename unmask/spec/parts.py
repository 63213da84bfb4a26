"""Specifications of the parts of a layer: norms, activations, feed-forward networks."""

from dataclasses import dataclass
from typing import Literal

from unmask.errors import InvalidRequest
from unmask.spec.check import (
    require_at_least,
    require_deviation,
    require_eps,
    require_positive,
    require_size,
)

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
"""``gelu`` is the exact (erf) form of Hendrycks & Gimpel 2016, ``gelu_tanh`` its tanh approximation."""


@dataclass(frozen=True)
class LayerNorm:
    """Ba, Kiros & Hinton 2016: zero mean, unit variance over the width, then scale and (``bias``) shift."""

    eps: float
    bias: bool = True

    def __post_init__(self) -> None:
        require_eps("LayerNorm.eps", self.eps)


@dataclass(frozen=True)
class RMSNorm:
    """Zhang & Sennrich 2019: unit root mean square over the width, then scale.

    With ``one_plus`` the scale is 1 plus the stored weight (Gemma), which then starts from 0.
    """

    eps: float
    one_plus: bool = False

    def __post_init__(self) -> None:
        require_eps("RMSNorm.eps", self.eps)


Norm = LayerNorm | RMSNorm


@dataclass(frozen=True)
class PlainFeedForward:
    """``out(activation(in(x)))``: D to ``width`` and back."""

    width: int
    activation: Activation
    bias: bool = True
    groups: int = 1
    """Parts of equal size into which inputs and outputs of both linear maps are divided, each of which reads
    its own alone (Jiang et al. 2020, ConvBERT)."""

    def __post_init__(self) -> None:
        require_size("feed-forward width", self.width)
        require_at_least("groups of the feed-forward network", self.groups, 1)
        if self.width % self.groups:
            raise InvalidRequest(
                f"the feed-forward network is {self.width} wide and has {self.groups} groups; they must "
                "divide its width"
            )


@dataclass(frozen=True)
class GatedFeedForward:
    """Shazeer 2020: ``out(activation(a) * b)`` with ``a | b = in(x)``: D to twice ``width`` and back.

    ``width`` is the width of one half. GeGLU is ``activation="gelu"``, SwiGLU is ``"silu"``.
    """

    width: int
    activation: Activation
    in_bias: bool = False
    out_bias: bool = False

    def __post_init__(self) -> None:
        require_size("feed-forward width", self.width)


@dataclass(frozen=True)
class ClampedGate:
    """The gate of gpt-oss's experts (Agarwal et al. 2025): ``(b + 1) activation(slope a) / slope``.

    ``a`` is first reduced to at most ``limit``, and ``b`` to between ``-limit`` and ``limit``. With ``silu``
    this is ``(b + 1) a sigmoid(slope a)``.
    """

    slope: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        require_positive("ClampedGate.slope", self.slope)
        require_positive("ClampedGate.limit", self.limit)


@dataclass(frozen=True)
class ExpertFeedForward:
    """A mixture of experts (Shazeer et al. 2017): ``sum_e p_e outer_e(activation(inner_e(x)))``, plus a bias.

    The sum runs over the ``chosen`` experts with the largest probabilities ``p = softmax(router(x))`` of a
    token. Each expert is a network from D to ``width`` and back; with a ``gate``, ``a | b = inner_e(x)`` are
    twice as wide.
    """

    width: int
    activation: Activation
    experts: int
    chosen: int
    normalize: bool = False
    """Divide the probabilities of the chosen experts by their sum."""
    bias: bool = True
    """One bias of the output, which all experts share."""
    gate: ClampedGate | None = None
    router_bias: bool = False
    expert_biases: bool = False
    """Both matrices of each expert have biases of their own."""
    balance: float = 0.0
    """The factor of the loss in training that is least where experts are chosen equally often (Fedus, Zoph &
    Shazeer 2022); 0 for none."""

    def __post_init__(self) -> None:
        require_size("feed-forward width", self.width)
        require_size("experts", self.experts)
        require_at_least("chosen experts", self.chosen, 1)
        require_deviation("balance of experts", self.balance)
        if self.chosen > self.experts:
            raise InvalidRequest(f"{self.chosen} experts are chosen of {self.experts}; choose at most all")

    @property
    def inner_width(self) -> int:
        """The rows of an expert's first matrix."""
        return self.width if self.gate is None else 2 * self.width


FeedForward = PlainFeedForward | GatedFeedForward | ExpertFeedForward
