"""Convert a spec to plain JSON values and back: every field by name, a part of several kinds by its class.

The format is closed and derived from the dataclasses themselves, so a field or class added to the spec is
supported automatically, and anything else in a file is an error that names its location.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from itertools import groupby
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture, quoted
from unmask.spec.check import MOST_LAYERS

KIND = "kind"
"""The key that names the class of a part that can have several classes."""
FORMERLY_ONE = {frozenset({"Transform", "DoubleTransform"}): "Transform"}
"""Classes of a field that had one class at first, whose name files of that time leave out."""

TIMES = "times"
"""In a list of parts: the number of consecutive equal parts."""

NUMBERS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

Made = TypeVar("Made")


def to_plain(value: Any, kind: Any = None) -> Any:
    """The JSON value of a spec or of a part of it, with all fields, including defaults.

    Consecutive equal parts of a list are written once, with their count.

    Args:
        value: a dataclass of the spec.
        kind: the declared type of its field; None is its own class.

    Raises:
        InvalidRequest: a number in it is not finite, which JSON cannot represent.
    """
    kind = type(value) if kind is None else kind
    if is_dataclass(value) and not isinstance(value, type):
        tag = {KIND: type(value).__name__} if len(_classes(kind)) > 1 else {}
        return tag | {
            name: to_plain(getattr(value, name), wanted) for name, (_, wanted) in _fields(type(value)).items()
        }
    if isinstance(value, tuple):
        (item,) = _items(kind)
        if not _classes(item):
            return [to_plain(element, item) for element in value]
        runs = [(element, sum(1 for _ in same)) for element, same in groupby(value)]
        return [({TIMES: times} if times > 1 else {}) | to_plain(element, item) for element, times in runs]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"a spec holds {value}, which is not a number that can be written")
    return value


def from_plain(kind: type[Made], plain: object, where: str) -> Made:
    """The value of class ``kind`` that a JSON value describes; fields with a default may be left out.

    Args:
        kind: a dataclass of the spec.
        plain: what `to_plain` gives, or was written by hand.
        where: its name in error messages, such as ``config.json's encoder``.

    Raises:
        CorruptCheckpoint: a value of the wrong type, or a missing field.
        UnknownArchitecture: an unknown field or class.
        InvalidRequest: a value outside its field's range.
    """
    part: Made = _read(kind, plain, where)
    return part


def _read(kind: Any, plain: object, where: str) -> Any:
    """Read a value of any type that a spec may contain: classes, unions, tuples, choices, numbers."""
    options = _options(kind)
    if plain is None and NoneType in options:
        return None
    if _classes(kind):
        return _read_part(_classes(kind), plain, where)
    if _items(kind):
        return _read_list(_items(kind)[0], plain, where)
    choices = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if choices:
        if plain not in choices:
            raise UnknownArchitecture(f"{where} is {quoted(plain)}; it can be {', '.join(map(str, choices))}")
        return plain
    (number,) = (option for option in options if option is not NoneType)
    if number is float and type(plain) is int:
        plain = float(plain)
    if type(plain) is not number or (isinstance(plain, float) and not math.isfinite(plain)):
        raise CorruptCheckpoint(f"{where} is {quoted(plain)}; it must be {NUMBERS[number]}")
    return plain


def _read_part(classes: Mapping[str, type], plain: object, where: str) -> Any:
    if not isinstance(plain, dict):
        raise CorruptCheckpoint(f"{where} is {quoted(plain)}; it must be an object of fields")
    arguments: dict[str, Any] = {str(key): value for key, value in plain.items()}
    (name, *others) = classes
    if others:
        named = arguments.pop(KIND, FORMERLY_ONE.get(frozenset(classes)))
        name = str(named)
        if name not in classes:
            raise UnknownArchitecture(f"{where}.{KIND} is {quoted(named)}; it can be {', '.join(classes)}")
    known = _fields(classes[name])
    for key in arguments:
        if key not in known:
            raise UnknownArchitecture(f"{where}.{key} is not a field of {name}, which has {', '.join(known)}")
    for key, (field, _) in known.items():
        if key not in arguments and field.default is MISSING and field.default_factory is MISSING:
            raise CorruptCheckpoint(f"{where}.{key} is missing; {name} requires it")
    values = {key: _read(known[key][1], value, f"{where}.{key}") for key, value in arguments.items()}
    try:
        return classes[name](**values)
    except (InvalidRequest, UnknownArchitecture) as error:
        raise type(error)(f"{where}: {error}") from None


def _read_list(item: Any, plain: object, where: str) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise CorruptCheckpoint(f"{where} is {quoted(plain)}; it must be a list")
    elements: list[Any] = []
    for number, element in enumerate(plain):
        times = 1
        if _classes(item) and isinstance(element, dict):
            element = dict(element)  # noqa: PLW2901 - the count is removed from a copy
            times = element.pop(TIMES, 1)
            if type(times) is not int or not 1 <= times <= MOST_LAYERS:
                raise CorruptCheckpoint(
                    f"{where}[{number}].{TIMES} is {quoted(times)}; it must be 1 to {MOST_LAYERS}"
                )
        elements += [_read(item, element, f"{where}[{number}]")] * times
    return tuple(elements)


@cache
def _fields(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    """The fields of a class by name, each with its type."""
    types = get_type_hints(kind)
    return {field.name: (field, types[field.name]) for field in fields(kind)}


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)


def _classes(kind: Any) -> dict[str, type]:
    """The classes that a field may hold, by name."""
    return {
        option.__name__: option
        for option in _options(kind)
        if isinstance(option, type) and is_dataclass(option)
    }


def _items(kind: Any) -> tuple[Any, ...]:
    """The item type of a tuple, as the only element; empty for other types."""
    return tuple(get_args(option)[0] for option in _options(kind) if get_origin(option) is tuple)
