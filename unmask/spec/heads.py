"""Specifications of the heads of published checkpoints: MLM heads and classifiers."""

from dataclasses import dataclass
from typing import Literal

from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.spec.check import require_size
from unmask.spec.parts import Activation, Norm
from unmask.spec.roles import ClassifierRole, RoleName

Reads = Literal["pooler", "first", "last", "mean", "tokens", "tokens_and_first", "unnormed", "late"]
"""The state a classifier reads: the pooler's, the first or last token's, the mean over tokens, every token's,
or the sum of every token's and the first token's. ``unnormed``: every token's without the encoder's final
norm, see `EncoderSpec.norm_in_heads`. ``late``: every token's, and the logits of the text are the mean of
those of its tokens (EuroBERT, Boizard et al. 2025)."""

OF_TOKENS: tuple[Reads, ...] = ("tokens", "tokens_and_first", "unnormed")
"""What classifiers with logits for every token read."""


ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
"""The task of a classifier's logits: regression, one class of several, or independent classes."""


@dataclass(frozen=True)
class Transform:
    """Dense layer to ``width``, activation, norm: the first step of most heads."""

    width: int
    activation: Activation
    norm: Norm | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        require_size("width of a head's transform", self.width)


@dataclass(frozen=True)
class ResidualTransform:
    """Another feed-forward part: dense layer to ``width``, activation, dense layer back to the encoder's
    width, residual sum, norm (BigBird's question-answering head, Zaheer et al. 2020).
    """

    width: int
    activation: Activation
    norm: Norm

    def __post_init__(self) -> None:
        require_size("width of a head's transform", self.width)


@dataclass(frozen=True)
class DoubleTransform:
    """Two dense layers, each followed by the activation: to ``inner`` and on to ``width`` (UltraBERT)."""

    inner: int
    width: int
    activation: Activation
    bias: bool = True

    def __post_init__(self) -> None:
        require_size("inner width of a head's transform", self.inner)
        require_size("width of a head's transform", self.width)


@dataclass(frozen=True)
class MaskedLM:
    """Logits over the vocabulary for each token: transform, then the word embedding as a matrix.

    ``tied=False``: a separate matrix. ``bias``: one number per word. ``own_bias``: the separate matrix has
    its own bias, which is the one added; the other is kept and saved again, as in most classes of
    `transformers`.
    ``beside``: the last so many columns of the matrix, beside those of the word embedding or of the separate
    matrix, are stored apart (MobileBERT, whose embedding is narrower than its states).
    ``enhanced``: trained on the states of a decoder with absolute positions (He et al. 2021,
    `unmask.encoder.decoder`); this head has its own role.
    """

    transform: Transform | DoubleTransform | None
    tied: bool = True
    bias: bool = True
    enhanced: bool = False
    own_bias: bool = False
    beside: int = 0

    def __post_init__(self) -> None:
        require_size("MaskedLM.beside", self.beside, 0)
        if self.own_bias and self.tied:
            raise UnknownArchitecture("an MLM head has a bias of its own matrix, and no such matrix")


@dataclass(frozen=True)
class Classifier:
    """Logits of ``classes`` classes; one class is a single number, such as a score."""

    role: ClassifierRole
    classes: int
    reads: Reads
    transform: Transform | ResidualTransform | None = None
    bias: bool = True
    input_norm: Norm | None = None
    """Applied to the state, before the transform."""
    labels: tuple[str, ...] | None = None
    """Names of the classes, in order; None if they have no names."""
    problem_type: ProblemType | None = None
    """The task of the logits; None if not specified."""
    temperature: float = 1.0
    """Logits are divided by it before they become probabilities of classes; see calibration."""
    normalize: bool = False
    """Divide the state by its Euclidean norm, before ``input_norm``."""

    def __post_init__(self) -> None:
        require_size("classes", self.classes)
        if not 0 < self.temperature < float("inf"):
            raise InvalidRequest(f"a classifier's temperature is {self.temperature}; it must be above 0")
        if self.labels is not None and len(self.labels) != self.classes:
            raise InvalidRequest(f"a classifier has {len(self.labels)} labels and {self.classes} classes")


@dataclass(frozen=True)
class Pruning:
    """How probabilities that a query needs a document's tokens decide which sentences stay.

    ``rule``: as Provence (Chirkova et al. 2025) does, by the ``share`` of a sentence's tokens whose
    probability exceeds the threshold, which the share must exceed, too; or as OpenProvence does, by the
    ``mean`` of their probabilities.
    """

    rule: Literal["share", "mean"] = "share"
    threshold: float = 0.1
    max_tokens: int | None = None
    """The most tokens of a query with a document that are read at once; None for what the model reads."""


@dataclass(frozen=True)
class LabelHead:
    """Entities of labels that are named with the text (GLiNER, Zaratiana et al. 2024).

    The labels stand before the words, each after a token that marks it, or are read by a second encoder.
    Vectors of words and of labels are compared: each span of words with each label, or each word with each
    label as the start, the end and a part of an entity. It reads the encoder's last states beside the
    encoder's own heads.
    """

    width: int
    """D, of the vectors of words and labels; a matrix makes them if the encoder is not as wide."""
    scores: Literal["spans", "words"]
    """What is compared with the labels."""
    max_width: int
    """The most words of a span; entities of word scores have any number."""
    max_words: int
    """The most words of a text in training; a longer text is read in windows."""
    rnn_layers: int
    """Layers of the bidirectional LSTM over the words; 0 for none."""
    entity: str = "<<ENT>>"
    """The token before each label."""
    separator: str = "<<SEP>>"
    """The token between the labels and the words."""
    reads_entity: bool = True
    """Whether a label's vector is that of the token before it, rather than of its own first token."""
    labels_width: int | None = None
    """The width of a second encoder that reads each label by itself; None if labels stand before the words.
    A label's vector is then the mean of its tokens' states, and words pass through no LSTM."""

    def __post_init__(self) -> None:
        require_size("width of a head of labels", self.width)
        require_size("max_width", self.max_width)
        require_size("max_words", self.max_words)


LabelScorer = Literal["dot", "weighted_dot", "network"]
"""How vectors of a text and of a class are compared: by their product; by a network that reads both and the
product of their parts, after a matrix each; or by a network that reads both."""

TextPooling = Literal["first", "last", "mean", "max", "sum", "root_mean_square", "max_size", "mean_size"]
"""What of the states of a text is compared with classes, number by number: the last two are of sizes, without
signs."""


Counting = Literal["projected", "attended", "experts"]
"""What follows the GRU over the numbers of instances: dense layers; attention between fields; or experts."""

WordPooling = Literal["first", "mean", "max"]
"""Of which tokens of a word its state is: the first, or the mean or maximum of all."""


@dataclass(frozen=True)
class SchemaHead:
    """Finds what a schema before the text names: entities, relations, records and classes (GLiNER2, Zaratiana
    et al. 2025). Each field of each instance is compared with every span.
    """

    max_width: int
    """The longest span, in words."""
    counting: Counting = "projected"
    pooling: WordPooling = "first"

    def __post_init__(self) -> None:
        require_size("max_width of a head of schemas", self.max_width)


@dataclass(frozen=True)
class ClassHead:
    """Classes that are named with the text, all in one pass (GLiClass, Stepanov et al. 2025).

    The names stand before or after the text, each after a token that marks it, and a token separates them
    from the text. The vector of the text and that of each class pass through two layers each and are
    compared. It reads the encoder's last states beside the encoder's own heads.
    """

    width: int
    """D, between the two layers; the vectors that are compared have the encoder's width."""
    activation: Activation = "gelu"
    """Between the two layers."""
    scorer: LabelScorer = "dot"
    pooling: TextPooling = "first"
    names_first: bool = False
    """Whether the names of classes stand before the text."""
    reads_marker: bool = True
    """Whether a class's vector begins with the state of the token before its name."""
    reads_name: bool = False
    """Whether it is the mean over all tokens up to the next name (of the last, up to the end of what is read,
    or to the separator with ``text_alone``), rather than the first of them."""
    text_alone: bool = False
    """Whether the vector of the text is made of the separator and what follows it, not of everything."""
    unit_length: bool = False
    """Whether vectors have length 1, and their scores a learned factor."""
    recurrent: bool = False
    """Whether a bidirectional LSTM reads the states of the text."""
    segments: bool = False
    """Whether token types, of which the head has a table for the encoder, tell the separator and what follows
    it from what stands before."""
    marker: str = "<<LABEL>>"
    """The token before each name."""
    separator: str = "<<SEP>>"
    """The token after the last name."""

    def __post_init__(self) -> None:
        require_size("width of a head of classes", self.width)


Head = MaskedLM | Classifier


def role_of(head: Head) -> RoleName:
    """The role of a head, unique in its encoder; ``masked`` (or ``enhanced``) for an MLM head."""
    if isinstance(head, MaskedLM):
        return "enhanced" if head.enhanced else "masked"
    return head.role


def is_per_token(head: Head) -> bool:
    """Whether a head gives logits for every token, rather than for a sequence."""
    return not isinstance(head, Classifier) or head.reads in OF_TOKENS
