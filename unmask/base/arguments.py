"""Argument checks, each error of which is one sentence with the value, the limit and the remedy; and public
names that are about to go: they work for at least one minor release, and say what replaces them."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, SupportsIndex, TypeVar

from unmask.errors import InvalidRequest, quoted

T = TypeVar("T", bound=Callable[..., object])


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise `InvalidRequest` unless the value is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        names = [repr(choice) for choice in allowed]
        listed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        raise InvalidRequest(f"{name} is {quoted(value)}; it can be {listed}")


def check_flag(name: str, value: object) -> None:
    """Raise `InvalidRequest` unless the value is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {quoted(value)}; it can be True, False, or None for the default")


def check_callable(name: str, value: object) -> None:
    """Raise `InvalidRequest` unless the value is a function or None."""
    if value is not None and not isinstance(value, Callable):  # type: ignore[arg-type]
        raise InvalidRequest(f"{name} is {quoted(value)}; give a function, or leave it out")


def check_fraction(name: str, value: object) -> None:
    """Raise `InvalidRequest` unless the value is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be a number from 0 to 1")


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise `InvalidRequest` if a value is below ``least`` or NaN; None is accepted."""
    if value is not None and not value >= least:
        raise InvalidRequest(f"{name} is {value}; it must be at least {least}")


def check_limit(limit: int | None) -> None:
    """Refuse a limit of inputs that leaves none.

    Raises:
        InvalidRequest: it is below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1 (--limit)")


_PART = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*|([^,]*))(?:,|$)')


def comma_separated(text: str) -> list[str]:
    """The parts of a list with commas between them, without blanks around them and without empty ones.

    A part in double quotes may hold commas, and two quotes for each of its own, as in CSV.
    """
    parts = (quoted.replace('""', '"') if quoted else plain for quoted, plain in _PART.findall(text))
    return [part.strip() for part in parts if part.strip()]


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A number of any integer type, as an int.

    Raises:
        InvalidRequest: it is not a whole number, or is outside ``least`` to ``most``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be a whole number") from None
    if most is not None and not (least or 0) <= whole <= most:
        raise InvalidRequest(f"{name} is {whole}; it can be {least or 0} to {most}")
    if least is not None and whole < least:
        raise InvalidRequest(f"{name} is {whole}; it must be at least {least}")
    return whole


def listed(name: str, values: Any) -> list[Any]:
    """The items of a list, tuple, array or generator (which is consumed).

    Raises:
        InvalidRequest: it is something else, such as one string, bytes, an unordered set or None.
    """
    unordered = isinstance(values, str | bytes | bytearray | Mapping | Set)
    if unordered or not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} is {quoted(values)}; give a string or a list of strings")
    try:
        return list(values)
    except TypeError:  # an array without dimensions
        raise InvalidRequest(f"{name} is {quoted(values)}; give a string or a list of strings") from None


def one_of(name: str, number: SupportsIndex, count: int, where: str) -> int:
    """A number from 0 up to ``count``, of any integer type, as an int.

    Args:
        name: name of the argument, such as ``"token"``.
        number: the given index; negative ones do not count from the end.
        count: number of valid values.
        where: context for the error, such as ``"this text has tokens"``.

    Raises:
        InvalidRequest: it is not an integer or out of range.
    """
    index = whole_number(name, number)
    if not 0 <= index < count:
        raise InvalidRequest(f"{name} is {index}; {where} 0 to {count - 1}")
    return index


def token_of(length: int, token: SupportsIndex, name: str = "token") -> int:
    """The number of a token of a text of ``length`` tokens; see `one_of`."""
    return one_of(name, token, length, "this text has tokens")


def deprecated(instead: str, *, since: str, removed_in: str) -> Callable[[T], T]:
    """Mark a public function, method, property's function or class that another one replaces.

    Each call, and each new object of a class, gives a `DeprecationWarning` that names the replacement and
    the release without the old name. ``scripts/public_api.py`` writes the mark beside the name.

    Args:
        instead: what to write now, such as ``"unmask.Model.embed"``.
        since: the release that first warns, such as ``"0.3.0"``.
        removed_in: the release that no longer has the name, at least one minor release later.
    """

    def mark(thing: T) -> T:
        from typing_extensions import deprecated as warning  # in the module warnings from Python 3.13 on

        name = thing.__qualname__
        return warning(
            f"{name} is deprecated since unmask {since} and will be removed in {removed_in}; use {instead}"
        )(thing)

    return mark
