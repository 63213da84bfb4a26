"""Names of classes in datasets, in place of the numbers that their columns hold."""

from collections.abc import Mapping, Sequence
from typing import Any


def class_names(features: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes in columns of the type ClassLabel, or of lists of it.

    Args:
        features: those of a dataset, as an object of `datasets` or as its dataset_info.json has them, or
            None.
    """
    plain = features.to_dict() if hasattr(features, "to_dict") else features
    found = {}
    for column, kind in plain.items() if isinstance(plain, Mapping) else ():
        while isinstance(kind, Mapping) and isinstance(kind.get("feature"), Mapping):
            kind = kind["feature"]  # noqa: PLW2901 - down to what a list holds
        if isinstance(kind, Mapping) and kind.get("_type") == "ClassLabel":
            found[column] = tuple(map(str, kind.get("names", ())))
    return found


def with_class_names(row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """A row with the names of its classes in place of their numbers; -1, which means none, is None."""
    return {
        column: _named(value, names[column]) if column in names else value for column, value in row.items()
    }


def _named(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if isinstance(value, int) and -1 <= value < len(names):
        return None if value < 0 else names[value]
    return value
