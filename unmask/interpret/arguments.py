"""The numbers by which callers say where: a layer, a head, a token, a word; and how many they want."""

from typing import SupportsIndex

from unmask.arguments import whole_number
from unmask.errors import InvalidRequest


def one_of(name: str, number: SupportsIndex, count: int, where: str) -> int:
    """A number from 0 up to ``count``, of any integer type, as an int.

    Args:
        name: what it is the number of, as ``"token"``.
        number: as it was given; a negative one does not count from the end.
        count: how many there are.
        where: what has them, as ``"this text has tokens"``.

    Raises:
        InvalidRequest: it is no whole number, or there is none of that number.
    """
    found = whole_number(name, number)
    if not 0 <= found < count:
        raise InvalidRequest(f"{name} is {found}; {where} 0 to {count - 1}")
    return found


def at_least(name: str, number: SupportsIndex, least: int = 1) -> int:
    """A number of no less than ``least``, of any integer type, as an int.

    Raises:
        InvalidRequest: it is no whole number, or less.
    """
    found = whole_number(name, number)
    if found < least:
        raise InvalidRequest(f"{name} is {found}; it must be at least {least}")
    return found


def token_of(length: int, token: SupportsIndex, name: str = "token") -> int:
    """The number of a token of a text of ``length`` tokens; see `one_of`."""
    return one_of(name, token, length, "this text has tokens")
