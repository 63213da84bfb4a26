"""Class names, problem type and temperature of a classifier in config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, quoted
from unmask.spec import ROLES, Classifier, Head

OWN = "unmask"
"""The key of config.json for what other libraries do not know."""

HOTTEST = 1e6
"""A temperature above it is damage: all probabilities would be equal."""

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


def default_labels(classes: int) -> tuple[str, ...]:
    """The default class names of `transformers`."""
    return tuple(f"LABEL_{number}" for number in range(classes))


def with_labels(head: Head, config: JsonSettings) -> Head:
    """The head with the class names and problem type of config.json; default names count as none.

    Raises:
        CorruptCheckpoint: there is not exactly one name per class.
        UnknownArchitecture: an unknown problem type.
    """
    if not isinstance(head, Classifier) or not ROLES[head.role].has_labels:
        return head
    config.get_optional("label2id", dict)  # the inverse of id2label, which is written again
    if head.role == "sequence":
        config.require_one_of("problem_type", *PROBLEM_TYPES)
        head = replace(head, problem_type=config.values.get("problem_type"), temperature=_temperature(config))
    id2label = config.get_optional("id2label", dict)
    if id2label is None:
        return head
    names = [id2label.get(str(number)) for number in range(head.classes)]
    if len(id2label) != head.classes or not all(isinstance(name, str | int | float) for name in names):
        raise CorruptCheckpoint(
            f"{config.name} says id2label is {quoted(id2label)}; the head has {head.classes} classes, "
            f'so it must name each of "0" to "{head.classes - 1}"'
        )
    labels = tuple(map(str, names))
    return replace(head, labels=None if labels == default_labels(head.classes) else labels)


def _temperature(config: JsonSettings) -> float:
    """What this project alone knows of a classifier: ``{"unmask": {"temperature": 1.5}}``; 1 if absent.

    Raises:
        CorruptCheckpoint: it is not a number above 0, or there are other keys.
    """
    settings = config.get_optional(OWN, dict)
    if settings is None:
        return 1.0
    value = settings.get("temperature")
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < HOTTEST
        or set(settings) != {"temperature"}
    ):
        raise CorruptCheckpoint(
            f'{config.name} says {OWN} is {quoted(settings)}; it must be {{"temperature": a number above 0}}'
        )
    return float(value)


def write_labels(head: Head) -> Mapping[str, Any]:
    """The keys that `with_labels` reads. An absent key means two classes without names."""
    if not isinstance(head, Classifier) or not ROLES[head.role].has_labels:
        return {}
    written: dict[str, Any] = {}
    if head.problem_type is not None:
        written["problem_type"] = head.problem_type
    if head.temperature != 1:
        written[OWN] = {"temperature": head.temperature}
    if head.labels is not None or head.classes != 2:
        written |= labels_by_number(head.labels or default_labels(head.classes))
    return written


def labels_by_number(labels: Sequence[str]) -> dict[str, Any]:
    """The keys of config.json for the names of classes."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
