"""Predictions on a terminal, for people: the text, and below it what was predicted, in columns."""

import sys

from rich.text import Text

from unmask.cli.output import console

LONGEST = 200
"""Characters of a text that are shown above its predictions."""


def on_terminal() -> bool:
    """Whether what is printed is read by people; a pipe or a file gets rows of tabs."""
    return sys.stdout.isatty()


def print_aligned(heading: str, rows: str) -> None:
    """Print rows of cells with tabs between them in columns, below the text that they are about."""
    cells = [line.split("\t") for line in rows.splitlines() if line]
    widths: list[int] = []
    for row in cells:
        widths += [0] * (len(row) - len(widths))
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], Text(cell).cell_len)
    screen, words = console(), " ".join(heading.split())
    screen.print(Text(words if len(words) <= LONGEST else f"{words[:LONGEST]}…", style="bold"))
    for row in cells:
        padded = (
            cell + " " * (width - Text(cell).cell_len) for cell, width in zip(row, widths, strict=False)
        )
        screen.print(Text(f"  {'  '.join(padded).rstrip()}"))
    if not cells:
        screen.print(Text("  nothing", style="dim"))
