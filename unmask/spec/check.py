"""Range checks of numbers in a spec or a config.json: one sentence with the name, the value and the limit."""

import math

from unmask.errors import InvalidRequest, quoted

LARGEST = 2**24
"""Upper limit of a size; products of sizes up to it stay within torch's integer range."""

MOST_LAYERS = 10_000
"""Upper limit of the number of layers; a file with more is corrupt."""


def require_at_least(name: str, value: int, least: int) -> None:
    """Raise `InvalidRequest` unless ``value`` is at least ``least``."""
    if value < least:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be at least {least}")


def require_size(name: str, value: int, least: int = 1, most: int = LARGEST) -> None:
    """Raise `InvalidRequest` unless ``value`` is from ``least`` to ``most``."""
    require_at_least(name, value, least)
    if value > most:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be at most {most}")


def require_positive(name: str, value: float) -> None:
    """Raise `InvalidRequest` unless ``value`` is above 0 and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be above 0 and finite")


def require_eps(name: str, value: float) -> None:
    """Raise `InvalidRequest` unless ``value`` is above 0 and at most 1; a larger one outweighs the states."""
    if not 0 < value <= 1:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be above 0 and at most 1")


def require_deviation(name: str, value: float) -> None:
    """Raise `InvalidRequest` unless ``value`` is at least 0 and finite."""
    if not 0 <= value < math.inf:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be at least 0 and finite")


def require_share(name: str, value: float) -> None:
    """Raise `InvalidRequest` unless ``value`` is a probability below 1."""
    if not 0 <= value < 1:
        raise InvalidRequest(f"{name} is {quoted(value)}; it must be at least 0 and below 1")
