"""Attention as values: which keys a query may see, what is added to its scores, how they are mixed.

Every distance is a radius: tokens seen on each side, the query itself not counted. Families that
publish a total window or a window with the query counted are translated once, on their own page.
"""

from dataclasses import dataclass
from typing import Literal

from unmask.model.spec.check import require_at_least, require_positive, require_share

# --- reach: which keys a query may see ---------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """Every query sees every key of its own sequence (Vaswani et al. 2017)."""


@dataclass(frozen=True)
class Window:
    """Keys at distance 0, d, 2d ... up to ``radius`` times ``dilation`` d (Beltagy, Peters & Cohan 2020)."""

    radius: int
    dilation: int = 1

    def __post_init__(self) -> None:
        require_at_least("Window.radius", self.radius, 0)
        require_at_least("Window.dilation", self.dilation, 1)


@dataclass(frozen=True)
class WindowAndGlobals:
    """A window, and global tokens that see all and are seen by all (Longformer).

    Which tokens are global is a property of the batch, not of the encoder. With ``own_projections``,
    rows of global tokens use query, key and value projections of their own.
    """

    window: Window
    own_projections: bool = True


@dataclass(frozen=True)
class Blocks:
    """Block-sparse attention (Zaheer et al. 2020): per block of queries, a window of blocks, random
    blocks, and the first and last block, which also see all. Sequences of at most ``whole_up_to``
    tokens use `Whole`.
    """

    block: int
    window_blocks: int = 3
    random_blocks: int = 3
    whole_up_to: int = 0

    def __post_init__(self) -> None:
        require_at_least("Blocks.block", self.block, 1)
        require_at_least("Blocks.window_blocks", self.window_blocks, 1)
        require_at_least("Blocks.random_blocks", self.random_blocks, 0)


Reach = Whole | Window | WindowAndGlobals | Blocks

# --- position: what tells a query and a key where they are -------------------------------------------


@dataclass(frozen=True)
class NoPosition:
    """Scores know only content; positions, if any, were added to the embedding."""


@dataclass(frozen=True)
class Rotary:
    """Su et al. 2021: queries and keys are turned by angles ``position * theta ** (-2 i / width)``.

    ``width`` counts the leading features of a head that are turned (None: all). Halves are paired
    (feature i with i + width/2) unless ``interleaved`` (2i with 2i + 1). ``scale`` divides positions.
    """

    theta: float
    width: int | None = None
    interleaved: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive("Rotary.theta", self.theta)
        require_positive("Rotary.scale", self.scale)


@dataclass(frozen=True)
class Alibi:
    """Press, Smith & Lewis 2022, symmetric: ``-slope_h * |i - j|`` is added to the scaled score.

    Slopes are the published geometric series; where the number of heads is no power of two, the
    series of the next lower power, then every second one of the doubled series.
    """


@dataclass(frozen=True)
class Disentangled:
    """He et al. 2021 (DeBERTa): content-position terms from a table of distances shared by all layers.

    Distances beyond ``max_distance`` count as it. ``buckets`` > 0 merges far distances on a
    logarithmic scale (v2 and v3). ``shared_projections``: the table goes through the content's own
    query and key projections. Every term is divided by sqrt(K * (1 + number of position terms)).
    """

    max_distance: int
    buckets: int = 0
    content_to_position: bool = True
    position_to_content: bool = True
    shared_projections: bool = False
    table_norm_eps: float | None = None

    def __post_init__(self) -> None:
        require_at_least("Disentangled.max_distance", self.max_distance, 1)
        require_at_least("Disentangled.buckets", self.buckets, 0)


AttentionPosition = NoPosition | Rotary | Alibi | Disentangled

# --- mixers: how values are mixed --------------------------------------------------------------------


@dataclass(frozen=True)
class SoftmaxAttention:
    """Multi-head softmax attention: ``softmax(q k / sqrt(K) + position) v`` over the keys in reach."""

    heads: int
    head_width: int
    reach: Reach = Whole()
    position: AttentionPosition = NoPosition()
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    out_bias: bool = True
    dropout: float = 0.0
    """Share of attention probabilities dropped in training."""

    def __post_init__(self) -> None:
        require_at_least("heads", self.heads, 1)
        require_at_least("head_width", self.head_width, 1)
        require_share("attention dropout", self.dropout)


@dataclass(frozen=True)
class LinearAttention:
    """``phi(q) (phi(k) v) / (phi(q) sum phi(k))``, linear in tokens.

    ``elu+1``: Katharopoulos et al. 2020. ``favor+``: Choromanski et al. 2021, with
    ``random_features`` positive orthogonal features that approximate softmax.
    """

    heads: int
    head_width: int
    feature_map: Literal["elu+1", "favor+"]
    random_features: int = 0
    bias: bool = True

    def __post_init__(self) -> None:
        require_at_least("heads", self.heads, 1)
        require_at_least("head_width", self.head_width, 1)


Mixer = SoftmaxAttention | LinearAttention
