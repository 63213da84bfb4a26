"""Attention specifications: which keys a query attends to, how positions enter, how values are mixed.

Every window size is a radius: the number of tokens on each side, excluding the query itself. Families that
publish a total window, or one that includes the query, are converted in the family's module.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.spec.check import require_at_least, require_positive, require_share, require_size
from unmask.spec.parts import Norm, RMSNorm
from unmask.text.batch import SequenceLayout

# --- attention pattern: which keys a query attends to ------------------------------------------------


@dataclass(frozen=True)
class FullAttention:
    """Every query attends to every key of its own sequence (Vaswani et al. 2017)."""


@dataclass(frozen=True)
class CausalAttention:
    """Every query attends to itself and to the keys before it (the decoder of Vaswani et al. 2017)."""


@dataclass(frozen=True)
class SlidingWindow:
    """Keys at distance 0, d, 2d ... up to ``radius`` times ``dilation`` d (Beltagy, Peters & Cohan 2020)."""

    radius: int
    dilation: int = 1

    def __post_init__(self) -> None:
        require_at_least("SlidingWindow.radius", self.radius, 0)
        require_at_least("SlidingWindow.dilation", self.dilation, 1)


@dataclass(frozen=True)
class SlidingWindowGlobal:
    """A window plus global tokens that attend to, and are attended to by, all tokens (Beltagy et al. 2020).

    Which tokens are global is a property of the batch, not of the encoder; without global tokens this is
    the plain window. With ``own_projections``, global tokens attend through separate query, key and value
    projections; other tokens attend to a global token through the ordinary projections.
    """

    window: SlidingWindow
    own_projections: bool = True


@dataclass(frozen=True)
class BlockSparse:
    """Block-sparse attention (Zaheer et al. 2020, the ITC variant), in blocks of ``block`` tokens.

    The first and the last block attend to all tokens and are attended to by all; every other block attends to
    itself, its two neighbors and ``random_blocks`` more. A key selected several times counts several times.
    The last block may be shorter than the others. Short sequences, see `whole_up_to`, use `FullAttention`.
    """

    block: int
    random_blocks: int = 3
    seed: int | None = None
    """Seed of numpy's legacy generator, which draws the random blocks of every head as in the authors' code.
    None draws nothing: all random blocks are block 0, as in `transformers` outside of training."""
    plan_tokens: int = 4096
    """Length of the plan whose beginning is used for sequences of 1,024, 3,072 and 4,096 tokens."""

    def __post_init__(self) -> None:
        require_at_least("BlockSparse.block", self.block, 1)
        require_at_least("BlockSparse.random_blocks", self.random_blocks, 0)
        require_at_least("BlockSparse.plan_tokens", self.plan_tokens, self.block)

    @property
    def heads_differ(self) -> bool:
        """Whether each head draws its own random blocks."""
        return self.seed is not None and self.random_blocks > 0

    @property
    def whole_up_to(self) -> int:
        """The longest sequence, in tokens, that uses full attention."""
        return (5 + 2 * self.random_blocks) * self.block


AttentionPattern = FullAttention | CausalAttention | SlidingWindow | SlidingWindowGlobal | BlockSparse

# --- position: how positions enter attention scores --------------------------------------------------


@dataclass(frozen=True)
class NoPosition:
    """Scores depend on content only; positions, if any, were added to the embedding."""


@dataclass(frozen=True)
class Yarn:
    """Peng et al. 2024: rotary positions stretched from ``trained_tokens`` to ``factor`` times as many.

    Pairs of features that make at least ``fast`` turns within ``trained_tokens`` keep their angle, those that
    make at most ``slow`` turns have it divided by ``factor``, and those between a mixture that is linear in
    the number of the pair. Rotated queries and keys are multiplied by ``stretch``.
    """

    factor: float
    trained_tokens: int
    fast: float = 32.0
    slow: float = 1.0
    whole_pairs: bool = True
    """The ends of the mixture are rounded to whole pairs, outwards."""
    stretch: float | None = None
    """None: ``0.1 ln(factor) + 1``, as in the paper."""

    def __post_init__(self) -> None:
        require_positive("Yarn.factor", self.factor)
        require_size("Yarn.trained_tokens", self.trained_tokens)
        require_positive("Yarn.fast", self.fast)
        require_positive("Yarn.slow", self.slow)
        if self.stretch is not None:
            require_positive("Yarn.stretch", self.stretch)

    @property
    def amplitude(self) -> float:
        """The factor of rotated queries and keys."""
        if self.stretch is not None:
            return self.stretch
        return 1.0 if self.factor <= 1 else 0.1 * math.log(self.factor) + 1.0

    def divided(self, frequencies: NDArray[np.float64], theta: float) -> NDArray[np.float64]:
        """The angle per position of each pair of features, (pairs,), from that without YaRN, (pairs,)."""
        width = 2 * len(frequencies)

        def pair(turns: float) -> float:
            return width * math.log(self.trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first, last = pair(self.fast), pair(self.slow)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        share = np.clip((np.arange(len(frequencies)) - first) / (last - first or 0.001), 0, 1)
        stretched: NDArray[np.float64] = frequencies / self.factor * share + frequencies * (1 - share)
        return stretched


@dataclass(frozen=True)
class Rotary:
    """Su et al. 2021: queries and keys are rotated by angles ``position * theta ** (-2 i / width)``.

    ``width`` is the number of leading features of a head that are rotated (None: all). Halves are paired
    (feature i with i + width/2) unless ``interleaved`` (2i with 2i + 1). ``scale`` divides positions;
    ``yarn`` stretches them otherwise.
    """

    theta: float
    width: int | None = None
    interleaved: bool = False
    scale: float = 1.0
    yarn: Yarn | None = None

    def __post_init__(self) -> None:
        require_positive("Rotary.theta", self.theta)
        require_positive("Rotary.scale", self.scale)
        if self.yarn is not None and not self.theta > 1:
            raise InvalidRequest(f"Rotary.theta is {self.theta}; with YaRN it must be above 1")

    def waves(
        self, positions: NDArray[np.int64], head_width: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cosine and sine of the angle of each pair of features at each position, (positions, width / 2).

        They are computed in float64, since at position 8,000 a bfloat16 angle is wrong by several full turns.
        """
        width = self.width or head_width
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        amplitude = 1.0
        if self.yarn is not None:
            frequencies, amplitude = self.yarn.divided(frequencies, self.theta), self.yarn.amplitude
        angles = (positions / self.scale)[:, None] * frequencies
        return amplitude * np.cos(angles), amplitude * np.sin(angles)


@dataclass(frozen=True)
class Alibi:
    """Press, Smith & Lewis 2022, symmetric: ``-slope_h * |i - j|`` is added to the scaled score.

    Slopes are the published geometric series; if the number of heads is not a power of two, the
    series of the next lower power, followed by every second slope of the doubled series.
    """

    def slopes(self, heads: int) -> list[float]:
        """The slope of each head: 2^(-8/n), 2^(-16/n) ... for n heads, n a power of two."""
        lower = 2 ** int(math.log2(heads))
        series = [2 ** (-8 * (i + 1) / lower) for i in range(lower)]
        finer = [2 ** (-4 * (i + 1) / lower) for i in range(0, 2 * lower, 2)]
        return (series + finer)[:heads]


@dataclass(frozen=True)
class Disentangled:
    """He et al. 2021 (DeBERTa): content-position terms from a distance table shared by all layers.

    The table has a vector for every distance ``i - j`` of query i and key j from ``-span`` to
    ``span - 1``; larger distances use the farthest vector. The content-to-position term is the query's
    product with the distance as a key, the position-to-content term the key's product with the distance
    as a query. Every term, including content-to-content, is divided by
    sqrt(K * (1 + number of position terms)).
    """

    max_distance: int
    buckets: int = 0
    """Above 0, distances beyond half this number are merged on a logarithmic scale up to
    ``max_distance - 1`` (He, Gao & Chen 2023), and this is the span instead of ``max_distance``."""
    content_to_position: bool = True
    position_to_content: bool = True
    shared_projections: bool = False
    """The table uses the query and key projections of the content."""
    position_key_bias: bool = True
    table_norm: Norm | None = None
    """Norm of the table, applied once per forward pass."""
    table_dropout: float = 0.0
    """Dropout rate of the table in training, drawn separately in every layer."""
    clamped: bool = False
    """Distances are clamped to ``max_distance - 1`` before they are merged, so the row of ``-span``, which no
    training text uses, is never read."""

    def __post_init__(self) -> None:
        require_size("Disentangled.max_distance", self.max_distance)
        require_size("Disentangled.buckets", self.buckets, 0)
        require_share("Disentangled.table_dropout", self.table_dropout)
        if self.buckets and not 1 <= self.buckets // 2 < self.max_distance - 1:
            raise InvalidRequest(
                f"Disentangled.buckets is {self.buckets}; it must be at least 2, and half of it less than "
                f"the largest distance, which is {self.max_distance}, minus 1"
            )

    @property
    def span(self) -> int:
        """Half the rows of the table."""
        return self.buckets or self.max_distance

    @property
    def term_count(self) -> int:
        """The number of terms of a score, including content-to-content."""
        return 1 + self.content_to_position + self.position_to_content


@lru_cache(maxsize=64)
def log_buckets(count: int, buckets: int, max_distance: int) -> NDArray[np.int64]:
    """The bucket of each distance from 0 to ``count - 1`` (He, Gao & Chen 2023).

    The distance itself up to half of ``buckets``, b; then
    ``b + ceil((b - 1) log(d / b) / log((m - 1) / b))``, which at distance m - 1, ``max_distance`` being m, is
    2 b - 1.
    """
    near = buckets // 2
    scale = math.log((max_distance - 1) / near)
    table = np.arange(count, dtype=np.int64)
    for distance in range(near + 1, count):
        table[distance] = near + math.ceil(math.log(distance / near) / scale * (near - 1))
    return table


@dataclass(frozen=True)
class RelativePositionBias:
    """Raffel et al. 2020 (T5), in both directions: ``b[h, bucket(i - j)]`` is added to the scaled score.

    ``b`` is one trained table for all layers, a number for each bucket and head. Half of the buckets are for
    keys up to the query, half for keys after it. Half of a direction's buckets hold one distance each; the
    others divide the distances up to ``max_distance`` on a logarithmic scale, and the last one also holds all
    larger distances.
    """

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        require_size("RelativePositionBias.buckets", self.buckets, 4)
        require_size("RelativePositionBias.max_distance", self.max_distance)
        if self.buckets % 4:
            raise InvalidRequest(
                f"RelativePositionBias.buckets is {self.buckets}; it must be divisible by 4, for two "
                "halves in each of two directions"
            )
        if self.max_distance <= self.buckets // 4:
            raise InvalidRequest(
                f"RelativePositionBias.max_distance is {self.max_distance}; it must be above a quarter of "
                f"the buckets, which is {self.buckets // 4}"
            )


AttentionPosition = NoPosition | Rotary | Alibi | Disentangled | RelativePositionBias

# --- mixers: how values are mixed --------------------------------------------------------------------


@dataclass(frozen=True)
class QueryKeyNorm:
    """Norms of queries and of keys before positions enter (Henry et al. 2020), with a scale for each.

    ``over`` a ``head``: the features of each head, whose scale all heads share; over ``all``: the features of
    all heads together.
    """

    norm: Norm
    over: Literal["head", "all"] = "head"
    values: bool = False
    """Also divide the values of each head by their root mean square, without a scale (Gemma 4)."""

    def __post_init__(self) -> None:
        if self.over not in ("head", "all"):
            raise InvalidRequest(f"QueryKeyNorm.over is {self.over!r}; it can be 'head' or 'all'")
        if self.values and not (self.over == "head" and isinstance(self.norm, RMSNorm)):
            raise InvalidRequest("QueryKeyNorm.values=True is built for RMSNorms over each head only")


@dataclass(frozen=True)
class SpanConvolution:
    """Convolutions beside the heads of attention (Jiang et al. 2020, ConvBERT), as many and as wide as these.

    Each mixes values of its own over ``kernel`` tokens, half of them on each side, by weights that it makes
    for every token: a softmax of a linear function of the token's query times a key of its surroundings. A
    depthwise convolution over as many tokens makes that key. Zeros stand beyond the ends of a sequence. The
    output projection reads the heads of attention, then the convolutions.
    """

    kernel: int

    def __post_init__(self) -> None:
        require_size("SpanConvolution.kernel", self.kernel, most=1024)
        if self.kernel % 2 == 0:
            raise InvalidRequest(f"SpanConvolution.kernel is {self.kernel}; it must be odd, to have a middle")


@dataclass(frozen=True)
class SoftmaxAttention:
    """Multi-head softmax attention: ``softmax(q k / sqrt(K) + position) v`` over the keys of the pattern."""

    heads: int
    head_width: int
    pattern: AttentionPattern = FullAttention()
    position: AttentionPosition = NoPosition()
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    out_bias: bool = True
    dropout: float = 0.0
    """Dropout rate of attention probabilities in training."""
    key_value_heads: int | None = None
    """Heads of keys and values, each of which consecutive heads of queries share (grouped-query attention,
    Ainslie et al. 2023); None: as many as ``heads``."""
    query_key_norm: QueryKeyNorm | None = None
    score_scale: float | None = None
    """The factor of ``q k`` instead of 1 / sqrt(K); None: that."""
    span_convolution: SpanConvolution | None = None
    sinks: bool = False
    """Each head has a learned score that takes part in the softmax of every row and belongs to no key, so
    that the row's probabilities add up to less than 1 (Agarwal et al. 2025, after Xiao et al. 2024)."""

    def __post_init__(self) -> None:
        require_size("heads", self.heads)
        require_size("head_width", self.head_width)
        require_share("attention dropout", self.dropout)
        if self.score_scale is not None:
            require_positive("score_scale", self.score_scale)
        if self.key_value_heads is not None:
            require_size("key_value_heads", self.key_value_heads)
            if self.heads % self.key_value_heads:
                raise InvalidRequest(
                    f"key_value_heads is {self.key_value_heads} and heads {self.heads}; "
                    "each must serve the same number of heads"
                )
        if isinstance(self.position, Rotary):
            turned = self.head_width if self.position.width is None else self.position.width
            if turned % 2 or not 2 <= turned <= self.head_width:
                raise InvalidRequest(
                    f"rotary positions rotate {turned} of {self.head_width} features of a head; "
                    "they rotate pairs, so it must be an even number and at most all of them"
                )

    @property
    def qkv_heads(self) -> tuple[int, int, int]:
        """The number of heads of queries, keys and values, in the order of the rows of their matrix."""
        shared = self.heads if self.key_value_heads is None else self.key_value_heads
        return self.heads, shared, shared

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """The number of features of queries, keys and values, over all their heads."""
        queries, keys, values = (heads * self.head_width for heads in self.qkv_heads)
        return queries, keys, values

    @property
    def mixed_width(self) -> int:
        """The number of features that the output projection reads: of all heads, and of convolutions."""
        return self.heads * self.head_width * (1 if self.span_convolution is None else 2)

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by, so that scores are their products with keys / sqrt(K)."""
        return 1.0 if self.score_scale is None else self.score_scale * math.sqrt(self.head_width)

    def check_is_built(self) -> None:
        """Refuse an unsupported combination of parts.

        Raises:
            UnknownArchitecture: the combination is not supported.
        """
        own_globals = isinstance(self.pattern, SlidingWindowGlobal) and self.pattern.own_projections
        for name in ("query_key_norm", "score_scale"):
            if getattr(self, name) is not None and (own_globals or isinstance(self.position, Disentangled)):
                part = "own projections of global tokens" if own_globals else "disentangled positions"
                raise UnknownArchitecture(f"{part} are built without a {name}")
        plain = isinstance(self.pattern, FullAttention) and isinstance(self.position, NoPosition)
        changed = (self.key_value_heads, self.query_key_norm, self.score_scale) != (None, None, None)
        if self.span_convolution is not None and (changed or not plain):
            raise UnknownArchitecture(
                "convolutions beside the heads of attention are built with full attention, without positions "
                "in scores, and with queries that are neither shared, normalized nor scaled"
            )
        if self.sinks and own_globals:
            raise UnknownArchitecture("own projections of global tokens are built without attention sinks")
        if own_globals and not isinstance(self.position, NoPosition):
            raise UnknownArchitecture("own projections of global tokens are built without positions only")
        if len(set(self.qkv_heads)) > 1 and (own_globals or isinstance(self.position, Disentangled)):
            part = "own projections of global tokens" if own_globals else "disentangled positions"
            raise UnknownArchitecture(
                f"{part} are built with as many heads of keys and values as of queries, not with "
                f"key_value_heads {self.key_value_heads} of {self.heads} heads"
            )
        shared = isinstance(self.position, Disentangled) and self.position.shared_projections
        if shared and not self.query_bias == self.key_bias == self.value_bias:
            raise UnknownArchitecture(
                "projections shared with content are built with biases on all or none of them"
            )


@dataclass(frozen=True)
class LinearAttention:
    """``phi(q) sum(phi(k) v) / phi(q) sum(phi(k))``, linear in tokens; sums are over one sequence.

    ``elu+1``: Katharopoulos et al. 2020, ``phi(x) = elu(x) + 1``. ``favor+``: Choromanski et al. 2021,
    with ``random_features`` positive orthogonal features whose products estimate
    ``exp(q k / sqrt(K))``, so that the result estimates softmax attention.
    """

    heads: int
    head_width: int
    feature_map: Literal["elu+1", "favor+"]
    random_features: int = 0
    """The number of random features for ``favor+``; 0 for ``elu+1``, which uses none."""
    eps: float = 1e-6
    """Added to the denominator (``elu+1``) or to every feature (``favor+``), as their authors' code does."""
    bias: bool = True

    def __post_init__(self) -> None:
        require_size("heads", self.heads)
        require_size("head_width", self.head_width)
        drawn = self.feature_map == "favor+"
        if drawn != (self.random_features > 0):
            wanted = "at least 1" if drawn else "0"
            raise InvalidRequest(
                f"random_features is {self.random_features}; for {self.feature_map} it must be {wanted}"
            )
        if not self.eps >= 0:
            raise InvalidRequest(f"eps is {self.eps}; it must be at least 0")

    @property
    def mixed_width(self) -> int:
        """The number of features that the output projection reads."""
        return self.heads * self.head_width


Mixer = SoftmaxAttention | LinearAttention


def has_sinks(mixer: Mixer) -> bool:
    """Whether rows of attention sum to less than 1, see `SoftmaxAttention.sinks`."""
    return isinstance(mixer, SoftmaxAttention) and mixer.sinks


def simplify(pattern: AttentionPattern, layout: SequenceLayout) -> AttentionPattern:
    """The simplest pattern that is equivalent on this batch, so that more kernels support it."""
    match pattern:
        case BlockSparse() if layout.lengths.max() <= pattern.whole_up_to:
            return FullAttention()
        case SlidingWindowGlobal() if layout.globals_T is None or not layout.globals_T.any():
            return simplify(pattern.window, layout)
        case SlidingWindow() if pattern.dilation == 1 and layout.lengths.max() <= pattern.radius + 1:
            return FullAttention()
        case _:
            return pattern
