"""Whether a model predicts the same for everything, which figures alone do not say."""

from collections.abc import Sequence
from typing import Any

from unmask.errors import quoted
from unmask.tasks.schemes import Scheme
from unmask.training.finetune.tasks import TASKS, Task
from unmask.training.run.report import counted

REMEDY = "train for more steps or with a higher learning rate, or look at how often each label occurs"


def one_sided(
    task: Task, predictions: Sequence[Any], labels: Sequence[Any], where: str = "dev"
) -> str | None:
    """A sentence about a model that predicts no label for anything, or one label for everything, where the
    gold labels differ; None for any other model.

    Args:
        task: what is predicted.
        predictions: see `unmask.training.finetune.own_metrics.Metrics`.
        labels: the gold ones.
        where: the data.
    """
    if not predictions or task in ("regression", "retrieval"):
        return None
    said: set[Any] = set()
    gold: set[Any] = set()
    for one, right in zip(predictions, labels, strict=True):
        said.update(one if task == "tagging" else [one])
        gold.update(right if task == "tagging" else [right])
    if task == "answering":
        gold = {""} if not any(labels) else gold
    if len(said) != 1 or gold == said:
        return None
    (only,) = said
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
