"""Answers as JSON: arrays are checked to be finite, and written in as few digits as their precision needs."""

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
        data = orjson.dumps(value, default=_plain)
    except (
        orjson.JSONEncodeError
    ):  # a lone surrogate that an error quotes, or an integer of more than 64 bits
        return _with_escapes(value)
    if b"null" in data:  # orjson writes a number that is not finite as null
        _with_escapes(value)
    return data


def _with_escapes(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_typed).encode("ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        if not np.isfinite(value).all():
            raise ValueError("a number of the answer is not finite")
        rows = value if value.flags.c_contiguous else value.copy()  # orjson reads no other order
        return orjson.Fragment(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY))
    return _typed(value)


def _typed(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")
