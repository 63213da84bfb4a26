"""Standard input: how it is named among arguments, and its bytes."""

import sys
from typing import BinaryIO

from unmask.errors import InvalidRequest

STANDARD_INPUT = "\0stdin"
"""Stands for an argument ``-``, which the parser would take for an option; no argument can hold a NUL."""


def standard_input() -> BinaryIO:
    """The stream that texts are piped into.

    Raises:
        InvalidRequest: the program was started with it closed.
    """
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed; pipe texts into it, or name a file")
    return sys.stdin.buffer
