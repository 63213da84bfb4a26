"""The tasks of fine-tuning, each a value that settings, examples, objectives, figures and cards read.

Also how the texts of SuperGLUE's tasks are made of their rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unmask.errors import InvalidText, quoted
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


Layout = Literal["copa", "wic", "wsc"]
"""A task of SuperGLUE (Wang et al. 2019) whose texts are made of several values of a row. BoolQ, CB and RTE
need no such layout: their columns are texts and labels as they are."""

Row = Mapping[str, Any]

QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""What COPA asks, by the value in its column ``question``."""


def copa(row: Row, where: object) -> Row:
    """The row with ``text``: the premise, and what is asked about it."""
    question = _value(row, "question", str, where)
    if question not in QUESTIONS:
        raise InvalidText(f"{where} asks {quoted(question)}; COPA asks for {' or '.join(QUESTIONS)}")
    return {**row, "text": f"{_value(row, 'premise', str, where)} {QUESTIONS[question]}"}


def wic(row: Row, where: object) -> Row:
    """The row with ``text`` and ``pair``: both sentences, the word in question within asterisks."""
    marked = []
    for number in (1, 2):
        sentence = _value(row, f"sentence{number}", str, where)
        start, end = (_value(row, f"{end}{number}", int, where) for end in ("start", "end"))
        if not 0 <= start < end <= len(sentence):
            raise InvalidText(
                f"{where} has its word from character {start} to {end} of sentence{number}, which has "
                f"{len(sentence)}; give offsets within it"
            )
        marked.append(_marked(sentence, [(start, end, "*")]))
    return {**row, "text": marked[0], "pair": marked[1]}


def wsc(row: Row, where: object) -> Row:
    """The row with ``text`` marked: the noun phrase within asterisks, the pronoun within number signs.

    Offsets in these rows count words. The marks are those of T5 (Raffel et al. 2020).
    """
    text, target = _value(row, "text", str, where), _value(row, "target", dict, where)
    starts = [place for place in range(len(text)) if _begins_word(text, place)]
    spans = []
    for number, mark in ((1, "*"), (2, "#")):
        span = _value(target, f"span{number}_text", str, where)
        index = _value(target, f"span{number}_index", int, where)
        if not 0 <= index < len(starts):
            raise InvalidText(
                f"{where} has span{number}_index {index}, and its text has {len(starts)} words; give the "
                "number of one, counted from 0"
            )
        start = starts[index]
        spans.append((start, _end_of(text, start, span), mark))
    return {**row, "text": _marked(text, spans)}


LAYOUTS: Mapping[Layout, Callable[[Row, object], Row]] = {"copa": copa, "wic": wic, "wsc": wsc}


def _value(row: Row, column: str, kind: type, where: object) -> Any:
    value = row.get(column)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidText(
            f"{where} has {quoted(value)} under {column!r}; give {_KINDS[kind]}, as SuperGLUE's files have"
        )
    return value


_KINDS = {str: "text", int: "a whole number", dict: "an object"}


def _begins_word(text: str, place: int) -> bool:
    return not text[place].isspace() and (place == 0 or text[place - 1].isspace())


def _end_of(text: str, start: int, span: str) -> int:
    """The end of a span: after its characters where the text has them, else after as many words."""
    if text[start : start + len(span)].lower() == span.lower():
        return start + len(span)
    end = start
    for _ in span.split():
        end = next((place for place in range(end + 1, len(text)) if _begins_word(text, place)), len(text))
    return start + len(text[start:end].rstrip())


def _marked(text: str, spans: list[tuple[int, int, str]]) -> str:
    """The text with each span between two of its marks."""
    for start, end, mark in sorted(spans, reverse=True):
        text = f"{text[:start]}{mark}{text[start:end]}{mark}{text[end:]}"
    return text
