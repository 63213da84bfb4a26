"""Findings: what an overview consists of, as numbers with one sentence."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "previous",
    "next",
    "same",
    "edge",
    "punctuation",
    "sink",
    "labels",
    "layers",
    "focused",
    "diffuse",
    "distance",
    "states",
    "sense",
    "cka",
    "split",
    "effect",
    "prediction",
]
"""What a finding is about: a previous-token or next-token head; a head that attends to other occurrences of
the same word; the strongest edge between words; a head that attends to punctuation; the attention sink; how
many heads have each label; the entropy of each layer's heads; the heads with the lowest entropy, the highest
entropy and the longest distance; the layer that changes the hidden states most; two occurrences of a word
that drift apart; similarity of layers; words split into several tokens; the head whose ablation has the
largest effect; the layer after which a masked word is predicted."""


@dataclass(frozen=True)
class Edge:
    """Attention from one token to another."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Bar:
    """One value of a finding's picture, with its name."""

    label: str
    value: float


@dataclass(frozen=True)
class Finding:
    """One thing that a model did with a text, and the numbers that its sentence states."""

    kind: Kind
    sentence: str
    value: float
    """The deciding number, as in the sentence: a share, an entropy share, a distance in tokens, a cosine or
    1 minus it, a probability, an effect in the unit of its target."""
    baseline: float | None = None
    """What to compare ``value`` with: the same number under uniform attention, or before an ablation."""
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    tokens: tuple[int, ...] = ()
    """The tokens that it is about."""
    bars: tuple[Bar, ...] = ()
    """Values of tokens, heads, layers or levels; those of levels begin with the embeddings."""
    matrix: tuple[tuple[float, ...], ...] = ()
    """CKA between levels, named by ``bars``."""
    edges: tuple[Edge, ...] = ()
    """The strongest edges of the head between `window` tokens."""
    window: tuple[int, int] = (0, 0)
    """The tokens that ``edges`` are drawn over, the end not included."""


@dataclass(frozen=True)
class Overview:
    """What a model did with one text. A finding that does not hold for the text is left out."""

    layers: int
    layers_measured: int
    """Findings about heads are about those of these layers."""
    findings: tuple[Finding, ...]
    """The clearest head first, if there is one."""
