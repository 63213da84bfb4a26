"""Which of several choices fits a question: multiple choice.

Axes: W windows of a question; A choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.tasks.aligned import AlignedLogits
from unmask.tasks.classify import probabilities
from unmask.tasks.long_texts import Coverage


@dataclass(frozen=True)
class Choice(Coverage):
    """The prediction for one question. ``tokens_read`` counts the question once with each choice, and
    ``windows`` the parts in which the question was read; 1 if it was read whole."""

    label: str
    """The most probable choice."""
    index: int
    """Its position in the question's choices, from 0."""
    score: float
    """Its probability."""
    scores: tuple[float, ...]
    """The probability of every choice, in the given order; they sum to 1."""


def choose(questions: Sequence[AlignedLogits], choices: Sequence[Sequence[str]]) -> list[Choice]:
    """The prediction for each question with its choices.

    In each window of a question there is a softmax over its choices, which all see the same part of the
    question. The probabilities are the mean over windows, weighted by the question's tokens that each owns.
    """
    found = []
    for question, some in zip(questions, choices, strict=True):
        p_WA = probabilities(question.logits_WAC[..., 0], "single_label_classification")
        p_A = question.parts.shares() @ p_WA
        best = int(p_A.argmax())
        scores = tuple(p_A.tolist())
        found.append(Choice(some[best], best, scores[best], scores, **vars(question.parts.coverage)))
    return found
