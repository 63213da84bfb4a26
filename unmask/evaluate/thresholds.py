"""Thresholds for labels that are named with the texts, fitted to labeled texts.

Axes: K entities of one label that a model finds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_fraction, listed
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import Model, load
from unmask.tasks import Progress
from unmask.tasks.classify import THRESHOLD
from unmask.tasks.values import distinct_labels

LOWEST = 0.05
"""No lower threshold is tried: a head finds more spans the lower it is."""

Places = list[tuple[int, int, str]]
"""The entities of a text: first character, that after the last, label."""


class Agreement(NamedTuple):
    """How the entities that are found agree with those of labeled texts."""

    precision: float
    """The share of those found that are right; 0 if none is found."""
    recall: float
    """The share of those in the texts that are found; 0 if there is none."""
    f1: float
    found: int


@dataclass(frozen=True)
class FittedThreshold:
    """A threshold of one label, and what it changes."""

    threshold: float
    """The middle between the lowest score that is taken and the next one; 0.5 if none helps."""
    fitted: Agreement
    """With the thresholds of all labels."""
    usual: Agreement
    """With 0.5 for all labels."""
    gold: int
    """Entities of the label in the texts."""


def fit_thresholds(
    model: str | Path | Model,
    texts: Sequence[str],
    entities: Sequence[Sequence[tuple[int, int, str]]],
    labels: Sequence[str],
    *,
    lowest: float = LOWEST,
    nested: bool = False,
    multi_label: bool = False,
    progress: Progress | None = None,
) -> dict[str, FittedThreshold]:
    """For each label the threshold with the highest F1 on labeled texts, for ``threshold`` of `Model.tag`.

    The entities above ``lowest`` are found once. Of each label, every number of the best ones is tried; of
    equal F1 the smallest number is taken. Then the texts are read with all thresholds, since an entity that
    is left out makes room for others. The figures are of the texts that the thresholds were fitted to, so
    other texts will have lower ones, the more so the fewer entities a label has.

    Args:
        model: a checkpoint of GLiNER, or its name.
        texts: labeled texts.
        entities: for each text its entities: offset of the first character, that after the last, label.
        labels: the labels to find.
        lowest: the lowest threshold that is tried.
        nested: whether entities may lie inside others.
        multi_label: whether the same words may have several labels.
        progress: called with (windows done, windows in all), of three passes.

    Raises:
        TextError: a text is empty, or not Unicode text.
        InvalidRequest: there are no texts, not as many lists of entities, an entity is not in its text or has
            another label, or the model has no head for such labels.
    """
    check_fraction("lowest", lowest)
    names = distinct_labels("labels", labels)
    all_texts = listed("texts", texts)
    gold = _checked(all_texts, entities, names)
    loaded = model if isinstance(model, Model) else load(model)

    def found(threshold: Any) -> list[list[tuple[tuple[int, int, str], float]]]:
        taggings = loaded.tag(
            all_texts,
            labels=names,
            threshold=threshold,
            nested=nested,
            multi_label=multi_label,
            progress=progress,
        )
        return [[((it.start, it.end, it.label), it.score) for it in one.entities] for one in taggings]

    candidates = found(lowest)
    thresholds = {label: _best(label, candidates, gold, lowest) for label in names}
    usual, fitted = found(THRESHOLD), found(thresholds)
    return {
        label: FittedThreshold(
            thresholds[label],
            _agreement(label, fitted, gold),
            _agreement(label, usual, gold),
            sum(it[2] == label for places in gold for it in places),
        )
        for label in names
    }


def best_threshold(
    scores_K: NDArray[np.float64], right_K: NDArray[np.bool_], gold: int, lowest: float
) -> float | None:
    """The threshold with the highest F1, see `fit_thresholds`; None if none finds a right entity.

    Args:
        scores_K: of what is found above ``lowest``.
        right_K: whether each is right.
        gold: how many there are to be found.
        lowest: below the scores.
    """
    order = np.argsort(-scores_K, kind="stable")
    scores, right = scores_K[order], np.cumsum(right_K[order])
    following = np.append(scores[1:], lowest)
    f1 = np.where(scores > following, 2 * right / (np.arange(1, len(scores) + 1) + gold), 0)
    if not f1.size or f1.max() == 0:
        return None
    best = int(f1.argmax())
    return float((scores[best] + following[best]) / 2)


def _best(label: str, candidates: Sequence[Any], gold: Sequence[set[Any]], lowest: float) -> float:
    of_label = [
        (score, place in places)
        for found, places in zip(candidates, gold, strict=True)
        for place, score in found
        if place[2] == label
    ]
    scores, right = (np.array([row[column] for row in of_label]) for column in (0, 1))
    count = sum(it[2] == label for places in gold for it in places)
    best = best_threshold(scores.astype(np.float64), right.astype(np.bool_), count, lowest)
    return THRESHOLD if best is None else best


def _agreement(label: str, found: Sequence[Any], gold: Sequence[set[Any]]) -> Agreement:
    ours = [{place for place, _ in some if place[2] == label} for some in found]
    right = sum(len(some & places) for some, places in zip(ours, gold, strict=True))
    predicted = sum(map(len, ours))
    count = sum(it[2] == label for places in gold for it in places)
    return Agreement(
        right / max(predicted, 1), right / max(count, 1), 2 * right / max(predicted + count, 1), predicted
    )


def _checked(texts: Sequence[Any], entities: Any, names: Sequence[str]) -> list[set[tuple[int, int, str]]]:
    """The entities of each text.

    Raises:
        InvalidRequest: see `fit_thresholds`.
    """
    lists = listed("entities", entities)
    if not texts:
        raise InvalidRequest("texts is empty; give at least one labeled text")
    if len(lists) != len(texts):
        raise InvalidRequest(
            f"{len(texts)} texts and {len(lists)} lists of entities were given; give a list for each text"
        )
    gold = []
    for number, (text, some) in enumerate(zip(texts, lists, strict=True), start=1):
        places = set()
        for entity in listed(f"the entities of text {number}", some):
            if not _is_entity(entity):
                raise InvalidRequest(
                    f"text {number} has the entity {quoted(entity)}; give (first character, that after the "
                    "last, label)"
                )
            start, end, label = int(entity[0]), int(entity[1]), entity[2]
            if isinstance(text, str) and not 0 <= start < end <= len(text):
                raise InvalidRequest(
                    f"text {number} has an entity from {start} to {end}, and it has {len(text)} characters"
                )
            if label not in names:
                raise InvalidRequest(
                    f"text {number} has an entity with the label {quoted(label)}, which is not among the "
                    "labels; add it to labels, or leave such entities out"
                )
            places.add((start, end, label))
        gold.append(places)
    return gold


def _is_entity(entity: Any) -> bool:
    return (
        isinstance(entity, Sequence)
        and len(entity) == 3
        and all(isinstance(it, int | np.integer) and not isinstance(it, bool) for it in entity[:2])
        and isinstance(entity[2], str)
    )
