"""Which of several choices fits a question: multiple choice.

Axes: W windows of a question; A choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.arguments import listed
from unmask.errors import InvalidRequest, quoted
from unmask.tasks.aligned import AlignedLogits, prepare_aligned
from unmask.tasks.classify import classifier_of, probabilities
from unmask.tasks.logits import Coverage
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.values import LongTexts
from unmask.text.tokenizer import numbered


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


def prepare(
    reader: Reader,
    questions: str | Sequence[str],
    choices: Sequence[str] | Sequence[Sequence[str]],
    *,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name = numbered,
) -> Ready[list[Choice]]:
    """The best choice of each question; arguments as of `unmask.models.model.Model.choose`."""
    classifier_of(reader.spec, "choice", reader.name)
    name = called(questions, name, "the question")
    firsts = several("questions", questions)
    if isinstance(choices, str):
        raise InvalidRequest(f"choices is {quoted(choices)}; give a list of strings")
    lists = listed("choices", choices)
    groups = _checked([lists] if isinstance(questions, str) else lists, len(firsts), name)
    return prepare_aligned(
        reader,
        "choice",
        firsts,
        groups,
        lambda windowed: choose(windowed, groups),
        truncation=truncation,
        overlap_tokens=overlap_tokens,
        name=name,
        second="choice",
    )


def _checked(lists: Sequence[Any], questions: int, name: Name) -> list[list[str]]:
    """The choices of each question.

    Raises:
        InvalidRequest: there is not one list for each question, or a list has fewer than two choices.
    """
    if len(lists) != questions:
        raise InvalidRequest(
            f"{questions} questions and {len(lists)} lists of choices were given; give a list of choices for "
            "each question"
        )
    groups = []
    for index, choices in enumerate(lists):
        if isinstance(choices, str):
            raise InvalidRequest(
                f"the choices of {name(index)} are {quoted(choices)}; give a list of strings"
            )
        group = listed(f"the choices of {name(index)}", choices)
        if len(group) < 2:
            raise InvalidRequest(
                f"{name(index)} has {len(group)} choice{'' if len(group) == 1 else 's'}; give at least two"
            )
        groups.append(group)
    return groups


def choose(questions: Sequence[AlignedLogits], choices: Sequence[Sequence[str]]) -> list[Choice]:
    """The prediction for each question with its choices.

    In each window of a question there is a softmax over its choices, which all see the same part of the
    question. The probabilities are the mean over windows, weighted by the question's tokens that each owns.
    """
    predictions = []
    for question, alternatives in zip(questions, choices, strict=True):
        p_WA = probabilities(question.logits_WAC[..., 0], "single_label_classification")
        p_A = question.parts.shares() @ p_WA
        best = int(p_A.argmax())
        scores = tuple(p_A.tolist())
        predictions.append(
            Choice(alternatives[best], best, scores[best], scores, **vars(question.parts.coverage))
        )
    return predictions
