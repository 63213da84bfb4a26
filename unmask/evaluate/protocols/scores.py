"""Scores of a loaded model on labeled files: entities by seqeval's rules, classes; and their 95 % intervals.

Axes: S texts; C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import Interval, percentile_interval, sample_counts
from unmask.base.progress import Progress
from unmask.errors import InvalidRequest, InvalidText
from unmask.models.load import load
from unmask.models.model import Model
from unmask.spec import Classifier
from unmask.tasks.classify import classifier_of, classify, label_names, problem_of
from unmask.tasks.logits import WindowedLogits
from unmask.tasks.schemes import Scheme, entities_of
from unmask.tasks.tag import tag
from unmask.training.finetune.calibration import calibration_figures
from unmask.training.finetune.evaluate import entity_scorer, intervals, predicted, read_examples
from unmask.training.finetune.examples import Counts, Example, Preparation, check_kinds, label_name
from unmask.training.finetune.metrics import class_figures, entity_figures
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.settings import DataSettings, FinetuneSettings, ModelSettings
from unmask.training.finetune.tasks import TASKS, Task


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of one class or type of entity."""

    precision: float
    recall: float
    f1: float
    gold: int
    """How many there are."""
    predicted: int
    """How many the model predicts."""


@dataclass(frozen=True)
class ClassificationScores:
    """Scores of a classifier of texts."""

    model: str
    source: str
    texts: int
    accuracy: float
    macro_f1: float
    matthews: float
    classes: Mapping[str, ClassScores]
    confusion: tuple[tuple[int, ...], ...]
    """Texts by gold class (rows) and predicted class (columns), in the order of `classes`."""
    calibration: Mapping[str, float]
    """See `unmask.training.finetune.calibration.calibration_figures`."""
    truncated_texts: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence interval of each figure, by its name; ``f1[...]`` is that of a class."""


@dataclass(frozen=True)
class EntityScores:
    """Scores of entities by seqeval's rules in its default mode: exact type and bounds."""

    model: str
    source: str
    sentences: int
    words: int
    accuracy: float
    """Of words."""
    precision: float
    recall: float
    f1: float
    types: Mapping[str, ClassScores]
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence interval of each figure, by its name; ``f1[...]`` is that of a type."""


def prepared_examples(
    model: Model, task: Task, data: DataSettings, base: Path
) -> tuple[Preparation, Classifier, list[Example], Counts]:
    """Labeled files of ``data.dev`` as tokenized examples, with the labels of the model's head.

    Raises:
        InvalidRequest: the model has no head for the task, or a file no such column.
        InvalidText: a line is damaged, or its label is unknown to the head.
    """
    head = classifier_of(model.spec, TASKS[task].role, model.name)
    settings = FinetuneSettings("evaluate", task, ModelSettings(model.name), data)
    records = list(read_labeled(data.dev, data, base, offsets=False))
    check_kinds(records, task)
    if not records:
        raise InvalidText(f"{', '.join(data.dev)} has no labeled text; name a file with at least one")
    labels = label_names(head) if TASKS[task].has_labels else ()
    if labels:
        _refuse_unknown(model.name, task, records, data, labels)
    limits = [limit for limit in (data.max_tokens, model.max_tokens) if limit is not None]
    preparation = Preparation(settings, labels, model.tokenizer, model.spec, min(limits, default=None))
    counts = Counts()
    return preparation, head, preparation.examples(records, counts), counts


def labeled_figures(
    folder: Path, task: Task, data: DataSettings, base: Path
) -> tuple[dict[str, float], dict[str, Interval]]:
    """The figures of a fine-tuned model on ``data.dev``, see `unmask.training.finetune.metrics`, and the 95 %
    confidence interval of each."""
    model = load(folder)
    preparation, _, examples, _ = prepared_examples(model, task, data, base)
    predictions = predicted(model.engine, preparation, examples)
    return predictions.figures(), dict(intervals(predictions.scores, len(examples), task))


def classification_scores(
    model: Model, data: DataSettings, *, base: Path | None = None, progress: Progress | None = None
) -> ClassificationScores:
    """Score a classifier with one label for each text.

    Args:
        model: with a head for texts.
        data: the file as ``dev``, its columns, and what its labels are called.
        base: the folder that paths are relative to; None for the current one.
        progress: called with (windows done, windows in all).

    Raises:
        InvalidRequest: the model has no such head, or the file no such column.
        InvalidText: a line is damaged, or its label is unknown to the head.
    """
    head = classifier_of(model.spec, "sequence", model.name)
    if problem_of(head) != "single_label_classification":
        raise InvalidRequest(
            f"the head of {model.name} is for {problem_of(head).replace('_', ' ')}, and this evaluation is "
            "of one label for each text; use a model of that kind"
        )
    _, _, examples, counts = prepared_examples(model, "classification", data, base or Path())
    labels = label_names(head)
    results = classify(head, read_examples(model.engine, "sequence", examples, progress=progress))
    p_SC = np.array([[result.scores[label] for label in labels] for result in results])
    gold_S = np.array([int(example.gold) for example in examples])
    found_S = p_SC.argmax(-1)
    figures = class_figures(gold_S, found_S, labels)
    count = len(labels)
    table_CC = np.bincount(gold_S * count + found_S, minlength=count**2).reshape(count, count)
    return ClassificationScores(
        model.name,
        ", ".join(data.dev),
        len(examples),
        figures["accuracy"],
        figures["macro_f1"],
        figures["matthews"],
        {
            label: _scores(int(table_CC[c, c]), int(table_CC[:, c].sum()), int(table_CC[c].sum()))
            for c, label in enumerate(labels)
        },
        tuple(tuple(map(int, row)) for row in table_CC),
        calibration_figures(p_SC, gold_S),
        counts.truncated,
        class_intervals(p_SC, gold_S, labels),
    )


def entity_scores(
    model: Model, data: DataSettings, *, base: Path | None = None, progress: Progress | None = None
) -> EntityScores:
    """Score the entities that a tagger finds.

    Args:
        model: with a head for words.
        data: the file as ``dev``.
        base: the folder that paths are relative to; None for the current one.
        progress: called with (windows done, windows in all).

    Raises:
        InvalidRequest: the model has no such head, or its labels are not of a tagging scheme.
        InvalidText: a line is damaged, or its label is unknown to the head.
    """
    head = classifier_of(model.spec, "tokens", model.name)
    scheme = Scheme(label_names(head))
    if not scheme.has_entities:
        raise InvalidRequest(
            f"the labels of {model.name} ({', '.join(scheme.labels[:6])}) are of no tagging scheme such as "
            "B-PER, I-PER, O; use a model for entities"
        )
    _, _, examples, _ = prepared_examples(model, "tagging", data, base or Path())
    tagged = tag(head, read_examples(model.engine, "tokens", examples, progress=progress))
    gold = [[scheme.labels[number] for number in example.gold] for example in examples]
    predicted_labels = [tagging.labels(len(labels)) for tagging, labels in zip(tagged, gold, strict=True)]
    scores = scored_entities(gold, predicted_labels, model=model.name, source=", ".join(data.dev))
    return replace(scores, intervals=entity_intervals(gold, predicted_labels))


def scored_entities(
    gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], *, model: str = "", source: str = ""
) -> EntityScores:
    """Scores of predicted labels beside gold ones, sentence by sentence."""
    theirs, ours = [entities_of(labels) for labels in gold], [entities_of(labels) for labels in found]
    figures = entity_figures(theirs, ours)
    types = {}
    for kind in sorted({kind for some in (*theirs, *ours) for kind, *_ in some}):
        of_kind = [
            [[entity for entity in some if entity[0] == kind] for some in part] for part in (theirs, ours)
        ]
        right = sum(len(set(entities) & set(other)) for entities, other in zip(*of_kind, strict=True))
        gold_count, predicted_count = (sum(map(len, part)) for part in of_kind)
        types[kind] = _scores(right, predicted_count, gold_count)
    words = sum(map(len, gold))
    right = sum(sum(map(str.__eq__, *pair)) for pair in zip(gold, found, strict=True))
    return EntityScores(
        model,
        source,
        len(gold),
        words,
        right / max(1, words),
        figures["precision"],
        figures["recall"],
        figures["f1"],
        types,
    )


def read_answers(
    model: Model, data: DataSettings, base: Path, progress: Progress | None
) -> tuple[list[Example], list[WindowedLogits]]:
    """The questions of ``data.dev`` with what the model's head says of their contexts.

    Raises:
        InvalidRequest: the model has no head for spans.
        InvalidText: the file is damaged.
    """
    _, _, examples, _ = prepared_examples(model, "answering", replace(data, format="squad"), base)
    return examples, read_examples(model.engine, "span", examples, progress=progress)


def _scores(right: int, predicted: int, gold: int) -> ClassScores:
    return ClassScores(
        right / max(1, predicted), right / max(1, gold), 2 * right / max(1, predicted + gold), gold, predicted
    )


def _refuse_unknown(
    name: str, task: Task, records: Sequence[Labeled], data: DataSettings, labels: Sequence[str]
) -> None:
    for record in records:
        for label in [record.label] if task == "classification" else record.label:
            if label_name(label, data) not in labels:
                listed = ", ".join(labels[:12]) + (" and more" if len(labels) > 12 else "")
                raise InvalidText(
                    f"{record.where} has the label {label_name(label, data)!r}, and {name} predicts "
                    f"{listed}; give --rename-labels OLD=NEW, or use a model with these labels"
                )


def class_intervals(
    p_SC: NDArray[np.float64], gold_S: NDArray[np.int64], labels: Sequence[str]
) -> dict[str, Interval]:
    """Those of `class_figures` and of two of `calibration_figures`, over texts; of accuracy Wilson's."""
    found_S = p_SC.argmax(-1)

    def scores(some: NDArray[np.int64]) -> dict[str, float]:
        fit = calibration_figures(p_SC[some], gold_S[some])
        # A bootstrap of the calibration error is biased: it grows with the repeats of a sample.
        del fit["ece"]
        return class_figures(gold_S[some], found_S[some], labels) | fit

    return dict(intervals(scores, len(gold_S), "classification"))


def entity_intervals(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> dict[str, Interval]:
    """Those of the accuracy of words and of entities, over sentences."""
    return dict(intervals(entity_scorer(gold, found), len(gold), "tagging")) if gold else {}


def mean_intervals(columns: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Those of the means of some values, over the texts that have them."""
    intervals_of = {}
    for name, values in columns.items():
        if len(values):
            means = sample_counts(len(values)) @ np.asarray(values, dtype=np.float64) / len(values)
            intervals_of[name] = percentile_interval(means.tolist())
    return intervals_of
