"""The schemas of a step of pretraining on the reader's text."""

from dataclasses import dataclass

from unmask.explorer.api.page_request import PageRequest
from unmask.tasks.fill import Prediction
from unmask.training.view.values import Corruption


@dataclass(frozen=True)
class StepToken:
    """A token that was corrupted or judged. ``piece`` is what the model reads.

    ``loss``: in nats; of a target of masked language modeling, or of a detector's judgement. ``baseline``:
    the loss by word frequency alone. ``probability``: of the original token, or that the token is replaced.
    """

    token: int
    piece: str
    corruption: Corruption
    loss: float
    probability: float
    baseline: float | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class EpochRow:
    """Targets of each epoch, and the share of tokens that were predicted so far."""

    kind: str
    epochs: tuple[tuple[int, ...], ...]
    ever: tuple[float, ...]


@dataclass(frozen=True)
class PairScores:
    """The probability that one text follows the other: as given, swapped, and for unrelated sentences."""

    task: str
    given: float
    swapped: float
    unrelated: float


@dataclass(frozen=True)
class TrainingStep:
    """One step of pretraining on a text.

    ``head``: ``masked``, ``replaced``, or None where the model has neither. ``tokens``: the targets, or all
    tokens that a detector judges. ``loss`` is their mean, ``baseline`` that of a model without context (by
    word frequency; one probability for all tokens), ``uniform`` that of one that knows nothing. ``note``: why
    there are no ``rows``.
    """

    epoch: int
    head: str | None
    tokens: tuple[StepToken, ...]
    loss: float | None
    baseline: float | None
    uniform: float | None
    pair: PairScores | None
    rows: tuple[EpochRow, ...]
    note: str | None


@dataclass(frozen=True)
class TrainingStepRequest(PageRequest):
    """A step of pretraining on a text. ``before``: the text in which the reader replaced words."""

    path = "texts/{text}/training"
    answer = TrainingStep
    saved_in = ("words",)

    text: str
    epoch: int = 1
    before: str | None = None
