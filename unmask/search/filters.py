"""Conditions on the metadata of documents."""

import operator
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from unmask.errors import InvalidRequest, quoted

Accept = Callable[[Mapping[str, Any]], bool]
"""Whether a document with these metadata is searched."""

Filter = Mapping[str, Any] | Sequence[str] | Accept
"""A value (or a list of allowed values) for each key, conditions such as ``"year>=2020"``, or a function."""

ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CONDITION = re.compile(r"\s*([^=!<>]+?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
REST = re.compile(r"\s*(!=|<=|>=|=|<|>)\s*(.*?)", re.DOTALL)

NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""Text that is a number: 9.99, and neither 007, which would lose its zeros, nor 1e5, which may be a name."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,6})?")


def accepting(filter: Filter, known: Sequence[str]) -> Accept:
    """The function that a filter describes.

    Values are equal if both are numbers of one value, exactly, or if both are the same text; a text counts
    as a number if it is written as one (9.99, but not 007 or 1e5). So a dictionary and a condition
    accept the same documents. In an order, numbers are compared with numbers and text with text. Missing
    values and text without a digit (n/a) have no place among numbers and are not accepted; other pairs are
    refused.

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
            key, accept = _parsed(text, known)
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
    return lambda metadata: key in metadata and any(_equal(metadata[key], value) for value in allowed)


def _parsed(text: str, keys: Sequence[str]) -> tuple[str, Accept]:
    key, sign, wanted = _parts(text, keys)

    def accept(metadata: Mapping[str, Any]) -> bool:
        if key not in metadata:
            return False
        stored = metadata[key]
        match sign:
            case "=":
                return _equal(stored, wanted)
            case "!=":
                return not _equal(stored, wanted)
            case _:
                values = stored if isinstance(stored, list) else [stored]
                return any(_ordered(ORDERS[sign], value, wanted, text) for value in values)

    return key, accept


def _parts(text: str, keys: Sequence[str]) -> tuple[str, str, str]:
    """The key, the operator and the value of a condition."""
    if isinstance(text, str):
        for key in sorted(keys, key=len, reverse=True):  # a key may hold an operator
            match = REST.fullmatch(text.strip().removeprefix(key))
            if match is not None and text.strip().startswith(key):
                return key, match[1], match[2]
        match = CONDITION.fullmatch(text)
        if match is not None:
            return match[1], match[2], match[3]
    raise InvalidRequest(
        f"the filter {quoted(text)} is no condition; write KEY=VALUE, or with !=, <, <=, > or >="
    )


def _equal(stored: Any, wanted: Any) -> bool:
    """Whether a stored value is the wanted one, or a stored list holds it; see `accepting`."""
    if isinstance(stored, list) and not isinstance(wanted, list):
        return any(_equal(value, wanted) for value in stored)
    if isinstance(stored, list | Mapping) or isinstance(wanted, list | Mapping):
        return bool(stored == wanted)
    numbers = _numbers(stored, wanted)
    if numbers is not None:
        return numbers[0] == numbers[1]
    return _written(stored) == _written(wanted)


def _ordered(compare: Callable[[Any, Any], Any], stored: Any, wanted: str, text: str) -> bool:
    """Compare as numbers if both are, as text if neither is; what has no value has no order.

    Raises:
        InvalidRequest: one is a number, and the other some other value.
    """
    numbers = _numbers(stored, wanted)
    if numbers is not None:
        return bool(compare(*numbers))
    if stored is None or isinstance(stored, bool | Mapping):
        return False
    if isinstance(stored, str):
        if _numeral(wanted) is None:
            return bool(compare(_written(stored), _written(wanted)))
        if not any(character.isdigit() for character in stored):
            return False
    raise InvalidRequest(
        f"the filter {quoted(text)} compares {quoted(wanted)} with the stored {quoted(stored)}, and only one "
        "of them is a plain number; compare numbers with numbers and text with text, such as "
        "date>=2021-01-01, or give a function of the metadata in Python"
    )


def _numbers(stored: Any, wanted: Any) -> tuple[Decimal, Decimal] | None:
    """Both values, exactly, if both are numbers; text is one if it is written as JSON writes numbers."""
    left, right = _number(stored), _number(wanted)
    if left is None and isinstance(stored, str):
        left = _numeral(stored)
    if right is None and isinstance(wanted, str):
        right = _numeral(wanted) if isinstance(stored, str) else _parsed_number(wanted)
    return None if left is None or right is None else (left, right)


def _number(value: Any) -> Decimal | None:
    """The shortest decimal number that is the value: 0.1 is 1/10; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = Decimal(value) if isinstance(value, int) else Decimal(repr(float(value)))
    return number if number.is_finite() else None


def _numeral(text: str) -> Decimal | None:
    return Decimal(text) if NUMERAL.fullmatch(text) else None


def _parsed_number(text: str) -> Decimal | None:
    """A number in any spelling, such as 05 or 1e3, to be compared with a stored number."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def _written(value: Any) -> str:
    """A value as text, with composed letters; true, false and none in lower case, as CSV files have both."""
    number = _number(value) if isinstance(value, int) else None  # str() refuses a number of 5,000 digits
    text = unicodedata.normalize("NFC", str(value) if number is None else f"{number:f}")
    return text.lower() if text.lower() in ("true", "false", "none") else text
