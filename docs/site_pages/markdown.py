"""Pieces of Markdown."""

import re
from collections.abc import Iterable, Sequence

OPTION = re.compile(r"(?<![\w`-])--[a-z][a-z-]*(?![\w`-])")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with this head, every row on a line."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell(one) for one in line)} |\n" for line in lines)


def cell(text: str) -> str:
    """A text on one line, in which no character ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """A docstring or a help text: no character is taken for HTML or emphasis, options are in code type."""
    return OPTION.sub(r"`\g<0>`", text.replace("<", "&lt;").replace("*", "\\*").replace("``", "`"))


def code(text: str) -> str:
    """A text in code type."""
    return f"`{text}`"
