"""The command line: one thin file per command over the Python API."""

from unmask.cli.main import main

__all__ = ["main"]
