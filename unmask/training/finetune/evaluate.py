"""Figures of an encoder on labeled examples, predicted as any text is: packed, and in windows where long."""

from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Engine
from unmask.spec import Classifier
from unmask.tasks.aligned import aligned_logits
from unmask.tasks.answer import answer
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.choose import choose
from unmask.tasks.classify import classifier_of, classify
from unmask.tasks.long_texts import WindowedLogits, logits_of_windows
from unmask.tasks.progress import Progress
from unmask.tasks.schemes import Scheme, entities_of
from unmask.tasks.tag import tag
from unmask.training.finetune.examples import ROLE_OF, Example, Preparation
from unmask.training.finetune.metrics import (
    answer_figures,
    answer_scores,
    class_figures,
    entity_figures,
    multi_label_figures,
    number_figures,
)
from unmask.training.finetune.settings import Task
from unmask.training.retrieval.figures import FIGURES

Scores = Callable[[NDArray[np.int64]], dict[str, float]]
"""Figures of a selection of examples, by their numbers; one may be selected several times."""


def evaluate(
    engine: Engine,
    preparation: Preparation,
    examples: Sequence[Example],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Figures of the task on examples with gold labels; see `unmask.training.finetune.metrics`."""
    scores = predicted(engine, preparation, examples, tokens_per_pass=tokens_per_pass, progress=progress)
    return scores(np.arange(len(examples)))


def predicted(
    engine: Engine,
    preparation: Preparation,
    examples: Sequence[Example],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> Scores:
    """Predict all examples once, and return what computes the figures of any of them."""
    role = ROLE_OF[preparation.task]
    if preparation.task == "multiple_choice":
        return _choices(engine, examples, tokens_per_pass, progress)
    read = read_examples(engine, role, examples, tokens_per_pass=tokens_per_pass, progress=progress)
    if preparation.task == "answering":
        return _answers(read, examples)
    head = classifier_of(engine.spec, role, preparation.task, "the model")
    match preparation.task:
        case "tagging":
            return _tags(head, read, examples)
        case "regression":
            numbers = np.array([one.score for one in classify(head, read)])
            wanted = np.array([float(one.gold[0]) for one in examples])
            return lambda some: number_figures(wanted[some], numbers[some])
        case "multi_label":
            found = np.array(
                [[name in one.labels for name in preparation.labels] for one in classify(head, read)]
            )
            gold = np.array([one.gold > 0.5 for one in examples])
            return lambda some: multi_label_figures(gold[some], found[some])
        case _:
            place = {name: number for number, name in enumerate(preparation.labels)}
            classes = np.array([place[one.label] for one in classify(head, read)])
            right = np.array([int(one.gold) for one in examples])
            return lambda some: class_figures(right[some], classes[some], preparation.labels)


def figure_names(task: Task, labels: Sequence[str]) -> tuple[str, ...]:
    """The figures that `evaluate` gives; of entities, those of the types among the labels."""
    one, none = np.zeros(1, dtype=np.int64), np.zeros((1, len(labels)), dtype=np.bool_)
    match task:
        case "classification":
            return tuple(class_figures(one, one, labels))
        case "multi_label":
            return tuple(multi_label_figures(none, none))
        case "regression":
            return tuple(number_figures(one.astype(np.float64), one.astype(np.float64)))
        case "answering":
            return tuple(answer_figures(one.astype(np.float64), one.astype(np.float64)))
        case "multiple_choice" | "retrieval":
            return FIGURES if task == "retrieval" else ("accuracy",)
        case "tagging":
            spans = entities_of(labels) if Scheme(tuple(labels)).has_entities else None
            return ("accuracy", *({} if spans is None else entity_figures([spans], [spans])))
        case _:
            assert_never(task)


def read_examples(
    engine: Engine,
    role: str,
    examples: Sequence[Example],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> list[WindowedLogits]:
    """A head's logits for examples."""
    return logits_of_windows(
        engine,
        role,
        [example.encoding for example in examples],
        [example.windows for example in examples],
        tokens_per_pass=tokens_per_pass,
        progress=progress,
        name=lambda index: examples[index].record.where,
    )


def _choices(
    engine: Engine, examples: Sequence[Example], tokens_per_pass: int, progress: Progress | None
) -> Scores:
    """The share of questions whose right choice is the most probable one."""
    read = aligned_logits(
        engine,
        "choice",
        [example.choices for example in examples if example.choices is not None],
        tokens_per_pass=tokens_per_pass,
        progress=progress,
        name=lambda index: examples[index].record.where,
    )
    found = choose(read, [example.record.choices or () for example in examples])
    right = np.array([one.index == int(example.gold) for one, example in zip(found, examples, strict=True)])
    return lambda some: {"accuracy": float(np.mean(right[some]))}


def _tags(head: Classifier, read: Sequence[WindowedLogits], examples: Sequence[Example]) -> Scores:
    """Accuracy over words, and figures of entities where the labels are a tagging scheme."""
    scheme = Scheme(head.labels or ())
    gold = [[scheme.labels[number] for number in example.gold] for example in examples]
    found = [one.labels(len(labels)) for one, labels in zip(tag(head, read), gold, strict=True)]
    right = np.array([sum(map(str.__eq__, *pair)) for pair in zip(found, gold, strict=True)])
    words = np.array([len(labels) for labels in gold])
    gold_spans, found_spans = [entities_of(labels) for labels in gold], [entities_of(one) for one in found]

    def scores(some: NDArray[np.int64]) -> dict[str, float]:
        figures = {"accuracy": int(right[some].sum()) / max(1, int(words[some].sum()))}
        if not scheme.has_entities:
            return figures
        pairs = [(gold_spans[number], found_spans[number]) for number in some]
        return figures | entity_figures([one for one, _ in pairs], [other for _, other in pairs])

    return scores


def _answers(read: Sequence[WindowedLogits], examples: Sequence[Example]) -> Scores:
    with_null = any(not example.gold.answers for example in examples)
    best = [answer([one], no_answer=with_null).answers for one in read]
    found = [some[0].text if some else "" for some in best]
    gold = [[text for text, _ in example.gold.answers] for example in examples]
    exact_S, overlap_S = np.array([answer_scores(*pair) for pair in zip(gold, found, strict=True)]).T
    return lambda some: answer_figures(exact_S[some], overlap_S[some])
