"""Range checks of spec fields: one sentence that names the field, the value and the limit."""

from unmask.errors import InvalidRequest


def require_at_least(name: str, value: int, least: int) -> None:
    """Raise `InvalidRequest` unless ``value`` is at least ``least``."""
    if value < least:
        raise InvalidRequest(f"{name} is {value}; it must be at least {least}")


def require_positive(name: str, value: float) -> None:
    """Raise `InvalidRequest` unless ``value`` is above 0 (and a number)."""
    if not value > 0:
        raise InvalidRequest(f"{name} is {value}; it must be above 0")


def require_share(name: str, value: float) -> None:
    """Raise `InvalidRequest` unless ``value`` is a probability below 1."""
    if not 0 <= value < 1:
        raise InvalidRequest(f"{name} is {value}; it must be at least 0 and below 1")
