"""The part of an attention map that a request asks for."""

import re
from typing import NamedTuple

from unmask.errors import InvalidRequest

MAX_CELLS = 1 << 20
"""Most cells of one answer: 1024 x 1024, or one row of a very long text; 4 MiB of values."""

_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


class Rectangle(NamedTuple):
    """Queries ``rows`` by keys ``columns`` of one head; stops are not included."""

    layer: int
    head: int
    rows: slice
    columns: slice


def parse_index(name: str, given: str, count: int) -> int:
    """A layer or head number in ``0 <= index < count``."""
    if not (given.isascii() and given.isdigit() and len(given) <= 9 and int(given) < count):
        raise InvalidRequest(f"{name} must be a number from 0 to {count - 1}, not {given!r}")
    return int(given)


def parse_range(name: str, given: str | None, tokens: int) -> slice:
    """A range ``start:stop`` of tokens, not empty and inside the text; None means all of them."""
    if given is None:
        return slice(0, tokens)
    match = _RANGE.fullmatch(given)
    start, stop = (int(match[1]), int(match[2])) if match else (0, 0)
    if not start < stop <= tokens:
        raise InvalidRequest(
            f"{name} must be a range start:stop with 0 <= start < stop <= {tokens}, not {given!r}"
        )
    return slice(start, stop)


def parse_rectangle(
    *,
    layer: str,
    head: str,
    rows: str | None,
    columns: str | None,
    layers: int,
    heads: int,
    tokens: int,
) -> Rectangle:
    """Check a request against a text of ``tokens`` tokens; raises `InvalidRequest`."""
    rectangle = Rectangle(
        parse_index("layer", layer, layers),
        parse_index("head", head, heads),
        parse_range("rows", rows, tokens),
        parse_range("columns", columns, tokens),
    )
    height = rectangle.rows.stop - rectangle.rows.start
    width = rectangle.columns.stop - rectangle.columns.start
    if height * width > MAX_CELLS:
        raise InvalidRequest(
            f"a rectangle of {height:,} x {width:,} cells is more than the {MAX_CELLS:,} that one "
            "answer holds; ask for smaller ranges"
        )
    return rectangle
