"""The tasks of fine-tuning: each a value that settings, examples, objectives, figures and cards read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from unmask.spec import ROLES, LabeledRole, ProblemType, Role

Task = Literal[
    "classification", "multi_label", "regression", "tagging", "answering", "multiple_choice", "retrieval"
]
"""What is learned: one label of a text or pair, several labels, a number, a label of each word, where in a
context the answer to a question is, which of several choices fits a question, or which documents answer a
query."""


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task."""

    role: LabeledRole
    """The role of the head that learns it; of retrieval, only rerankers have a head."""
    problem: ProblemType | None = None
    """The problem that config.json states; only those of whole texts are stated."""
    has_labels: bool = False
    """Whether the data have names of classes, which the head has in the end."""
    class_weights: bool = False
    """Whether its loss can weight classes."""
    label_smoothing: bool = False
    """Whether its loss can spread a target's probability."""
    share: str | None = None
    """The figure that is a share of independent texts, to which Wilson's formula applies."""
    unit: Literal["text", "question"] = "text"
    """What a record is called."""
    pipeline: str = ""
    """The task of a pipeline of `transformers`."""
    arguments: str = '"A text."'
    """What the model's method is called with in the example of the card."""
    attribute: str = ""
    """What the example reads of the result."""

    @property
    def head(self) -> Role:
        """The value of the role."""
        return ROLES[self.role]

    @property
    def example(self) -> str:
        """A line of Python that predicts."""
        return f"model.{self.head.command}({self.arguments}){self.attribute}"


TASKS: Mapping[Task, TaskFacts] = {
    "classification": TaskFacts(
        "sequence",
        "single_label_classification",
        has_labels=True,
        class_weights=True,
        label_smoothing=True,
        share="accuracy",
        pipeline="text-classification",
    ),
    "multi_label": TaskFacts(
        "sequence",
        "multi_label_classification",
        has_labels=True,
        class_weights=True,
        share="exact",
        pipeline="text-classification",
    ),
    "regression": TaskFacts("sequence", "regression", pipeline="text-classification", attribute=".score"),
    "tagging": TaskFacts(
        "tokens", has_labels=True, class_weights=True, label_smoothing=True, pipeline="token-classification"
    ),
    "answering": TaskFacts(
        "span", unit="question", pipeline="question-answering", arguments='"A question?", "A context."'
    ),
    "multiple_choice": TaskFacts(
        "choice",
        label_smoothing=True,
        unit="question",
        pipeline="multiple-choice",
        arguments='"A question?", ["One answer.", "Another."]',
    ),
    "retrieval": TaskFacts("sequence"),
}


def tasks_with(setting: Literal["class_weights", "label_smoothing"]) -> tuple[Task, ...]:
    """The tasks whose loss has a meaning for a setting."""
    return tuple(name for name, task in TASKS.items() if getattr(task, setting))
