"""What a retriever's training can be, without torch."""

from dataclasses import dataclass
from typing import Literal

from unmask.errors import InvalidRequest

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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
