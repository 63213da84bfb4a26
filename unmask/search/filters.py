"""Conditions on the metadata of documents."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.errors import InvalidRequest, quoted

Accept = Callable[[Mapping[str, Any]], bool]
"""Whether a document with these metadata is searched."""

Filter = Mapping[str, Any] | Sequence[str] | Accept
"""A value (or a list of allowed values) for each key, conditions such as ``"year>=2020"``, or a function."""

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CONDITION = re.compile(r"\s*([^=!<>]+?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)


def accepting(filter: Filter, known: Sequence[str]) -> Accept:
    """The function that a filter describes.

    Args:
        filter: what the caller gave.
        known: the keys that documents have.

    Raises:
        InvalidRequest: it is none of `Filter`, or names a key that no document has.
    """
    if callable(filter):
        return filter
    if isinstance(filter, str) or not isinstance(filter, Mapping | Sequence):
        raise InvalidRequest(
            f"filter is {quoted(filter)}; give a dictionary of values, a list of conditions such as "
            "'year>=2020', or a function of the metadata"
        )
    if isinstance(filter, Mapping):
        conditions = [_one_of(key, value) for key, value in filter.items()]
        keys = list(filter)
    else:
        conditions, keys = [], []
        for text in filter:
            key, accept = _parsed(text)
            keys.append(key)
            conditions.append(accept)
    for key in keys:
        if key not in known:
            raise InvalidRequest(
                f"the filter names {quoted(key)}, which no document has; metadata are: "
                f"{', '.join(known) or 'none'}"
            )
    return lambda metadata: all(condition(metadata) for condition in conditions)


def _one_of(key: str, value: Any) -> Accept:
    allowed = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    return lambda metadata: key in metadata and any(_equal(metadata[key], one) for one in allowed)


def _equal(stored: Any, wanted: Any) -> bool:
    """Whether a stored value is the wanted one; a stored list holds it."""
    return bool(wanted in stored if isinstance(stored, list) else stored == wanted)


def _parsed(text: str) -> tuple[str, Accept]:
    found = CONDITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequest(
            f"the filter {quoted(text)} is no condition; write KEY=VALUE, or with !=, <, <=, > or >="
        )
    key, sign, wanted = found.groups()
    compare = OPERATORS[sign]

    def accept(metadata: Mapping[str, Any]) -> bool:
        if key not in metadata:
            return False
        stored = metadata[key]
        values = stored if isinstance(stored, list) else [stored]
        results = [_compared(compare, one, wanted) for one in values]
        return all(results) if sign == "!=" else any(results)

    return key, accept


def _compared(compare: Callable[[Any, Any], Any], stored: Any, wanted: str) -> bool:
    """Compare as numbers if the stored value is one and the wanted one can be; else as text."""
    if isinstance(stored, bool) or stored is None:
        return bool(compare(str(stored).lower(), wanted.lower()))
    if isinstance(stored, int | float):
        try:
            return bool(compare(float(stored), float(wanted)))
        except ValueError:
            return bool(compare(str(stored), wanted))
    return bool(compare(str(stored), wanted))
