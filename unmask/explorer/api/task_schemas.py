"""The schemas of predictions by a head of a task: classes, labels of words, answers."""

from dataclasses import dataclass
from typing import Literal

from unmask.explorer.api.page_request import PageRequest

TaskKind = Literal["classes", "labels", "answers"]


@dataclass(frozen=True)
class PredictedClass:
    """One class of the text. ``id`` is its number in the head; ``score`` its probability, or a value.

    ``applies``: whether the model predicts it.
    """

    label: str
    id: int
    score: float
    applies: bool


@dataclass(frozen=True)
class PredictedSpan:
    """A word, an entity or an answer: its tokens ``first`` to ``stop``, and its probability.

    ``in_pair``: it is in the second text. The prediction rests on the logits of ``classes`` at ``tokens``:
    the first token of each word, or the first and the last token of an answer.
    """

    label: str
    text: str
    first: int
    stop: int
    in_pair: bool
    score: float
    tokens: tuple[int, ...]
    classes: tuple[int, ...]


@dataclass(frozen=True)
class TaskPrediction:
    """What a head of the model predicts for a text.

    ``kind``: ``classes`` of the text, ``labels`` of its words, or ``answers`` in the second text to the first
    one. ``value``: the classes are numbers of a regression or a score, not probabilities. ``spans`` are
    entities where the labels are of entities, else words. ``note`` says why there is no prediction, or what a
    reader must know of it. ``role`` names the head.
    """

    kind: TaskKind
    role: str
    value: bool
    classes: tuple[PredictedClass, ...]
    spans: tuple[PredictedSpan, ...]
    note: str | None


@dataclass(frozen=True)
class TaskPredictionRequest(PageRequest):
    """What the model's first head that is not for masked words predicts for a text."""

    path = "texts/{text}/prediction"
    answer = TaskPrediction
    needs = "can_classify"

    text: str
