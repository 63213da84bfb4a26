"""The command line: one thin file per command over the Python functions it calls."""

from unmask.cli.main import main

__all__ = ["main"]
