"""The settings of a retriever's training in a run file, and what they exclude."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unmask.errors import InvalidRequest
from unmask.learn.objectives.retrieval.spec import Direction, Similarity
from unmask.learn.pretrain.loop_settings import at_least

if TYPE_CHECKING:
    from unmask.finetuning.settings import FinetuneSettings

Kind = Literal["dense"]
"""What is trained: one vector per text."""

Loss = Literal["contrastive"]
"""What scores should be: that of the positive document above all others of the batch."""

LOSSES: Mapping[Kind, tuple[Loss, ...]] = {"dense": ("contrastive",)}
"""The losses of each kind; the first is the default."""


@dataclass(frozen=True)
class RetrievalSettings:
    """Training of a retriever on queries, positive documents and negatives."""

    kind: Kind = "dense"
    """What is trained."""
    loss: Loss | None = None
    """None for the kind's first."""
    similarity: Similarity = "cosine"
    """How vectors are compared in training."""
    scale: float = 20.0
    """Similarities are multiplied by it, the inverse of a temperature: 20 is a temperature of 0.05."""
    directions: tuple[Direction, ...] = ("query_to_doc",)
    """The similarities that a positive pair competes with."""
    partition: Literal["joint", "per_direction"] = "joint"
    """One softmax over all directions, or the mean of one loss for each."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """Pooling of a text's vector; None for that of the checkpoint, or the mean."""
    widths: tuple[int, ...] = ()
    """Train vectors that can be cut to these widths (Matryoshka); empty for the whole width alone."""
    width_weights: tuple[float, ...] = ()
    """The weight of each width's loss; empty for 1 each."""
    negatives: int | None = None
    """Given negatives of a query that a step uses at most, drawn at random; None uses all."""
    no_duplicates: bool = True
    """Keep apart, in different batches, items that share a query or a positive document."""
    tokens_per_pass: int | None = None
    """Encode a batch in passes of so many tokens, which bounds memory and leaves the gradient as it is; None
    encodes it at once."""
    query_prompt: str = ""
    """Put before every query."""
    document_prompt: str = ""
    """Put before every document."""
    query_tokens: int | None = None
    """The longest query; None for ``data.max_tokens``."""
    dev_documents: int | None = None
    """Dev documents at most: all that answer a query, and others in their order; None for all."""

    def __post_init__(self) -> None:
        for name in ("directions", "widths", "width_weights"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.loss is None:
            object.__setattr__(self, "loss", LOSSES[self.kind][0])
        elif self.loss not in LOSSES[self.kind]:
            raise InvalidRequest(
                f"loss is {self.loss} and kind is {self.kind}, which learns by one of: "
                f"{', '.join(LOSSES[self.kind])}"
            )
        if not 0 < self.scale < float("inf"):
            raise InvalidRequest(f"scale is {self.scale:g}; it must be above 0 and finite")
        for name, least in (
            ("negatives", 0),
            ("tokens_per_pass", 1),
            ("query_tokens", 3),
            ("dev_documents", 1),
        ):
            at_least(name, getattr(self, name), least)
        self._check_directions()
        self._check_widths()

    def _check_directions(self) -> None:
        if "query_to_doc" not in self.directions or len(set(self.directions)) < len(self.directions):
            raise InvalidRequest(
                f"directions is {list(self.directions)}; name query_to_doc, which holds the positive pair, "
                "and each other one once"
            )
        alone = sorted({"query_to_query", "doc_to_doc"} & set(self.directions))
        if self.partition == "per_direction" and alone:
            raise InvalidRequest(
                f'partition is per_direction and {alone[0]} has no positive pair; set partition = "joint"'
            )

    def _check_widths(self) -> None:
        for width in self.widths:
            at_least("widths", width, 1)
        if len(set(self.widths)) < len(self.widths):
            raise InvalidRequest(f"widths names a width twice: {list(self.widths)}")
        if self.width_weights and len(self.width_weights) != len(self.widths):
            raise InvalidRequest(
                f"width_weights has {len(self.width_weights)} numbers and widths {len(self.widths)}; give "
                "one for each"
            )


def check_retrieval(settings: "FinetuneSettings") -> None:
    """Refuse what the training of a retriever cannot use.

    Raises:
        InvalidRequest: the task is another, or a setting would have no effect.
    """
    if settings.task != "retrieval":
        if settings.retrieval is not None:
            raise InvalidRequest(
                f"[retrieval] is for the task retrieval, and the task is {settings.task}; leave it out, or "
                'set task = "retrieval"'
            )
        return
    if settings.retrieval is None:
        object.__setattr__(settings, "retrieval", RetrievalSettings())
    given: Mapping[str, object] = {
        "frozen": settings.frozen,
        "[adapter]": settings.adapter,
        "[few_shot]": settings.few_shot,
        "class_weights": settings.class_weights,
        "label_smoothing": settings.label_smoothing,
        "r_drop": settings.r_drop,
        "[sift]": settings.sift,
        "model.head_dropout": settings.model.head_dropout,
        "evaluation.calibrate": settings.evaluation.calibrate,
        "data.labels": settings.data.labels,
        "data.both_orders": settings.data.both_orders,
        "data.pair": settings.data.pair,
        "data.skip_short_lines": settings.data.skip_short_lines,
    }
    for name, value in given.items():
        if value:
            raise InvalidRequest(
                f"{name} has no meaning for the task retrieval, which learns from queries and documents; "
                "leave it out"
            )
    if settings.data.long_texts == "window":
        raise InvalidRequest(
            "data.long_texts is window, and a document has one vector in training; set it to end or error"
        )
