"""The command line in this process, and what a command that failed must have left behind."""

import gc
import io
import math
import os
import sys
import warnings
from dataclasses import dataclass
from unittest import mock

from tests.support.places import REPOSITORY


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


class _Stream(io.TextIOWrapper):
    """A text stream over memory that keeps its bytes when it is closed."""

    def __init__(self, content=b""):
        self.bytes = io.BytesIO(content)
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    @property
    def written(self):
        return self.bytes.getvalue().decode()


def run_here(*arguments, stdin=b"", program=None):
    """``unmask ARGUMENTS``, or another program of ours, in this process."""
    from unmask.cli.main import main

    out, err = _Stream(), _Stream()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["unmask", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", _Stream(stdin)),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        # A busy machine must not add lines of progress to what a test compares.
        mock.patch("unmask.cli.output.SECONDS_BETWEEN_LINES", math.inf),
        warnings.catch_warnings(),
    ):
        # Under pytest cyclopts supposes that reading sys.argv, which is replaced above, is a mistake.
        warnings.filterwarnings("ignore", "Cyclopts application invoked without tokens")
        try:
            main(*([] if program is None else [lambda _: program]))
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            gc.unfreeze()  # this process goes on
            if sys.stdout is not out:
                sys.stdout.close()
    return Ran(code, out.written, err.written)


def environment(**changes):
    """This process's environment with the package importable, and nothing asked of a real hub."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **changes}


def assert_one_sentence(ran, *parts, code=1):
    """It failed as a program should: its exit code, one line on standard error, and that line clear."""
    lines = [line for line in ran.err.splitlines() if line.strip()]
    assert ran.code == code, ran
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("unmask: "), ran.err
    assert "Traceback" not in ran.err
    assert len(lines[0]) < 3100, lines[0]
    for part in parts:
        assert str(part) in lines[0], (part, lines[0])
