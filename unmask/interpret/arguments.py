"""Validation of integer arguments: indices of layers, heads, tokens and words, and counts."""

from typing import SupportsIndex

from unmask.base.arguments import whole_number
from unmask.errors import InvalidRequest


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
    found = whole_number(name, number)
    if not 0 <= found < count:
        raise InvalidRequest(f"{name} is {found}; {where} 0 to {count - 1}")
    return found


def at_least(name: str, number: SupportsIndex, least: int = 1) -> int:
    """A number of at least ``least``, of any integer type, as an int.

    Raises:
        InvalidRequest: it is not an integer, or it is less.
    """
    found = whole_number(name, number)
    if found < least:
        raise InvalidRequest(f"{name} is {found}; it must be at least {least}")
    return found


def token_of(length: int, token: SupportsIndex, name: str = "token") -> int:
    """The number of a token of a text of ``length`` tokens; see `one_of`."""
    return one_of(name, token, length, "this text has tokens")
