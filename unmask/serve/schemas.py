"""JSON schemas of answers: of typed results from their declarations, of wire formats by hand."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from unmask.serve.fields import Schema

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
