"""Figures of an encoder on labeled examples, predicted as any text is: packed, and in windows where long."""

from collections.abc import Sequence

import numpy as np

from unmask.finetuning.examples import ROLE_OF, Example, Preparation
from unmask.finetuning.metrics import (
    answer_figures,
    class_figures,
    entity_figures,
    multi_label_figures,
    number_figures,
)
from unmask.model.engine import Engine
from unmask.model.spec import Classifier
from unmask.tasks.aligned import aligned_logits
from unmask.tasks.answer import answer
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.choose import choose
from unmask.tasks.classify import classifier_of, classify
from unmask.tasks.long_texts import WindowedLogits, logits_of_windows
from unmask.tasks.progress import Progress
from unmask.tasks.schemes import Scheme, entities_of
from unmask.tasks.tag import tag


def evaluate(
    engine: Engine,
    preparation: Preparation,
    examples: Sequence[Example],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Figures of the task on examples with gold labels; see `unmask.finetuning.metrics`."""
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
            return number_figures(np.array([float(one.gold[0]) for one in examples]), numbers)
        case "multi_label":
            found = [[name in one.labels for name in preparation.labels] for one in classify(head, read)]
            return multi_label_figures(np.array([one.gold > 0.5 for one in examples]), np.array(found))
        case _:
            place = {name: number for number, name in enumerate(preparation.labels)}
            classes = np.array([place[one.label] for one in classify(head, read)])
            return class_figures(np.array([int(one.gold) for one in examples]), classes, preparation.labels)


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
) -> dict[str, float]:
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
    right = [one.index == int(example.gold) for one, example in zip(found, examples, strict=True)]
    return {"accuracy": float(np.mean(right))}


def _tags(head: Classifier, read: Sequence[WindowedLogits], examples: Sequence[Example]) -> dict[str, float]:
    """Accuracy over words, and figures of entities where the labels are a tagging scheme."""
    scheme = Scheme(head.labels or ())
    predicted = tag(head, read)
    right = words = 0
    gold_spans, found_spans = [], []
    for example, one in zip(examples, predicted, strict=True):
        gold = [scheme.labels[number] for number in example.gold]
        found = one.labels(len(gold))
        right += sum(ours == theirs for ours, theirs in zip(found, gold, strict=True))
        words += len(gold)
        gold_spans.append(entities_of(gold))
        found_spans.append(entities_of(found))
    figures = {"accuracy": right / max(1, words)}
    return figures | (entity_figures(gold_spans, found_spans) if scheme.has_entities else {})


def _answers(read: Sequence[WindowedLogits], examples: Sequence[Example]) -> dict[str, float]:
    with_null = any(not example.gold.answers for example in examples)
    found = {}
    for example, one in zip(examples, read, strict=True):
        best = answer([one], no_answer=with_null).answers
        found[example.gold.id] = best[0].text if best else ""
    return answer_figures({one.gold.id: [text for text, _ in one.gold.answers] for one in examples}, found)
