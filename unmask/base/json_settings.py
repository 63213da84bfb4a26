"""Read untrusted JSON: a value of the wrong type gives a one-sentence error, and unread keys are reported."""

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar

from unmask.errors import CorruptCheckpoint, UnknownArchitecture, quoted

Value = TypeVar("Value")


def parse_json(content: bytes, name: str) -> Any:
    """The value of a JSON file; ``name`` is its name in error messages.

    Raises:
        CorruptCheckpoint: it is not UTF-8 JSON, or is nested too deeply.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{name} is not JSON: {error}") from None


class JsonSettings:
    """The keys of one JSON object, with a record of which were read.

    Args:
        name: the file's name in error messages.
        values: its keys.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.values = values
        self._read: set[str] = set()

    @classmethod
    def parse(cls, content: bytes | None, name: str) -> "JsonSettings":
        """The settings in a file's content; empty if there is no file.

        Raises:
            CorruptCheckpoint: it is not a JSON object.
        """
        values = {} if content is None else parse_json(content, name)
        if not isinstance(values, dict):
            raise CorruptCheckpoint(f"{name} is not a JSON object")
        return cls(name, values)

    def get(self, key: str, default: Value) -> Value:
        """The value under ``key``, of the type of ``default``; ``default`` if it is absent."""
        value = self.get_optional(key, type(default))
        if value is None:
            if key in self.values:
                raise self.wrong(key, type(default))
            return default
        return value

    def get_optional(self, key: str, kind: type[Value]) -> Value | None:
        """The value under ``key``; None if it is absent or null.

        Raises:
            CorruptCheckpoint: it has the wrong type. An integer counts as a float, a boolean does not.
        """
        self._read.add(key)
        value = self.values.get(key)
        if kind is float and type(value) is int:
            try:
                value = float(value)
            except OverflowError:
                raise self.wrong(key, kind) from None
        if value is not None and type(value) is not kind:
            raise self.wrong(key, kind)
        return value

    def get_list(self, key: str, kind: type[Value]) -> list[Value | None] | None:
        """The list under ``key``, whose elements may be null; None if it is absent or null itself.

        Raises:
            CorruptCheckpoint: it is no list, or an element is not of the type. An integer counts as a float.
        """
        values = self.get_optional(key, list)
        allowed = (kind, NoneType, int) if kind is float else (kind, NoneType)
        if values is not None and any(type(value) not in allowed for value in values):
            raise CorruptCheckpoint(
                f"{self.name} says {key} is {quoted(values)}; it must be a list of {kind.__name__}"
            )
        return values

    def require_one_of(self, key: str, *choices: object) -> None:
        """Refuse any value of ``key`` except ``choices``; an absent key counts as the first.

        Raises:
            UnknownArchitecture: it has another value.
        """
        self._read.add(key)
        value = self.values.get(key, choices[0])
        if value not in choices:
            built = " or ".join(repr(choice) for choice in choices)
            raise UnknownArchitecture(f"{self.name} says {key} is {quoted(value)}; only {built} is built")

    def pass_over(self, *keys: str) -> None:
        """Count keys as read whose values nothing depends on."""
        self._read.update(keys)

    def wrong(self, key: str, kind: type) -> CorruptCheckpoint:
        """The error for a value that is not of ``kind``."""
        return CorruptCheckpoint(
            f"{self.name} says {key} is {quoted(self.values[key])}, which is not of type {kind.__name__}"
        )

    def unread(self) -> frozenset[str]:
        """Keys that were never read."""
        return frozenset(self.values) - self._read
