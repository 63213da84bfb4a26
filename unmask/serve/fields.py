"""The fields of a request's body, each checked as it is read; a wrong one is named in the error."""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from unmask.errors import quoted
from unmask.serve.errors import BadField, EmptyBatch

Choice = TypeVar("Choice", bound=str)


class Fields:
    """A JSON object with known keys.

    Args:
        given: the object.
        known: every key that the route reads or accepts without effect.
        max_texts: the most texts of a list.

    Raises:
        BadField: it has another key.
    """

    def __init__(self, given: dict[str, Any], known: Collection[str], max_texts: int) -> None:
        self._given, self._max_texts = given, max_texts
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise BadField(
                unknown[0],
                f"there is no field {quoted(unknown[0])}; there are {', '.join(sorted(known))}",
                kind="unknown_field",
            )

    def __contains__(self, name: str) -> bool:
        return self._given.get(name) is not None

    def text(self, name: str) -> str:
        """A string that must be given."""
        value = self._given.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None if it is missing or null."""
        return self.text(name) if name in self else None

    def texts(self, name: str) -> tuple[list[str], bool]:
        """A string or a list of strings, as a list, and whether it was one string."""
        value = self._given.get(name)
        if isinstance(value, str):
            return [value], True
        return self.items(name, str, "a string or a list of strings"), False

    def items(self, name: str, kind: type, said: str) -> list[Any]:
        """A list whose items all have one type; not empty, and no longer than a request may be."""
        value = self._given.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, said)
        self.check_count(name, value)
        for index, item in enumerate(value):
            if not isinstance(item, kind):
                raise BadField(name, f"{name}[{index}] is {quoted(item)}; {name} must be {said}")
        return value

    def check_count(self, name: str, value: Sequence[Any]) -> None:
        """Raise an error unless a list has at least one item and at most as many as a request may."""
        if not value:
            raise EmptyBatch(name)
        if len(value) > self._max_texts:
            raise BadField(
                name,
                f"{name} has {len(value):,} texts, and a request may have {self._max_texts:,}; send several",
                413,
                "too_many_texts",
            )

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._given.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def number(self, name: str, low: int, high: int) -> int | None:
        """A whole number from ``low`` to ``high``, or None if it is missing or null."""
        value = self._given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def choice(self, name: str, allowed: Sequence[Choice]) -> Choice:
        """One of ``allowed``; the first of them if it is missing or null."""
        value = self._given.get(name)
        if value is None:
            return allowed[0]
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
        found: Choice = value
        return found

    def inner(self, name: str, known: Collection[str], *, required: bool = True) -> "Fields":
        """An object inside this one."""
        value = self._given.get(name)
        if value is None and not required:
            value = {}
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return Fields(value, known, self._max_texts)

    def raw(self, name: str) -> Any:
        """The value as it was given."""
        return self._given.get(name)

    def _wrong(self, name: str, wanted: str) -> BadField:
        if self._given.get(name) is None:
            return BadField(name, f"{name} is missing; it must be {wanted}")
        return BadField(name, f"{name} is {quoted(self._given[name])}; it must be {wanted}")
