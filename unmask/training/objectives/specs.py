"""The settings of objectives that are read without torch: consistency, distillation and retrieval."""

import math
from dataclasses import field
from typing import Literal

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec, SlidingWindowGlobal, SoftmaxAttention
from unmask.spec.check import require_positive
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.table import settings


@settings
class SiftSpec:
    """Scale-invariant fine-tuning (SiFT, He et al. 2021): virtual adversarial training on embeddings.

    Raises:
        InvalidRequest: a number is out of range.
    """

    weight: float
    """The factor of the divergence between predictions with and without the perturbation, ``vat_lambda`` in
    DeBERTa's code, whose scripts have 3 and 5."""
    learning_rate: float = 1e-4
    """How far the perturbation moves along its gradient, whose largest element in each token is 1."""
    initial_perturbation: float = 1e-2
    """The standard deviation of the random perturbation at first, which is limited to two of them."""

    def __post_init__(self) -> None:
        for name in ("weight", "learning_rate", "initial_perturbation"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InvalidRequest(f"{name} is {value:g}; it must be above 0 and finite")


@settings
class SoftLabelsSpec:
    """What another classifier predicts as a second target (Hinton, Vinyals & Dean 2015).

    Raises:
        InvalidRequest: a number is out of range.
    """

    teacher: str
    """A checkpoint of the task, with the same tokenizer and labels: a folder (relative to the run file), or a
    hub id."""
    weight: float = 0.5
    """The share of the teacher in the loss; the labels have the rest. With 1, labels are not learned."""
    temperature: float = 2.0
    """Logits of both are divided by it, so that what the teacher finds unlikely counts too; the divergence is
    multiplied by its square, so that gradients keep their size."""

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise InvalidRequest(f"weight is {self.weight:g}; it must be above 0 and at most 1")
        if not 0 < self.temperature < math.inf:
            raise InvalidRequest(f"temperature is {self.temperature:g}; it must be above 0 and finite")


Related = Literal["queries", "keys", "values"]

LayerPairs = tuple[tuple[int, int], ...]
"""Layers of the student and of the teacher, from 0; negative numbers count from the last."""


@settings
class DistillationSpec:
    """The terms of the loss and their weights; a weight of 0 leaves a term out.

    Without ``words`` and ``masked`` no token is masked, as in MiniLM.
    """

    words: float = 5.0
    """Weight of the divergence from the teacher's predictions."""
    masked: float = 2.0
    """Weight of masked language modeling."""
    cosine: float = 1.0
    """Weight of the cosine between states of paired layers; with a linear projection if widths differ."""
    attention: float = 0.0
    """Weight of the divergence from the teacher's attention, head by head."""
    relations: float = 0.0
    """Weight of the divergence from the teacher's relations between tokens."""
    temperature: float = 2.0
    """Temperature of the predictions."""
    tokens: Literal["chosen", "all"] = "chosen"
    """Tokens whose predictions are compared: masked tokens only, or all, as in DistilBERT's code."""
    related: tuple[Related, ...] = ("values",)
    relation_heads: int | None = None
    """Number of relation heads; None for the encoders' own, which must be equal."""
    state_layers: LayerPairs = ((-1, -1),)
    """The last layer's state is the encoder's output, after its final norm."""
    attention_layers: LayerPairs = ((-1, -1),)
    """For attention and relations."""
    masking: MaskingSpec = field(default_factory=MaskingSpec)

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        for term in TERMS:
            at_least(f"the weight {term}", getattr(self, term), 0)
        if not self.terms:
            raise InvalidRequest(f"every term has weight 0; give one of {', '.join(TERMS)} more")
        if not self.related:
            raise InvalidRequest(f"related is {self.related}; it can hold queries, keys, values")
        if not self.state_layers or not self.attention_layers:
            raise InvalidRequest("a list of layer pairs is empty; give a term the weight 0 to leave it out")

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms with a weight above 0."""
        return tuple(term for term in TERMS if getattr(self, term))

    @property
    def hides(self) -> bool:
        """Whether tokens are masked."""
        return self.words > 0 or self.masked > 0


@settings
class TeacherChoice:
    """The teacher of a run file."""

    teacher: str
    """A checkpoint: a folder, a hub id, or "default"."""
    init_from_teacher: tuple[int, ...] | None = None
    """For each of the student's layers, the teacher's layer that initializes it; None: random weights."""


TERMS = ("words", "masked", "cosine", "attention", "relations")

MINILM = DistillationSpec(words=0.0, masked=0.0, cosine=0.0, attention=1.0, relations=1.0)
"""Attention and relations of values of the last layers (Wang et al. 2020)."""

MINILM_V2 = DistillationSpec(
    words=0.0,
    masked=0.0,
    cosine=0.0,
    relations=1.0,
    related=("queries", "keys", "values"),
    relation_heads=48,
)
"""The mean of relations of queries, keys and values (Wang et al. 2021). The authors use 48 heads for a width
of 768, and a layer before the last one for large teachers."""


def resolve(pairs: LayerPairs, student: EncoderSpec, teacher: EncoderSpec) -> LayerPairs:
    """Pairs of layers by number from 0.

    Raises:
        InvalidRequest: there is no such layer.
    """
    for pair in pairs:
        for layer, spec, who in zip(pair, (student, teacher), ("student", "teacher"), strict=True):
            depth = len(spec.layers)
            if not -depth <= layer < depth:
                raise InvalidRequest(
                    f"a pair names layer {layer} of the {who}, which has layers 0 to {depth - 1}"
                )
    return tuple((mine % len(student.layers), its % len(teacher.layers)) for mine, its in pairs)


def relation_heads(
    student: EncoderSpec, teacher: EncoderSpec, mine: int, its: int, spec: DistillationSpec
) -> int:
    """The number of relation heads of a pair of layers.

    Raises:
        InvalidRequest: their attention cannot be compared as the spec requires.
    """
    ours, theirs = student.layers[mine].mixer, teacher.layers[its].mixer
    pair = f"layer {mine} of the student and {its} of the teacher"
    if not isinstance(ours, SoftmaxAttention) or not isinstance(theirs, SoftmaxAttention):
        raise InvalidRequest(f"{pair} cannot be compared by attention: both must be softmax attention")
    if spec.attention and (ours.heads != theirs.heads or ours.pattern != theirs.pattern):
        raise InvalidRequest(
            f"{pair} have {ours.heads} and {theirs.heads} heads with {ours.pattern} and {theirs.pattern}; "
            "attention is compared head by head and key by key, so use relations instead"
        )
    if spec.attention and isinstance(ours.pattern, SlidingWindowGlobal) and ours.pattern.own_projections:
        raise InvalidRequest(f"{pair} have projections of global tokens, whose attention is not compared")
    if spec.attention and (ours.sinks or theirs.sinks):
        raise InvalidRequest(
            f"{pair} have attention sinks, whose attention is not compared; use relations instead"
        )
    heads = spec.relation_heads or ours.heads
    widths = [mixer.heads * mixer.head_width for mixer in (ours, theirs)]
    if spec.relations and (
        (spec.relation_heads is None and ours.heads != theirs.heads) or any(width % heads for width in widths)
    ):
        raise InvalidRequest(
            f"{pair} have {ours.heads} and {theirs.heads} heads, {widths[0]} and {widths[1]} features in "
            "all; give relation_heads, a number that divides both"
        )
    return heads


Similarity = Literal["cosine", "dot"]
"""How two vectors are compared."""

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]
"""Which similarities a positive pair competes with: of its query to all documents, of its query to other
queries, of its document to all queries, of its document to documents of other queries."""

RankingLoss = Literal["contrastive", "margin_mse", "kl"]
"""What scores should be: that of the positive document above all others of the batch; with the margins of a
teacher's scores; or distributed over a query's own documents as a teacher's."""

PairLoss = Literal["bce", "mse", "softmax", "list_net", "margin_mse"]
"""What a cross-encoder's scores should be: logits of whether a document answers; a teacher's scores; that of
the positive document above the query's others; with a softmax like that of the labels or the teacher's
scores; or with the margins of a teacher's scores."""

VectorLoss = Literal["l2", "mse", "cosine"]
"""How far a student's vector is from its teacher's: the Euclidean distance, the mean squared error of its
numbers, or 1 minus the cosine."""


@settings
class RegularizerSpec:
    """The FLOPS regularizers of sparse vectors, whose weights rise with the square of the step."""

    query_weight: float
    document_weight: float
    warmup_share: float = 1 / 3
    """The share of the run's steps after which the weights are reached; 0 for the whole weights at once."""

    def __post_init__(self) -> None:
        for name, value in (
            ("query_regularizer_weight", self.query_weight),
            ("document_regularizer_weight", self.document_weight),
        ):
            if not 0 <= value < float("inf"):
                raise InvalidRequest(f"{name} is {value:g}; it must be at least 0 and finite")
        if not 0 <= self.warmup_share <= 1:
            raise InvalidRequest(f"regularizer_warmup_share is {self.warmup_share:g}; it must be from 0 to 1")

    def factor(self, step: int, steps: int) -> float:
        """The factor of both weights at a step, counted from 0, of a run of ``steps``."""
        warmup = max(1, int(steps * self.warmup_share)) if self.warmup_share else 0
        return 1.0 if step >= warmup else (step / warmup) ** 2


@settings
class RankingSpec:
    """The loss of a retriever's scores."""

    loss: RankingLoss = "contrastive"
    scale: float = 20.0
    """Contrastive: similarities are multiplied by it, the inverse of a temperature."""
    similarity: Similarity = "cosine"
    directions: tuple[Direction, ...] = ("query_to_doc",)
    """Contrastive: which similarities a positive pair competes with."""
    joint: bool = True
    """Contrastive: one softmax over all directions; False takes the mean of one loss for each."""
    temperature: float = 1.0
    """Kl: scores are divided by it."""
    teacher_temperature: float | None = None
    """Kl: the teacher's scores are divided by it; None for ``temperature``."""
    min_max_scores: bool = False
    """Kl: bring the student's scores of each query to the range from 0 to 1 first, as PyLate does."""

    def __post_init__(self) -> None:
        numbers = {
            "scale": self.scale,
            "temperature": self.temperature,
            "teacher_temperature": self.teacher_temperature,
        }
        for name, value in numbers.items():
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequest(f"{name} is {value:g}; it must be above 0 and finite")
        if "query_to_doc" not in self.directions or len(set(self.directions)) < len(self.directions):
            raise InvalidRequest(
                f"directions is {list(self.directions)}; name query_to_doc, which holds the positive pair, "
                "and each other one once"
            )
        alone = sorted({"query_to_query", "doc_to_doc"} & set(self.directions))
        if not self.joint and alone:
            raise InvalidRequest(
                f'partition is per_direction and {alone[0]} has no positive pair; set partition = "joint"'
            )


@settings
class EntitySpec:
    """Learn entities of labels that are read as texts, with the head of GLiNER (Zaratiana et al. 2024).

    Sizes that are None are those of the head that the first checkpoint has; of a new head, they are named.
    """

    scores: Literal["spans", "words"] | None = None
    """What is scored for each label: spans of words, or words as the start, the end and a part of an entity.
    A new head scores spans."""
    max_width: int | None = None
    """The most words of an entity that spans find; 12 in a new head."""
    width: int | None = None
    """The width of the head; that of the encoder in a new head."""
    rnn_layers: int | None = None
    """Layers of the LSTM over words; 1 in a new head, and none beside an encoder of labels."""
    max_words: int | None = None
    """The most words of a text that are read; 384 in a new head."""
    max_types: int = 25
    """The most labels of a text in training."""
    max_negative_ratio: int = 1
    """A text is read with 0 to so many times as many labels that do not occur in it as it has entities."""
    negatives: Literal["all", "file"] = "all"
    """Of which labels these are drawn: of all of the training data, or of those of the text's own file. Take
    the file's if the files name the same things differently, such as a place of one that is a city of
    another: what only another file names is not marked here, and would be learned as no entity."""
    labels_encoder: str | None = None
    """The encoder that reads each label by itself, as ``model.start_from`` names one. It is not trained, so
    the vectors of labels are computed once, and any number of labels takes no room beside a text. None
    reads the labels before the text."""
    focal_alpha: float | None = None
    """The focal loss's factor of what fits; 1 minus it is that of what does not. None for no factors."""
    focal_gamma: float = 0.0
    """The focal loss's exponent; 0 for plain cross-entropy."""
    threshold: float = 0.5
    """The probability that an entity of the dev data must exceed."""

    def __post_init__(self) -> None:
        for name, least in (("max_width", 1), ("width", 1), ("rnn_layers", 0), ("max_words", 1)):
            at_least(name, getattr(self, name), least)
        if self.labels_encoder == "":
            raise InvalidRequest("labels_encoder is empty; name a model, or leave it out")
        at_least("max_types", self.max_types, 1)
        at_least("max_negative_ratio", self.max_negative_ratio, 0)
        for name, value in (("focal_alpha", self.focal_alpha), ("threshold", self.threshold)):
            if value is not None and not 0 <= value <= 1:
                raise InvalidRequest(f"{name} is {value:g}; it must be from 0 to 1")
        if not 0 <= self.focal_gamma < float("inf"):
            raise InvalidRequest(f"focal_gamma is {self.focal_gamma:g}; it must be at least 0 and finite")
