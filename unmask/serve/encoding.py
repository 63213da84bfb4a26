"""Answers as JSON, without a number that is not finite."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import orjson


def to_json(value: Any) -> bytes:
    """A value of typed results, arrays and plain values as JSON.

    A float32 number has the digits that tell it from other float32 numbers, 9 at most.

    Raises:
        ValueError: a number is not finite.
    """
    try:
        data = orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # such as a lone surrogate that an error quotes, or a transposed array
        return _strictly(value)
    if b"null" in data:  # orjson writes a number that is not finite as null
        _strictly(value)
    return data


def _strictly(value: Any) -> bytes:
    """With the standard library, which takes everything and refuses numbers that are not finite."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain).encode("ascii")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")
