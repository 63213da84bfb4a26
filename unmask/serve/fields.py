"""The fields of a request's body: one declaration checks what is sent and writes its JSON schema."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from unmask.errors import quoted
from unmask.serve.errors import BadField, EmptyBatch

Schema = dict[str, Any]
"""A JSON schema, as OpenAPI 3.1 has it."""

NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
VECTOR: Schema = {"type": "array", "items": NUMBER}


def rows(of: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": of}


def record(optional: Mapping[str, Schema] | None = None, /, **of: Schema) -> Schema:
    """An object with these properties, those of ``optional`` not always."""
    properties = of | dict(optional or {})
    return {
        "type": "object",
        "properties": properties,
        "required": list(of),
        "additionalProperties": False,
    }


_PLAIN: Mapping[Any, Schema] = {
    str: TEXT,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    NoneType: {"type": "null"},
    Any: {},
}


def schema_of(kind: Any) -> Schema:
    """The schema of a typed result as `dataclasses.asdict` and JSON write it.

    Raises:
        TypeError: a type has no JSON form that is known here.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return record(**{field.name: schema_of(hints[field.name]) for field in fields(kind)})
    return _generic(kind, get_origin(kind), get_args(kind))


def _generic(kind: Any, origin: Any, inner: tuple[Any, ...]) -> Schema:
    """The schema of a type with parameters."""
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(member) for member in inner]}
    if origin is list or (origin is tuple and inner[1:] == (Ellipsis,)):
        return rows(schema_of(inner[0]))
    if origin is tuple and len(set(inner)) == 1:
        return rows(schema_of(inner[0])) | {"minItems": len(inner), "maxItems": len(inner)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    raise TypeError(f"{kind} has no JSON schema")


def first_sentence(documented: Any) -> str:
    """The first line of a docstring, in one line."""
    return re.sub(r"\s+", " ", (documented.__doc__ or "").strip().partition("\n\n")[0])


STRING: Schema = {"type": "string"}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a JSON object.

    Subclasses say in words what a value must be (`expected`), as a schema, and how it is read.
    """

    about: str = ""
    """What it is for, in the OpenAPI document."""
    required: bool = False
    """Whether it must be given; null counts as missing."""
    default: Any = None
    """The value if it is missing."""

    expected = "a value"

    def schema(self, most: int) -> Schema:
        """What JSON values it takes; ``most`` is how many texts a request may have."""
        return self._schema(most)

    def parse(self, name: str, value: Any, most: int) -> Any:
        """The value as handlers use it; raises `BadField` for a wrong one."""
        return self._parse(name, value, most)

    def _schema(self, most: int) -> Schema:
        raise NotImplementedError

    def _parse(self, name: str, value: Any, most: int) -> Any:
        raise NotImplementedError

    def wrong(self, name: str, value: Any) -> BadField:
        """The error for a value of the wrong kind."""
        return BadField(name, f"{name} is {quoted(value)}; it must be {self.expected}")

    def full_schema(self, most: int) -> Schema:
        """The schema with null if the field may be left out, its description and its default."""
        schema = self.schema(most)
        if not self.required:
            schema = {"anyOf": [schema, {"type": "null"}]}
        if self.default is not None:
            schema = schema | {"default": self.default}
        return schema | ({"description": self.about} if self.about else {})


Body = Mapping[str, Field]
"""The fields of an object by name; it may have no others."""


def read(body: Body, sent: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The values of a JSON object, checked; missing ones have their defaults.

    Args:
        body: its fields.
        sent: the object.
        most: how many texts a request may have.

    Raises:
        BadField: a field is unknown, missing or wrong.
    """
    unknown = sorted(set(sent) - set(body))
    if unknown:
        raise BadField(
            unknown[0],
            f"there is no field {quoted(unknown[0])}; there are {', '.join(sorted(body))}",
            kind="unknown_field",
        )
    values = {}
    for name, field in body.items():
        value = sent.get(name)
        if value is not None:
            values[name] = field.parse(name, value, most)
        elif field.required:
            raise BadField(name, f"{name} is missing; it must be {field.expected}")
        else:
            values[name] = field.default
    return values


def object_schema(body: Body, most: int) -> Schema:
    """The schema of an object with these fields."""
    return {
        "type": "object",
        "properties": {name: field.full_schema(most) for name, field in body.items()},
        "required": [name for name, field in body.items() if field.required],
        "additionalProperties": False,
    }


def check_count(name: str, value: Sequence[Any], most: int) -> None:
    """Raise an error unless a list has at least one item and at most as many as a request may."""
    if not value:
        raise EmptyBatch(name)
    if len(value) > most:
        raise BadField(
            name,
            f"{name} has {len(value):,} texts, and a request may have {most:,}; send several",
            413,
            "too_many_texts",
        )


class Inputs(NamedTuple):
    """What a model is to read: texts, or token ids."""

    texts: list[str]
    ids: list[list[int]] | None
    """If not None, what is read instead of texts."""
    single: bool
    """Whether it was one text or sequence, not a list of them."""


class Text(Field):
    """A string."""

    expected = "a string"

    def _schema(self, most: int) -> Schema:
        return STRING

    def _parse(self, name: str, value: Any, most: int) -> str:
        if not isinstance(value, str):
            raise self.wrong(name, value)
        return value


class TextList(Field):
    """A list of strings."""

    expected = "a list of strings"

    def _schema(self, most: int) -> Schema:
        return {"type": "array", "items": STRING, "minItems": 1, "maxItems": most}

    def _parse(self, name: str, value: Any, most: int) -> Any:
        if not isinstance(value, list):
            raise self.wrong(name, value)
        check_count(name, value, most)
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise BadField(name, f"{name}[{index}] is {quoted(item)}; {name} must be {self.expected}")
        return value


class Texts(TextList):
    """A string or a list of strings, as `Inputs`."""

    expected = "a string or a list of strings"

    def _schema(self, most: int) -> Schema:
        return {"anyOf": [STRING, super()._schema(most)]}

    def _parse(self, name: str, value: Any, most: int) -> Inputs:
        single = isinstance(value, str)
        return Inputs(super()._parse(name, [value] if single else value, most), None, single)


class Documents(Field):
    """A list of strings or of objects with a text, as the texts."""

    expected = "a list of strings"

    def _schema(self, most: int) -> Schema:
        record = {"type": "object", "properties": {"text": STRING}, "required": ["text"]}
        items = {"anyOf": [STRING, record]}
        return {"type": "array", "items": items, "minItems": 1, "maxItems": most}

    def _parse(self, name: str, value: Any, most: int) -> list[str]:
        if not isinstance(value, list):
            raise self.wrong(name, value)
        check_count(name, value, most)
        texts: list[Any] = [
            document.get("text") if isinstance(document, dict) else document for document in value
        ]
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise BadField(name, f"{name}[{index}] must be a string, or an object with a text")
        return texts


class Flag(Field):
    """True or false."""

    expected = "true or false"

    def _schema(self, most: int) -> Schema:
        return {"type": "boolean"}

    def _parse(self, name: str, value: Any, most: int) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(name, value)
        return value


@dataclass(frozen=True, kw_only=True)
class Whole(Field):
    """A whole number from ``low`` to ``high``."""

    low: int = 0
    high: int = 1 << 30

    @property
    def expected(self) -> str:  # type: ignore[override]
        """With the limits."""
        return f"a whole number from {self.low} to {self.high}"

    def _schema(self, most: int) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def _parse(self, name: str, value: Any, most: int) -> int:
        if isinstance(value, float) and value.is_integer():  # 3.0 is an integer of JSON
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise self.wrong(name, value)
        return value


class Share(Field):
    """A number from 0 to 1."""

    expected = "a number from 0 to 1"

    def _schema(self, most: int) -> Schema:
        return {"type": "number", "minimum": 0, "maximum": 1}

    def _parse(self, name: str, value: Any, most: int) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.wrong(name, value)
        return float(value)


@dataclass(frozen=True, kw_only=True)
class Choice(Field):
    """One of several strings."""

    options: tuple[str, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        """The strings."""
        return f"one of {', '.join(self.options)}"

    def _schema(self, most: int) -> Schema:
        return {"type": "string", "enum": list(self.options)}

    def _parse(self, name: str, value: Any, most: int) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise self.wrong(name, value)
        return value


@dataclass(frozen=True, kw_only=True)
class Choices(Choice):
    """A list of some of several strings, each once."""

    @property
    def expected(self) -> str:  # type: ignore[override]
        """The strings."""
        return f"a list of some of {', '.join(self.options)}"

    def _schema(self, most: int) -> Schema:
        return {"type": "array", "items": super()._schema(most), "minItems": 1}

    def _parse(self, name: str, value: Any, most: int) -> Any:
        if not isinstance(value, list) or not value:
            raise self.wrong(name, value)
        if not all(isinstance(item, str) and item in self.options for item in value):
            raise self.wrong(name, value)
        return list(dict.fromkeys(value))


@dataclass(frozen=True, kw_only=True)
class Inner(Field):
    """An object inside the body."""

    body: Body
    expected = "an object"

    def _schema(self, most: int) -> Schema:
        return object_schema(self.body, most)

    def _parse(self, name: str, value: Any, most: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(name, value)
        return read(self.body, value, most)
