"""Attention sinks: tokens that receive attention regardless of their content, and their effect.

A sink score of key k in one head is, causally, ``sum_{i >= k} p_ik / (N - k)`` (Gu et al. 2025, places
counted from 0), the mean over the queries from it on. Encoders are bidirectional, so the score here, called
*adapted*, is the mean over all queries; the causal score is also given. Both depend on the number of keys:
rows sum to 1, so the N keys of a head receive 1/N on average, also with windows; this is the baseline.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.errors import InvalidRequest
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.layer_statistics import CLASSES, LayerStatistics

EPSILON = 0.3
"""The score above which Gu et al. call a key a sink, for texts of 64 tokens."""

SMALL_VALUE = 0.5
"""A value norm below this share of the head's median is well below it."""

DOMINATES = 0.5
"""A share of what a head gives, by norms, above which one key dominates it."""

SinkType = Literal["no-op", "broadcast", "neither"]
"""The effect of attention to a sink.

``no-op``: its value norm is below `SMALL_VALUE` of the median of the head, so the head writes almost nothing
when it attends to it. ``broadcast``: the sink dominates what the head writes: the mean over queries of its
share in ``sum_j p_ij n_j`` is above `DOMINATES`, so the same vector goes to all. ``neither``: the token is
not a sink, or neither condition holds.
"""


@dataclass(frozen=True)
class HeadSink:
    """The token that receives the most attention in one head."""

    layer: int
    head: int
    token: int
    mass: float
    """Its adapted score: mean over all queries of what it receives."""
    causal: float
    """Its causal score (Gu et al. 2025)."""
    baseline: float
    """The average per key, which uniform attention gives to each: 1/N."""
    value_norm_ratio: float
    """Its value norm by the head's median; 1 where both are 0."""
    written_share: float
    """Mean over queries of its share in what the head writes, by norms."""
    type: SinkType


@dataclass(frozen=True)
class TokenSink:
    """The strength of one token as a sink, over all heads measured."""

    token: int
    adapted_rate: float
    """Share of heads in which its adapted score is above epsilon."""
    causal_rate: float
    """Share of heads whose causal score is above epsilon: the Sink_k^epsilon of Gu et al. 2025."""
    mass: float
    """Mean over heads of its adapted score."""


@dataclass(frozen=True)
class LayerMass:
    """How one layer divides its attention over classes of keys."""

    layer: int
    mass: dict[str, float]
    """Mean over its heads of the attention to keys of each class of `unmask.interpret.CLASSES`."""


@dataclass(frozen=True, eq=False)
class Sinks:
    """Sinks of one text; made by `sinks`."""

    epsilon: float
    baseline: float
    """The average per key, which uniform attention gives to each: 1/N."""
    heads: tuple[HeadSink, ...]
    """One for every head measured, layer by layer."""
    tokens: tuple[TokenSink, ...]
    """Tokens that are a sink in some head, the most frequent first; at least the one with most mass."""
    class_mass: dict[str, float]
    """Mean over heads of the attention to keys of each class of `unmask.interpret.CLASSES`."""
    layers: tuple[LayerMass, ...]
    """The same for every layer measured."""

    def types(self) -> dict[SinkType, int]:
        """How many heads there are of each type."""
        kinds: tuple[SinkType, ...] = ("no-op", "broadcast", "neither")
        return {kind: sum(sink.type == kind for sink in self.heads) for kind in kinds}


def sinks(statistics: AttentionStatistics, epsilon: float = EPSILON, *, top: int = 16) -> Sinks:
    """Find the sinks in the layers measured so far.

    Args:
        statistics: the statistics of the text; layers that have not been measured are left out.
        epsilon: the score above which a key is a sink.
        top: maximum number of tokens listed.

    Raises:
        InvalidRequest: ``epsilon`` is not between 0 and 1, ``top`` is less than 1, or nothing is measured.
    """
    if not 0 < epsilon < 1:
        raise InvalidRequest(f"epsilon is {epsilon}; it is a share of attention, between 0 and 1")
    whole_number("top", top, 1)
    measured = [(number, layer) for number, layer in enumerate(statistics.layers) if layer is not None]
    if not measured:
        raise InvalidRequest("no layer has been measured yet; measure at least one layer first")
    layers = [layer for _, layer in measured]
    heads = tuple(
        _of_head(number, layer, head, epsilon) for number, layer in measured for head in range(layer.heads)
    )
    return Sinks(
        epsilon=epsilon,
        baseline=heads[0].baseline,
        heads=heads,
        tokens=_tokens(layers, epsilon, top),
        class_mass=_class_mass(np.concatenate([layer.classes_HX for layer in layers])),
        layers=tuple(LayerMass(number, _class_mass(layer.classes_HX)) for number, layer in measured),
    )


def _class_mass(classes_HX: NDArray[np.float32]) -> dict[str, float]:
    return dict(zip(CLASSES, classes_HX.mean(0, dtype=np.float64).tolist(), strict=True))


def _of_head(number: int, layer: LayerStatistics, head: int, epsilon: float) -> HeadSink:
    received_N, norm_N = layer.attention_received_HN[head], layer.norm_HN[head]
    token = int(received_N.argmax())
    mass, written = float(received_N[token]), float(layer.received_norm_HN[head, token])
    ratio = _ratio(float(norm_N[token]), float(np.median(norm_N)))
    return HeadSink(
        layer=number,
        head=head,
        token=token,
        mass=mass,
        causal=float(layer.causal_received_HN[head, token]),
        baseline=1 / len(received_N),
        value_norm_ratio=ratio,
        written_share=written,
        type=sink_type(mass, ratio, written, epsilon),
    )


def sink_type(mass: float, value_norm_ratio: float, written_share: float, epsilon: float) -> SinkType:
    """The type of a head's strongest token by the rule of `SinkType`."""
    if mass <= epsilon:
        return "neither"
    if value_norm_ratio < SMALL_VALUE:
        return "no-op"
    return "broadcast" if written_share > DOMINATES else "neither"


def _ratio(norm: float, median: float) -> float:
    """Finite also where most values are 0: then anything above is as far above as can be said."""
    if median > 0:
        return norm / median
    return 1.0 if norm == 0 else float(np.finfo(np.float32).max)


def _tokens(layers: list[LayerStatistics], epsilon: float, top: int) -> tuple[TokenSink, ...]:
    received_XN = np.concatenate([layer.attention_received_HN for layer in layers])
    causal_XN = np.concatenate([layer.causal_received_HN for layer in layers])
    mass_N: NDArray[np.float64] = received_XN.mean(0, dtype=np.float64)
    adapted_N, causally_N = (received_XN > epsilon).mean(0), (causal_XN > epsilon).mean(0)
    order = np.lexsort((np.arange(len(mass_N)), -mass_N, -adapted_N))
    some = [int(token) for token in order[:top] if adapted_N[token] > 0] or [int(order[0])]
    return tuple(
        TokenSink(token, float(adapted_N[token]), float(causally_N[token]), float(mass_N[token]))
        for token in some
    )
