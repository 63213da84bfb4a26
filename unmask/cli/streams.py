"""Standard streams: what is piped in, and output that writes whatever it is given."""

import codecs
import io
import json
import os
import sys
from contextlib import suppress
from typing import BinaryIO, TextIO

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


def read_text(text: str | None) -> str:
    """A text of the command line, or all of standard input if it is ``-`` or missing.

    Raises:
        InvalidRequest: there is no text, and nothing is piped in.
        InvalidText: what is piped in is not UTF-8.
    """
    if text is not None and text != STANDARD_INPUT:
        return text
    if text is None and sys.stdin is not None and sys.stdin.isatty():
        raise InvalidRequest("there is no text; give one, or pipe one in")
    return read_standard_input()


def read_standard_input() -> str:
    """All of standard input as one text, without a final newline.

    Raises:
        InvalidText: it is not UTF-8.
    """
    raw = standard_input().read()
    try:
        return raw.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidText(
            f"standard input is not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1}"
        ) from None


def write_everything(stream: TextIO) -> None:
    """Let a stream write what its encoding lacks as JSON's escapes, instead of failing.

    File names need not be Unicode text, and a terminal's encoding may be a small one. Files and pipes get
    the same bytes on every system.
    """
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("escape", _escaped)
        with suppress(OSError):  # it claims to be seekable and is not; it stays as it is
            if os.linesep == "\n" or stream.isatty():
                stream.reconfigure(errors="escape")
            else:
                stream.reconfigure(errors="escape", encoding="utf-8", newline="\n")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
