"""Standard streams that write whatever they are given."""

import codecs
import io
import json
from contextlib import suppress
from typing import TextIO


def write_everything(stream: TextIO) -> None:
    """Let a stream write what its encoding lacks as JSON's escapes, instead of failing.

    File names need not be Unicode text, and a terminal's encoding may be a small one.
    """
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("escape", _escaped)
        with suppress(OSError):  # it claims to be seekable and is not; it stays as it is
            stream.reconfigure(errors="escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
