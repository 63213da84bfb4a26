"""Sentences about labeled data and about predictions, which figures alone do not say."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from unmask.errors import quoted
from unmask.tasks.schemes import Scheme
from unmask.training.finetune.examples import Counts, Example
from unmask.training.finetune.tasks import TASKS, Task
from unmask.training.run.report import counted


def describe(name: str, counts: Counts, texts: Sequence[Example]) -> list[str]:
    """Sentences about labeled data: sizes, labels, truncation, duplicates."""
    sentences = [
        f"{name}: {counted(counts.texts, 'text')} of {counts.tokens / max(1, counts.texts):.0f} tokens on "
        f"average, the longest {counts.longest:,}"
    ]
    if counts.labels:
        total = sum(counts.labels.values())
        shares = ", ".join(
            f"{label!r} {count:,} ({count / total:.1%})" for label, count in counts.labels.most_common(12)
        )
        more = f" and {len(counts.labels) - 12} more" if len(counts.labels) > 12 else ""
        sentences.append(f"{name}: labels {shares}{more}")
    if counts.unanswered:
        has = "has" if counts.unanswered == 1 else "have"
        sentences.append(f"{name}: {counted(counts.unanswered, 'question')} {has} no answer")
    if counts.truncated:
        sentences.append(
            f"{name}: the end of {counted(counts.truncated, 'text')} is dropped, "
            f"{counted(counts.truncated_tokens, 'token')} in all"
        )
    if counts.windowed:
        are = "is" if counts.windowed == 1 else "are"
        sentences.append(f"{name}: {counted(counts.windowed, 'text')} {are} read in several windows")
    seen = Counter(map(_text_of, texts))
    twice = sum(count - 1 for count in seen.values())
    if twice:
        repeat = "repeats" if twice == 1 else "repeat"
        sentences.append(f"{name}: {counted(twice, 'text')} {repeat} another")
    return sentences


def leakage(train: Sequence[Example], dev: Sequence[Example]) -> str | None:
    """A sentence about dev texts that are also trained on; None if there are none."""
    seen = set(map(_text_of, train))
    shared = sum(_text_of(example) in seen for example in dev)
    if not shared:
        return None
    return f"dev: {shared:,} of {counted(len(dev), 'text')} {'is' if shared == 1 else 'are'} also trained on"


def _text_of(example: Example) -> Any:
    """What makes two examples the same text."""
    return example.record.text, example.record.pair, example.record.choices


REMEDY = "train for more steps or with a higher learning rate, or look at how often each label occurs"


def one_sided(
    task: Task, predictions: Sequence[Any], labels: Sequence[Any], where: str = "dev"
) -> str | None:
    """A sentence about a model that predicts no label for anything, or one label for everything, where the
    gold labels differ; None for any other model.

    Args:
        task: what is predicted.
        predictions: see `unmask.training.finetune.metrics.Metrics`.
        labels: the gold ones.
        where: the data.
    """
    if not predictions or task in ("regression", "retrieval"):
        return None
    predicted: set[Any] = set()
    gold: set[Any] = set()
    for prediction, right in zip(predictions, labels, strict=True):
        predicted.update(prediction if task == "tagging" else [prediction])
        gold.update(right if task == "tagging" else [right])
    if task == "answering":
        gold = {""} if not any(labels) else gold
    if len(predicted) != 1 or gold == predicted:
        return None
    (only,) = predicted
    what = counted(len(predictions), TASKS[task].unit)
    if task == "multi_label" and not only:
        return f"{where}: the model predicts no label for any of {what}; {REMEDY}"
    if task == "answering":
        return None if only else f"{where}: the model gives no answer to any of {what}; {REMEDY}"
    if task == "tagging" and only == "O" and Scheme(tuple(sorted(gold))).has_entities:
        return f"{where}: the model predicts no entity in any of {what}; {REMEDY}"
    name = ", ".join(only) if isinstance(only, tuple) else only
    each = "every word" if task == "tagging" else "each"
    return f"{where}: the model predicts {quoted(name)} for {each} of {what}; {REMEDY}"
