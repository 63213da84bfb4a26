"""Figures of an encoder on labeled examples, and their intervals; texts are predicted packed, in windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import Interval, percentile_interval, samples, wilson_interval
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.spec import Classifier
from unmask.tasks.aligned import of_groups
from unmask.tasks.answer import answer
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.choose import Choice, choose
from unmask.tasks.classify import classifier_of, classify
from unmask.tasks.logits import WindowedLogits, of_windows
from unmask.tasks.schemes import Scheme, entities_of
from unmask.tasks.tag import tag
from unmask.training.finetune.examples import Example, Preparation
from unmask.training.finetune.metrics import (
    RANKING_FIGURES,
    answer_figures,
    answer_scores,
    class_figures,
    entity_counts,
    entity_figures,
    multi_label_figures,
    number_figures,
)
from unmask.training.finetune.tasks import TASKS, Task

Scores = Callable[[NDArray[np.int64]], dict[str, float]]
"""Figures of a selection of examples, by their numbers; one may be selected several times."""


@dataclass(frozen=True)
class Predicted:
    """What a model predicts for examples, and what is right."""

    scores: Scores
    predictions: Sequence[Any]
    """For each example as in `unmask.training.finetune.metrics.Metrics`."""
    labels: Sequence[Any]
    lines: Callable[[], list[dict[str, Any]]]
    """Gives the line of each example in a file of predictions."""

    def figures(self) -> dict[str, float]:
        """The figures of all examples."""
        return self.scores(np.arange(len(self.labels)))


def evaluate(
    engine: Engine,
    preparation: Preparation,
    examples: Sequence[Example],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Figures of the task on examples with gold labels; see `unmask.training.finetune.metrics`."""
    result = predicted(engine, preparation, examples, tokens_per_pass=tokens_per_pass, progress=progress)
    return result.figures()


def predicted(
    engine: Engine,
    preparation: Preparation,
    examples: Sequence[Example],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> Predicted:
    """Predict all examples once."""
    role = TASKS[preparation.task].role
    if preparation.task == "multiple_choice":
        return choices_judged(read_choices(engine, examples, tokens_per_pass, progress), examples)
    windowed = read_examples(engine, role, examples, tokens_per_pass=tokens_per_pass, progress=progress)
    return judged(classifier_of(engine.spec, role, "the model"), preparation, examples, windowed)


def judged(
    head: Classifier,
    preparation: Preparation,
    examples: Sequence[Example],
    windowed: Sequence[WindowedLogits],
) -> Predicted:
    """What the logits of examples predict, for every task but multiple choice."""
    match preparation.task:
        case "answering":
            return _answers(windowed, examples)
        case "tagging":
            return _tags(head, windowed, examples)
        case "regression":
            numbers = np.array([prediction.score for prediction in classify(head, windowed)])
            targets = np.array([float(example.gold[0]) for example in examples])
            return Predicted(
                lambda chosen: number_figures(targets[chosen], numbers[chosen]),
                numbers.tolist(),
                targets.tolist(),
                lambda: [{"score": number} for number in numbers.tolist()],
            )
        case "multi_label":
            several = classify(head, windowed)
            applied = np.array(
                [[name in prediction.labels for name in preparation.labels] for prediction in several]
            )
            gold = np.array([example.gold > 0.5 for example in examples])
            return Predicted(
                lambda chosen: multi_label_figures(gold[chosen], applied[chosen]),
                [prediction.labels for prediction in several],
                gold_labels(preparation, examples),
                lambda: [
                    {"labels": list(prediction.labels), "scores": prediction.scores} for prediction in several
                ],
            )
        case "classification":
            single = classify(head, windowed)
            place = {name: number for number, name in enumerate(preparation.labels)}
            classes = np.array([place[prediction.label] for prediction in single])
            right = np.array([int(example.gold) for example in examples])
            return Predicted(
                lambda chosen: class_figures(right[chosen], classes[chosen], preparation.labels),
                [prediction.label for prediction in single],
                gold_labels(preparation, examples),
                lambda: [
                    {"label": prediction.label, "score": prediction.score, "scores": prediction.scores}
                    for prediction in single
                ],
            )
        case "multiple_choice" | "retrieval":
            raise ValueError("these have no logits of windows")
        case _:
            assert_never(preparation.task)


def gold_labels(preparation: Preparation, examples: Sequence[Example]) -> list[Any]:
    """The gold label of each example as `Predicted.labels` has it."""
    names = preparation.labels
    match preparation.task:
        case "classification":
            return [names[int(example.gold)] for example in examples]
        case "multi_label":
            return [
                tuple(name for name, does in zip(names, example.gold > 0.5, strict=True) if does)
                for example in examples
            ]
        case "tagging":
            return [[names[number] for number in example.gold] for example in examples]
        case "regression":
            return [float(example.gold[0]) for example in examples]
        case "answering":
            return [tuple(text for text, _ in example.gold.answers) for example in examples]
        case "multiple_choice":
            return [int(example.gold) for example in examples]
        case "retrieval":
            raise ValueError("documents have no labels")
        case _:
            assert_never(preparation.task)


def figure_names(task: Task, labels: Sequence[str]) -> tuple[str, ...]:
    """The figures that `evaluate` gives; of entities, those of the types among the labels."""
    zero, none = np.zeros(1, dtype=np.int64), np.zeros((1, len(labels)), dtype=np.bool_)
    match task:
        case "classification":
            return tuple(class_figures(zero, zero, labels))
        case "multi_label":
            return tuple(multi_label_figures(none, none))
        case "regression":
            return tuple(number_figures(zero.astype(np.float64), zero.astype(np.float64)))
        case "answering":
            return tuple(answer_figures(zero.astype(np.float64), zero.astype(np.float64)))
        case "multiple_choice" | "retrieval":
            return RANKING_FIGURES if task == "retrieval" else ("accuracy",)
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
    ready = of_windows(
        role,
        [example.encoding for example in examples],
        [example.windows for example in examples],
        list[WindowedLogits],
        name=lambda index: examples[index].record.where,
    )
    return ready(engine, tokens_per_pass=tokens_per_pass, progress=progress)


def read_choices(
    engine: Engine,
    examples: Sequence[Example],
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> list[Choice]:
    """The choice that the head of a multiple choice takes for each question."""
    choices = [example.record.choices or () for example in examples]
    ready = of_groups(
        "choice",
        [example.choices for example in examples if example.choices is not None],
        lambda windowed: choose(windowed, choices),
        name=lambda index: examples[index].record.where,
    )
    return ready(engine, tokens_per_pass=tokens_per_pass, progress=progress)


def choices_judged(choices: Sequence[Choice], examples: Sequence[Example]) -> Predicted:
    """The share of questions whose right choice is the most probable one."""
    chosen, gold = [choice.index for choice in choices], [int(example.gold) for example in examples]
    right = np.array(chosen) == np.array(gold)
    return Predicted(
        lambda selected: {"accuracy": float(np.mean(right[selected]))},
        chosen,
        gold,
        lambda: [
            {"choice": choice.index, "score": choice.score, "scores": choice.scores} for choice in choices
        ],
    )


def _tags(head: Classifier, windowed: Sequence[WindowedLogits], examples: Sequence[Example]) -> Predicted:
    """Accuracy over words, and figures of entities where the labels are a tagging scheme."""
    scheme = Scheme(head.labels or ())
    gold = [[scheme.labels[number] for number in example.gold] for example in examples]
    tags = [tagging.labels(len(labels)) for tagging, labels in zip(tag(head, windowed), gold, strict=True)]
    scores = entity_scorer(gold, tags, entities=scheme.has_entities)
    return Predicted(scores, tags, gold, lambda: [{"labels": labels} for labels in tags])


def entity_scorer(
    gold: Sequence[Sequence[str]], tagged: Sequence[Sequence[str]], *, entities: bool = True
) -> Scores:
    """The accuracy of words, and figures of entities, of a selection of texts with labeled words."""
    right = np.array([sum(map(str.__eq__, *pair)) for pair in zip(tagged, gold, strict=True)])
    words = np.array([len(labels) for labels in gold])
    counts = entity_counts(*([entities_of(labels) for labels in part] for part in (gold, tagged)))

    def scores(chosen: NDArray[np.int64]) -> dict[str, float]:
        figures = {"accuracy": int(right[chosen].sum()) / max(1, int(words[chosen].sum()))}
        return figures | counts.figures(chosen) if entities else figures

    return scores


def _answers(windowed: Sequence[WindowedLogits], examples: Sequence[Example]) -> Predicted:
    with_null = any(not example.gold.answers for example in examples)
    best = [answer([text], no_answer=with_null).answers for text in windowed]
    texts = [answers[0].text if answers else "" for answers in best]
    gold = [tuple(text for text, _ in example.gold.answers) for example in examples]
    exact_S, overlap_S = np.array([answer_scores(*pair) for pair in zip(gold, texts, strict=True)]).T
    return Predicted(
        lambda chosen: answer_figures(exact_S[chosen], overlap_S[chosen]),
        texts,
        gold,
        lambda: list(map(_answer_line, windowed)),
    )


def _answer_line(windowed: WindowedLogits) -> dict[str, Any]:
    """The best span, and how probable it is that there is no answer."""
    answers = answer([windowed], no_answer=True, null_threshold=1.0)
    best = answers.answers[0] if answers.answers else None
    row: dict[str, Any] = {"answer": "", "score": 0.0}
    if best is not None:
        row = {"answer": best.text, "start": best.start, "end": best.end, "score": best.score}
    return row | {"no_answer": answers.null_score}


def intervals(scores: Scores, texts: int, task: Task) -> dict[str, Interval]:
    """The interval of every figure.

    That of a share of texts is Wilson's (1927); those of other figures are between percentiles of their
    values on samples of the texts with replacement (bootstrap).

    Args:
        scores: figures of a selection of texts.
        texts: number of texts.
        task: decides which figure is a share of texts.
    """
    whole = scores(np.arange(texts))
    resampled = [scores(chosen) for chosen in samples(texts)]
    between = {}
    for name, value in whole.items():
        if TASKS[task].share == name:
            between[name] = wilson_interval(value, texts)
        else:
            # A type of entity may be missing from a sample.
            between[name] = percentile_interval([sample[name] for sample in resampled if name in sample])
    return between
