"""The settings of a retriever's training in a run file, and what they exclude."""

from collections.abc import Mapping
from typing import Literal, cast, get_args

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest
from unmask.training.objectives.specs import (
    Direction,
    PairLoss,
    RankingLoss,
    RankingSpec,
    RegularizerSpec,
    Similarity,
    VectorLoss,
)
from unmask.training.table import settings

Kind = Literal["dense", "multi_vector", "sparse", "reranker", "distillation"]
"""What is trained: one vector per text, one vector per token, one weight per word of the vocabulary, a score
of a query and a document that are read together, or one vector per text as a teacher's."""

LOSSES: Mapping[Kind, tuple[str, ...]] = {
    "dense": get_args(RankingLoss),
    "multi_vector": get_args(RankingLoss),
    "sparse": get_args(RankingLoss),
    "reranker": get_args(PairLoss),
    "distillation": get_args(VectorLoss),
}
"""The losses of each kind; the first is the default."""

TAUGHT = ("margin_mse", "kl", "mse")
"""Losses that learn from a teacher's scores."""


REGULARIZER_WEIGHTS: Mapping[str | None, tuple[float, float]] = {
    "contrastive": (5e-5, 1e-3),
    "kl": (5e-5, 1e-3),
    "margin_mse": (0.1, 0.08),
}
"""The weights of the regularizers of queries and of documents by default; the scale of a loss matters."""

STATIC_RATE = 1e-3
"""The learning rate of a table of weights of words by default."""


@settings
class RetrievalSettings:
    """Training of a retriever on queries, positive documents and negatives."""

    kind: Kind = "dense"
    """What is trained."""
    loss: RankingLoss | PairLoss | VectorLoss | None = None
    """``"contrastive"`` (dense, multi_vector and sparse): the positive document against all of the batch.
    ``"margin_mse"``, ``"kl"`` (those three and, of these, the first for a reranker): as a teacher scores the
    query's own documents. Of a reranker ``"bce"`` and ``"mse"`` (each pair alone, by relevance or by a
    teacher's score), ``"softmax"`` and ``"list_net"`` (over the query's documents, by the positive one or by
    all labels). Of distillation ``"l2"``, ``"mse"`` or ``"cosine"``: the distance from the teacher's vector.
    None for the kind's first."""
    similarity: Similarity | None = None
    """How dense vectors are compared in training; None for ``"cosine"``, and for ``"dot"`` with a teacher's
    scores."""
    scale: float | None = None
    """Contrastive: similarities are multiplied by it, the inverse of a temperature. None for 20, and for 1
    with many vectors or sparse ones."""
    directions: tuple[Direction, ...] = ("query_to_doc",)
    """Dense or sparse, and contrastive: the similarities that a positive pair competes with."""
    partition: Literal["joint", "per_direction"] = "joint"
    """One softmax over all directions, or the mean of one loss for each."""
    temperature: float = 1.0
    """Kl: scores are divided by it."""
    teacher_temperature: float | None = None
    """Kl: the teacher's scores are divided by it; None for ``temperature``."""
    min_max_scores: bool = False
    """Kl: bring the student's scores of each query to the range from 0 to 1 first."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """Dense: pooling of a text's vector; None for that of the checkpoint, or the mean."""
    widths: tuple[int, ...] = ()
    """Dense: train vectors that can be cut to these widths (Matryoshka); empty for the whole width alone."""
    width_weights: tuple[float, ...] = ()
    """The weight of each width's loss; empty for 1 each."""
    depths: tuple[int, ...] = ()
    """Dense: train the first so many layers to serve alone, too, each number below that of all layers (2D
    Matryoshka); the mean of their losses is added. ``unmask.load(folder, layers=3)`` uses them."""
    token_width: int = 128
    """Multi_vector: the width of a token's vector."""
    skip_punctuation: bool = False
    """Multi_vector: punctuation of documents has no vectors."""
    query_regularizer_weight: float | None = None
    """Sparse: the weight of the FLOPS regularizer of queries, which makes weights of words 0; None for 5e-5,
    for 0.1 with ``"margin_mse"``, and for 0 with ``static_queries``."""
    document_regularizer_weight: float | None = None
    """Sparse: the same of documents; None for 1e-3, and for 0.08 with ``"margin_mse"``."""
    regularizer_warmup_share: float = 1 / 3
    """Sparse: the share of the steps in which both weights rise from 0, with the square of the step."""
    static_queries: bool = False
    """Sparse: queries are weighted by a trained table with a weight for each word, so that no encoder runs
    for them."""
    query_learning_rate: float | None = None
    """Sparse with ``static_queries``: the learning rate of the table; None for 1e-3."""
    pos_weight: float | None = None
    """Reranker with ``"bce"``: the factor of the loss of positive documents, such as the number of negatives
    of each; None for 1."""
    shared_query: bool = False
    """Reranker: tokens of the query attend to the query alone, so that it is computed once for all of its
    documents of a pass, in training and in search (Schlatt et al. 2024). Worth it where queries are long
    beside documents; other libraries refuse the exported model."""
    teacher: str | None = None
    """Distillation: the checkpoint whose vectors are learned, which encodes the training texts once: a folder
    (relative to the run file), "default", or a hub id."""
    teacher_vectors: str | None = None
    """Distillation, instead of ``teacher``: a .npy file of one vector for each training text, in their
    order."""
    layers: tuple[int, ...] = ()
    """Start with these layers of the checkpoint alone, counted from 0, as a smaller student; empty: all."""
    new_weights: bool = False
    """Start with new weights in the sizes that ``model.config`` gives, such as a smaller hidden_size, and
    with the principal components of the checkpoint's word embeddings."""
    negatives: int | None = None
    """Given negatives of a query that a step uses at most, drawn at random; None uses all."""
    no_duplicates: bool = True
    """Contrastive: keep apart, in different batches, items that share a query or a positive document."""
    tokens_per_pass: int | None = None
    """Encode a batch in passes of so many tokens, which bounds memory and leaves the gradient as it is; None
    encodes it at once."""
    query_prompt: str | None = None
    """Put before every query; None for the checkpoint's own prompt, if it has one."""
    document_prompt: str | None = None
    """Put before every document; None for the checkpoint's own prompt, if it has one."""
    query_tokens: int | None = None
    """The longest query; None for ``data.max_tokens``."""
    dev_documents: int | None = None
    """Dev documents at most: all that answer a query, and others in their order; None for all."""

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", LOSSES[self.kind][0])
        elif self.loss not in LOSSES[self.kind]:
            raise InvalidRequest(
                f"loss is {self.loss} and kind is {self.kind}, which learns by one of: "
                f"{', '.join(LOSSES[self.kind])}"
            )
        for name, least in (
            ("negatives", 0),
            ("tokens_per_pass", 1),
            ("query_tokens", 3),
            ("dev_documents", 1),
            ("token_width", 1),
        ):
            at_least(name, getattr(self, name), least)
        if self.pos_weight is not None and not 0 < self.pos_weight < float("inf"):
            raise InvalidRequest(f"pos_weight is {self.pos_weight:g}; it must be above 0 and finite")
        if self.kind == "distillation" and (self.teacher is None) == (self.teacher_vectors is None):
            raise InvalidRequest(
                "distillation learns the vectors of a teacher; give one of teacher and teacher_vectors"
            )
        if self.layers and self.new_weights:
            raise InvalidRequest("layers and new_weights exclude each other; leave one of the two out")
        self._check_widths()
        self._check_used()
        if self.query_learning_rate is not None and not 0 < self.query_learning_rate < float("inf"):
            raise InvalidRequest(
                f"query_learning_rate is {self.query_learning_rate:g}; it must be above 0 and finite"
            )
        if self.kind in ("dense", "multi_vector", "sparse"):
            _ = self.ranking, self.regularizer

    @property
    def ranking(self) -> RankingSpec:
        """The loss of a dense, many-vector or sparse retriever."""
        taught = self.loss in TAUGHT
        return RankingSpec(
            cast(RankingLoss, self.loss),
            scale=self.scale if self.scale is not None else 20.0 if self.kind == "dense" else 1.0,
            similarity=self.similarity or ("dot" if taught or self.kind == "sparse" else "cosine"),
            directions=self.directions,
            joint=self.partition == "joint",
            temperature=self.temperature,
            teacher_temperature=self.teacher_temperature,
            min_max_scores=self.min_max_scores,
        )

    @property
    def regularizer(self) -> RegularizerSpec:
        """The regularizers of sparse vectors."""
        query, document = REGULARIZER_WEIGHTS.get(self.loss, (0.0, 0.0))
        if self.static_queries:
            query = 0.0
        if self.query_regularizer_weight is not None:
            query = self.query_regularizer_weight
        if self.document_regularizer_weight is not None:
            document = self.document_regularizer_weight
        return RegularizerSpec(query, document, self.regularizer_warmup_share)

    @property
    def needs_scores(self) -> bool:
        """Whether the loss learns from a teacher's scores."""
        return self.kind != "distillation" and self.loss in TAUGHT

    @property
    def distinct(self) -> bool:
        """Whether repeated texts are kept apart."""
        return self.no_duplicates and self.loss == "contrastive"

    def _check_used(self) -> None:
        """Refuse settings that the kind or loss has no use for."""
        for names, used, where in (
            (("similarity", "widths", "width_weights", "depths"), self.kind == "dense", "kind dense"),
            (("pooling",), self.kind in ("dense", "distillation"), "kinds dense and distillation"),
            (("teacher", "teacher_vectors"), self.kind == "distillation", "kind distillation"),
            (("layers", "new_weights"), self.kind != "reranker", "kinds but reranker"),
            (("negatives",), self.kind != "distillation", "kinds but distillation"),
            (("token_width", "skip_punctuation"), self.kind == "multi_vector", "kind multi_vector"),
            (
                ("query_prompt", "document_prompt", "query_tokens"),
                self.kind != "reranker",
                "kinds but reranker",
            ),
            (
                (
                    "query_regularizer_weight",
                    "document_regularizer_weight",
                    "regularizer_warmup_share",
                    "static_queries",
                ),
                self.kind == "sparse",
                "kind sparse",
            ),
            (("query_learning_rate",), self.static_queries, "kind sparse with static_queries"),
            (("scale",), self.loss == "contrastive", "loss contrastive"),
            (
                ("directions", "partition"),
                self.loss == "contrastive" and self.kind in ("dense", "sparse"),
                "kinds dense and sparse with the loss contrastive",
            ),
            (("pos_weight",), self.loss == "bce", "loss bce"),
            (("shared_query",), self.kind == "reranker", "kind reranker"),
            (("temperature", "teacher_temperature", "min_max_scores"), self.loss == "kl", "loss kl"),
        ):
            for name in names:
                value = getattr(self, name)
                if not used and value != type(self).__dataclass_fields__[name].default:
                    raise InvalidRequest(
                        f"{name} is {value!r} and is for the {where}, and kind is {self.kind} with the loss "
                        f"{self.loss}; leave it out"
                    )

    def _check_widths(self) -> None:
        for name, numbers in (("widths", self.widths), ("depths", self.depths)):
            for number in numbers:
                at_least(name, number, 1)
            if len(set(numbers)) < len(numbers):
                raise InvalidRequest(f"{name} names a {name[:-1]} twice: {list(numbers)}")
        if self.width_weights and len(self.width_weights) != len(self.widths):
            raise InvalidRequest(
                f"width_weights has {len(self.width_weights)} numbers and widths {len(self.widths)}; give "
                "one for each"
            )
