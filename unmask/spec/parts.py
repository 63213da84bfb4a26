"""Specifications of the embedding, and of the parts of a layer: norms, activations, feed-forward networks."""

from dataclasses import dataclass
from typing import Literal, get_args

from unmask.errors import InvalidRequest
from unmask.spec.check import (
    require_at_least,
    require_deviation,
    require_eps,
    require_positive,
    require_share,
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


@dataclass(frozen=True)
class NoNorm:
    """A scale and a shift of each feature, without statistics (Sun et al. 2020, MobileBERT's NoNorm)."""


Norm = LayerNorm | RMSNorm | NoNorm


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


@dataclass(frozen=True)
class StackedFeedForward:
    """``count`` equal networks, one after the other (Sun et al. 2020, MobileBERT).

    Each but the last is followed by its residual and a ``norm``; those of the last are the layer's. So that
    the layer's residual is the input of the first, the stack adds what its networks have changed since then:
    ``s + network(s) - x``, where ``s`` is the input of the last.
    """

    network: PlainFeedForward
    count: int
    norm: Norm

    def __post_init__(self) -> None:
        require_size("number of feed-forward networks", self.count, 2, most=MOST_NETWORKS)

    @property
    def width(self) -> int:
        """Of each network."""
        return self.network.width

    @property
    def activation(self) -> Activation:
        """Of each network."""
        return self.network.activation


MOST_NETWORKS = 16
"""The most feed-forward networks of a layer."""

FeedForward = PlainFeedForward | GatedFeedForward | ExpertFeedForward | StackedFeedForward

AttentionInput = Literal["narrow", "shared", "input"]
"""What attention reads in a layer with a bottleneck: its narrow states; the layer's input; or (``shared``)
values of the input, with queries and keys of a linear map and a norm of it that both share."""


@dataclass(frozen=True)
class Bottleneck:
    """A layer in narrow states (Sun et al. 2020, MobileBERT): ``norm(x + outer(parts(norm(inner(x)))))``.

    ``inner`` maps the layer's input ``x`` from D to ``width`` and ``outer`` back; attention and the
    feed-forward network add to what is between. The norms are of the layer's kind.
    """

    width: int
    attention: AttentionInput = "narrow"

    def __post_init__(self) -> None:
        require_size("Bottleneck.width", self.width)
        if self.attention not in get_args(AttentionInput):
            choices = ", ".join(get_args(AttentionInput))
            raise InvalidRequest(f"Bottleneck.attention is {self.attention!r}; it can be {choices}")


@dataclass(frozen=True)
class EmbeddingGate:
    """A third part of a layer, which reads the embedding once more (Gemma 3n; EmbeddingGemma 2).

    It adds ``norm(outer(activation(inner(x)) * e))`` to a token's state ``x``, where ``inner`` maps D to
    ``width`` and ``outer`` back. In each layer, ``e = norm(A x_0 / sqrt(D))`` has a matrix of its own;
    ``x_0`` is the input of the first layer, and one scale of that norm serves all layers. Both norms are of
    the layer's kind, and no map has a bias. Gemma 3n adds vectors of a second table of words to ``e``; here
    there are none.
    """

    width: int
    activation: Activation

    def __post_init__(self) -> None:
        require_size("EmbeddingGate.width", self.width)


@dataclass(frozen=True)
class LearnedPositions:
    """A trained vector per position. The first token uses row ``offset`` of the table of ``rows``
    (RoBERTa starts at 2, the row after that of its padding id). With ``added=False`` the table is
    kept for a decoder that needs absolute positions, and the embedding does not add it (DeBERTa v2 and v3).
    """

    rows: int
    offset: int = 0
    added: bool = True

    def __post_init__(self) -> None:
        require_size("LearnedPositions.rows", self.rows, self.offset + 1)

    @property
    def left_out(self) -> int | None:
        """The padding id where positions begin after its row; tokens of that id have this row and are not
        counted, wherever they stand (Liu et al. 2019, in their code). None: every token is counted.
        """
        return self.offset - 1 if self.offset else None


@dataclass(frozen=True)
class Projection:
    """A linear map from the embedding width E to the encoder width D (ALBERT, ELECTRA)."""

    bias: bool = True
    before_norm: bool = False
    """DeBERTa projects first and normalizes at D; ALBERT and ELECTRA normalize at E."""
    words_alone: bool = False
    """With ``before_norm``: word vectors alone are projected, and what is added to them has the
    width D (MobileBERT)."""
    neighbors: int = 0
    """With ``words_alone``: how many tokens on each side are read beside the token, from the farthest that
    follows to the farthest before it; zeros stand beyond the ends of a sequence (Sun et al. 2020)."""

    def __post_init__(self) -> None:
        require_size("Projection.neighbors", self.neighbors, 0, most=64)
        if self.words_alone and not self.before_norm:
            raise InvalidRequest("words_alone=True has a meaning only with before_norm=True")
        if self.neighbors and not self.words_alone:
            raise InvalidRequest(
                f"Projection.neighbors is {self.neighbors}; it has a meaning only with words_alone=True"
            )

    @property
    def tokens(self) -> int:
        """How many tokens it reads for each."""
        return 1 + 2 * self.neighbors


@dataclass(frozen=True)
class TokenDropout:
    """Mask tokens as dropped inputs (Lin et al. 2023, ESM-2): their word vectors are zero, and the others of
    a sequence are multiplied by ``(1 - rate) / (1 - share)``; the share is that of mask tokens in it.

    A word vector then has the magnitude that it had in training on average, however many tokens are masked.
    """

    mask_id: int
    rate: float = 0.12
    """The share of mask tokens in training: 80 % of 15 %."""

    def __post_init__(self) -> None:
        require_at_least("TokenDropout.mask_id", self.mask_id, 0)
        require_share("TokenDropout.rate", self.rate)


@dataclass(frozen=True)
class Embedding:
    """Word (+ position) (+ token type) (+ task) vectors, summed, normalized, with dropout."""

    vocabulary: int
    width: int
    """E; differs from the encoder's D only with a ``projection``."""
    positions: LearnedPositions | None = None
    segments: int = 0
    """Rows of the token type table; 0 for none."""
    norm: Norm | None = None
    projection: Projection | None = None
    dropout: float = 0.0
    padding_id: int | None = None
    """The padding id of other libraries; never used here, kept for them."""
    token_dropout: TokenDropout | None = None
    scale: float = 1.0
    """The factor of word vectors (Gemma); an MLM head that shares their matrix reads it without."""
    tasks: int = 0
    """Rows of the task table (ERNIE, Sun et al. 2020), of which every token has row 0; 0 for none."""

    def __post_init__(self) -> None:
        require_positive("embedding scale", self.scale)
        require_size("vocabulary", self.vocabulary)
        require_size("embedding width", self.width)
        require_size("segments", self.segments, 0)
        require_size("tasks", self.tasks, 0)
        require_share("embedding dropout", self.dropout)

    def added_width(self, width: int) -> int:
        """The width of positions, token types and tasks in an encoder of this width."""
        return width if self.projection is not None and self.projection.words_alone else self.width

    @property
    def reads_neighbors(self) -> bool:
        """Whether the vector of a token depends on the tokens beside it."""
        return self.projection is not None and self.projection.neighbors > 0
