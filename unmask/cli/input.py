"""Standard input: its name among the arguments, and its contents."""

import sys
from typing import BinaryIO

from unmask.errors import InvalidRequest, InvalidText

STANDARD_INPUT = "\0stdin"
"""Stands for the argument ``-``, which the parser would take for an option; no argument can contain a NUL."""


def standard_input() -> BinaryIO:
    """The stream that texts are piped into.

    Raises:
        InvalidRequest: standard input is closed.
    """
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed; pipe texts into it or name a file")
    return sys.stdin.buffer


def read_standard_input() -> str:
    """All of standard input as one text, without a final newline.

    Raises:
        InvalidText: it is not UTF-8.
    """
    raw = standard_input().read()
    try:
        return raw.decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidText(
            f"standard input is not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1}"
        ) from None
