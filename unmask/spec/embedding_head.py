"""The output that a checkpoint defines for a text: one of a few kinds."""

from dataclasses import dataclass
from typing import Literal, get_args

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest
from unmask.spec.check import require_at_least
from unmask.spec.encoder import EncoderSpec
from unmask.spec.parts import Activation, LayerNorm

PoolingMode = Literal["mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "last"]
"""Pooling over a sequence's tokens: the mean, the first token, the maximum of each feature, the sum divided
by the square root of the number of tokens, the mean weighted by position (1 for the first token, 2 for the
second ...), or the last token."""

POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)


@dataclass(frozen=True)
class PoolingNames:
    """A pooling mode in descriptions, and in both forms of 1_Pooling/config.json."""

    description: str
    name: str
    flag: str


POOLING: dict[PoolingMode, PoolingNames] = {
    "cls": PoolingNames("CLS token", "cls", "pooling_mode_cls_token"),
    "max": PoolingNames("max", "max", "pooling_mode_max_tokens"),
    "mean": PoolingNames("mean", "mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len": PoolingNames(
        "mean_sqrt_len", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"
    ),
    "weighted_mean": PoolingNames("mean by position", "weightedmean", "pooling_mode_weightedmean_tokens"),
    "last": PoolingNames("last token", "lasttoken", "pooling_mode_lasttoken"),
}
"""In the order in which the older form, one boolean per mode, concatenates several."""

TextKind = Literal["query", "document"]
"""The part of a text in a search. Many retrievers read the two differently."""

TEXT_KINDS: tuple[TextKind, ...] = get_args(TextKind)

PROMPT_NAMES: dict[TextKind, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
"""The names under which checkpoints store the prompt of each kind; the first that exists applies."""


QUERY_WEIGHTS = "output.0.weight"
"""Our name of the weights of words for queries, which a checkpoint may store as text."""


@dataclass(frozen=True)
class Dense:
    """A dense layer on a pooled vector or on each token's state, with an optional activation."""

    width: int
    bias: bool = True
    activation: Activation | None = None
    residual: bool = False
    """Add the layer's input to its output, through a matrix without bias if the widths differ."""

    def __post_init__(self) -> None:
        require_at_least("Dense.width", self.width, 1)


@dataclass(frozen=True)
class UnitLength:
    """Divide each vector by its Euclidean norm."""


OutputLayer = Dense | LayerNorm | UnitLength
"""A layer after the encoder and after pooling, if there is any."""


def output_width(layers: tuple[OutputLayer, ...], width: int) -> int:
    """The width of a vector after these layers."""
    return next((layer.width for layer in reversed(layers) if isinstance(layer, Dense)), width)


@dataclass(frozen=True)
class PooledVector:
    """One vector per text: the last hidden states, pooled."""

    pooling: tuple[PoolingMode, ...] = ("mean",)
    """If there are several, their vectors are concatenated in this order."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm, as the last step."""
    projections: tuple[OutputLayer, ...] = ()
    """Layers after pooling, in order."""
    dimensions: int | None = None
    """Keep only the first N dimensions, if trained that way (Kusupati et al. 2022); None keeps all. They are
    cut before ``normalize``."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Prefixes of a text, by the name of their use, such as ``query``."""
    default_prompt: str | None = None
    """The name of the prompt before every text for which no other is given."""
    pools_prompt: bool = True
    """Whether the tokens of a prompt are pooled too."""
    lower_case: bool = False
    """Lower-case texts before they are tokenized."""

    def __post_init__(self) -> None:
        if not isinstance(self.pooling, tuple) or not self.pooling:
            raise InvalidRequest(f"PooledVector.pooling is {self.pooling!r}; give a tuple of pooling modes")
        for mode in self.pooling:
            check_choice("pooling", mode, POOLING_MODES)
        if self.dimensions is not None:
            require_at_least("PooledVector.dimensions", self.dimensions, 1)

    def width(self, spec: EncoderSpec) -> int:
        """E, the width of one text's vector."""
        whole = output_width(self.projections, spec.state_width * len(self.pooling))
        return whole if self.dimensions is None else min(whole, self.dimensions)


@dataclass(frozen=True)
class QueryExpansion:
    """Mask tokens after a query that is shorter than ``length`` tokens; their vectors count in scores."""

    length: int = 32
    """The number of tokens after expansion, special tokens and prompt included."""
    truncates: bool = True
    """Whether ``length`` is also the most tokens of a query; otherwise longer queries are read whole."""
    attended: bool = False
    """Whether the other tokens attend to these; see `SequenceLayout.unattended_T`."""
    token: str | None = None
    """The token to append; None: the mask token."""

    def __post_init__(self) -> None:
        require_at_least("QueryExpansion.length", self.length, 1)


@dataclass(frozen=True)
class MultiVector:
    """One vector per token, compared by late interaction (ColBERT, Khattab & Zaharia 2020)."""

    projections: tuple[OutputLayer, ...] = ()
    """Layers on each token's last hidden state, in order."""
    normalize: bool = True
    """Divide each vector by its Euclidean norm, as the last step."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Prefixes of a text, by the name of their use: ``query`` and ``document``."""
    markers: tuple[str, ...] = ()
    """Words of the vocabulary that begin prompts and are single tokens there, such as ``[unused0]``."""
    query_tokens: int | None = None
    """The most tokens of a query; None: those that the encoder reads."""
    document_tokens: int | None = None
    """The most tokens of a document; None: those that the encoder reads."""
    expansion: QueryExpansion | None = None
    """How short queries are expanded; None: not at all."""
    skipped_words: tuple[str, ...] = ()
    """Tokens that get no vector, such as punctuation."""
    skipped_in: tuple[str, ...] = ("document",)
    """The kinds of text in which they get none."""
    mean_score: bool = False
    """Whether a score is divided by the number of the query's vectors."""

    def width(self, spec: EncoderSpec) -> int:
        """E, the width of one token's vector."""
        return output_width(self.projections, spec.state_width)


@dataclass(frozen=True)
class SparseVector:
    """One weight per word of the vocabulary, most of them 0 (SPLADE, Formal et al. 2021)."""

    pooling: Literal["max", "sum"] = "max"
    """Pooling of the activated logits over a sequence's tokens."""
    activation: Literal["log1p_relu", "log1p_log1p_relu"] = "log1p_relu"
    """``log(1 + relu(logit))``, or ``log(1 + log(1 + relu(logit)))`` (Geng et al. 2025)."""
    static_queries: bool = False
    """Whether a query's weights are those of its words in a table, so that no encoder runs for it."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Prefixes of a text, by the name of their use: ``query`` and ``document``."""
    most_words: int | None = None
    """Keep only that many of the largest weights of a text; None keeps all."""

    def width(self, spec: EncoderSpec) -> int:
        """V, the size of the vocabulary."""
        return spec.embedding.vocabulary


@dataclass(frozen=True)
class PairScore:
    """Scores of how two texts relate, encoded together (a cross-encoder)."""

    labels: int = 1
    """1: a score of relevance."""
    activation: Literal["identity", "sigmoid"] = "identity"
    """What makes a score of a logit."""
    pooling: tuple[PoolingMode, ...] | None = None
    """The pooling whose vector ``projections`` turn into logits; None: the encoder's own classifier does."""
    projections: tuple[OutputLayer, ...] = ()
    """Layers after pooling, in order."""
    shared_query: bool = False
    """Tokens of the query attend to the query alone, so that one encoding of it serves all of its documents
    (Schlatt, Fröbe & Hagen 2024); see `PackedBatch.queries_T`."""

    def __post_init__(self) -> None:
        require_at_least("PairScore.labels", self.labels, 1)

    def width(self, spec: EncoderSpec) -> int:
        """The number of scores of one pair."""
        return self.labels


@dataclass(frozen=True)
class UnknownOutput:
    """The checkpoint does not define a supported output."""

    reason: str
    """The reason, as a sentence without its final period."""
    normalize: bool = False
    """Whether the folder asks for normalized vectors; applies to a pooling that the caller names."""

    def width(self, spec: EncoderSpec) -> int:
        """An unknown output has no width.

        Raises:
            InvalidRequest: always.
        """
        raise InvalidRequest(f"{self.reason}; name a pooling, for instance mean")


CheckpointOutput = PooledVector | MultiVector | SparseVector | PairScore | UnknownOutput
"""The output that a checkpoint defines for a text."""


def output_layers(output: CheckpointOutput) -> tuple[OutputLayer, ...]:
    """The layers with weights of their own that an output adds to the encoder, in order."""
    return output.projections if isinstance(output, PooledVector | MultiVector | PairScore) else ()


def pooled_width(output: CheckpointOutput, spec: EncoderSpec) -> int:
    """The width of the vectors that the first of `output_layers` reads."""
    pooling = output.pooling if isinstance(output, PooledVector | PairScore) else None
    return spec.state_width * (1 if pooling is None else len(pooling))
