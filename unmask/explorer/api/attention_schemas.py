"""The schemas of attention, answers and requests: maps, statistics, sinks, rollout, attribution."""

from dataclasses import dataclass
from typing import Literal

from unmask.explorer.api.page_request import Arrays, PageRequest
from unmask.interpret.attention.attention_statistics import TOP_K
from unmask.interpret.attention.pooled import Over
from unmask.interpret.attention.sinks import EPSILON, HeadSink, TokenSink
from unmask.interpret.attention.view import Weight
from unmask.interpret.effects.rollout import Fusion
from unmask.interpret.overview.finding import Overview

Pool = Literal["max", "mean"]
Target = Literal["word", "class", "embedding"]
Special = Literal["show", "hide"]
"""Whether special tokens are part of attention; without them, the rest of each row is divided by its sum."""


@dataclass(frozen=True)
class HeadsMeta:
    """Of ``heads``: what the classes of keys are called, and the labels that ``label`` counts in.

    ``kinds`` has one entry a layer: softmax, or kernel for the implied weights of linear attention.
    """

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class HeadsRequest(PageRequest):
    """(L, H) of each statistic; 0 where it is not measured, or where there is no head."""

    path = "texts/{text}/heads"
    answer = Arrays[HeadsMeta]
    grows = True

    text: str


@dataclass(frozen=True)
class HeadRequest(PageRequest):
    """(N,) of each statistic of one head, and its profile of distances."""

    path = "texts/{text}/head/{layer}/{head}"
    answer = Arrays[HeadsMeta]
    saved_in = ("tokens",)

    text: str
    layer: int
    head: int


@dataclass(frozen=True)
class EdgesRequest(PageRequest):
    """The top-k keys of every query of all heads of a layer, (H, N, k), -1 where there are fewer; the share
    of each query's attention that is left out, (H, N), and what keys receive on average, (H, N).

    ``special="hide"`` leaves out special tokens as queries and as keys, and divides the rest of each row by
    its sum. ``most`` is k, so that all layers of a long text stay within `Limits.edges`.
    """

    path = "texts/{text}/edges/{layer}"
    answer = Arrays[None]

    text: str
    layer: int
    weight: Weight = "raw"
    special: Special = "show"
    most: int = TOP_K


@dataclass(frozen=True)
class PairEdgesRequest(PageRequest):
    """The top-k keys of every query in each text of a pair, (2, H, N, k), with shares that sum to 1 over that
    text, and the part of the query's attention that goes there, (2, H, N).

    A share times that part is the attention. Special tokens belong to neither text, and have no edges.
    """

    path = "texts/{text}/edges/{layer}/pair"
    answer = Arrays[None]

    text: str
    layer: int
    weight: Weight = "raw"
    most: int = TOP_K


@dataclass(frozen=True)
class ResidualRequest(PageRequest):
    """Norms of the residual stream, (L + 1, N), and of each layer's attention output, (L, N)."""

    path = "texts/{text}/residual"
    answer = Arrays[None]
    saved_in = ("flow",)

    text: str


@dataclass(frozen=True)
class TileMeta:
    """Of tiles and overviews. A cell stands for ``cell`` x ``cell`` tokens. What a code stands for is fixed:
    0 is below ``floor`` or not allowed, c of 1..255 is exp(ln floor * (255 - c) / 254)."""

    cell: int
    tokens: int
    pool: str
    weight: str
    kind: str
    floor: float


@dataclass(frozen=True)
class TileRequest(PageRequest):
    """Codes of one tile of a head's map, at most 256 x 256 cells of 2^level x 2^level tokens.

    ``over`` asks for the heads of the layer, or for all heads, as one map, whatever the head; cells are
    then pooled as heads are.
    """

    path = "texts/{text}/tiles/{layer}/{head}/{level}/{y}/{x}"
    answer = Arrays[TileMeta]

    text: str
    layer: int
    head: int
    level: int
    y: int
    x: int
    pool: Pool = "max"
    weight: Weight = "raw"
    special: Special = "show"
    over: Over | None = None


@dataclass(frozen=True)
class OverviewRequest(PageRequest):
    """Codes of small maps of all heads, of the layers that are measured."""

    path = "texts/{text}/overview"
    answer = Arrays[TileMeta]
    grows = True

    text: str
    weight: Weight = "raw"
    pool: Pool = "max"
    special: Special = "show"


@dataclass(frozen=True)
class FindingsRequest(PageRequest):
    """What the model did with the text, from the layers that are measured: one sentence and figures each."""

    path = "texts/{text}/findings"
    answer = Overview
    grows = True
    saved_in = ("overview", "head")

    text: str


@dataclass(frozen=True)
class MeasuredFindingsRequest(PageRequest):
    """Findings that need the model to run again: ablated heads, a masked word, the similarity of layers.

    ``token`` is the word that is masked; None chooses the longest word of a single token.
    """

    path = "texts/{text}/findings/measured"
    answer = Overview

    text: str
    token: int | None = None


@dataclass(frozen=True)
class Patterns:
    """``scores`` of each head of a layer, in the order of ``shapes``; None where the text has no such keys.

    A pattern is clear from ``clear`` on. See `unmask.interpret.attention.patterns`.
    """

    shapes: tuple[str, ...]
    clear: float
    scores: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class PatternsRequest(PageRequest):
    """How much of a vertical line, of diagonals, blocks and distant links each map of a layer has."""

    path = "texts/{text}/patterns/{layer}"
    answer = Patterns
    saved_in = ("map",)

    text: str
    layer: int


@dataclass(frozen=True)
class ValuesMeta:
    """Of exact values: which ranges, and what is in them."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    weight: str
    part: str
    parts: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class ValuesRequest(PageRequest):
    """Exact probabilities of a rectangle of a head's map, or one part of its scores; ``over`` as in tiles."""

    path = "texts/{text}/values/{layer}/{head}"
    answer = Arrays[ValuesMeta]

    text: str
    layer: int
    head: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    weight: Weight = "raw"
    part: str | None = None
    special: Special = "show"
    over: Over | None = None


@dataclass(frozen=True)
class SinkLayer:
    """Mean mass by class of key, over a layer's heads; entries as in `Sinks.classes`."""

    layer: int
    mass: tuple[float, ...]


@dataclass(frozen=True)
class Sinks:
    """Attention sinks. ``baseline`` is the uniform share of a key, mean over heads;
    ``layers_ready`` layers are in it. ``tokens`` are those above epsilon in some head, most often first."""

    epsilon: float
    baseline: float
    layers_ready: int
    classes: tuple[str, ...]
    layers: tuple[SinkLayer, ...]
    tokens: tuple[TokenSink, ...]
    heads: tuple[HeadSink, ...]


@dataclass(frozen=True)
class SinksRequest(PageRequest):
    """Attention sinks of the layers that are measured so far."""

    path = "texts/{text}/sinks"
    answer = Sinks
    grows = True
    saved_in = ("sinks",)

    text: str
    epsilon: float = EPSILON


@dataclass(frozen=True)
class RolloutMeta:
    """Of a rollout: values (L + 1, N), level 0 the embeddings, the last the token itself (None: all)."""

    token: int | None
    fusion: str


@dataclass(frozen=True)
class RolloutRequest(PageRequest):
    """Attention rollout; without a token, of all tokens weighted equally."""

    path = "texts/{text}/rollout"
    answer = Arrays[RolloutMeta]

    text: str
    token: int | None
    fusion: Fusion


@dataclass(frozen=True)
class RelevanceMeta:
    """Of an attribution: values (N,), by_layer (L, N). ``target`` names the target."""

    token: int | None
    target: str
    words: str


@dataclass(frozen=True)
class AttributionRequest(PageRequest):
    """Gradient attribution for a target; without ``id``, for the word in the text or the predicted class.

    ``classes``: pairs ``token:class`` with commas between them, of a head for tokens, whose logits are added.
    """

    path = "texts/{text}/relevance"
    answer = Arrays[RelevanceMeta]

    text: str
    token: int | None
    target: Target
    id: int | None = None
    classes: str | None = None
