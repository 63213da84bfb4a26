"""Output of results: tables, JSON, and progress for a terminal or a log."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from unmask.tasks.progress import Progress

SECONDS_BETWEEN_LINES = 5.0
"""Between two lines of progress outside a terminal."""


LONGEST_HEADING = 200
"""Characters of a text that are shown above its predictions."""


def on_terminal() -> bool:
    """Whether people read what is printed; a pipe or a file is read by programs."""
    return sys.stdout.isatty()


def console(width: int = 500) -> Console:
    """A console for results. Outside a terminal there are no colors, and tables have this width."""
    return Console(width=None if on_terminal() else width, highlight=False, soft_wrap=True)


def table(title: str | None, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the style of every command."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_aligned(heading: str, rows: str) -> None:
    """Print a text, and below it rows of cells that tabs separate, in columns."""
    words = " ".join(heading.split())
    shown = words if len(words) <= LONGEST_HEADING else f"{words[:LONGEST_HEADING]}…"
    columns = Table.grid(padding=(0, 2))
    for row in filter(None, rows.splitlines()):
        cells = row.split("\t")
        while len(columns.columns) < len(cells):
            columns.add_column(overflow="fold")
        columns.add_row(*map(safe, cells))
    screen = console()
    screen.print(f"[bold]{safe(shown)}[/bold]")
    screen.print(Padding(columns if columns.row_count else "[dim]nothing[/dim]", (0, 0, 0, 2), expand=False))


def safe(text: str) -> str:
    """A text made safe to print: markup and unprintable characters are escaped."""
    printable = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return printable.replace("[", "\\[")


def print_json(value: object, stream: TextIO | None = None) -> None:
    """Print the value as one line of JSON; parts of a spec include their kind."""
    print(json_line(value), end="", file=stream)


def json_line(value: object) -> str:
    """The value as one line of JSON, with its line end."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: object) -> Any:
    """The value as JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {"kind": type(value).__name__} if type(value).__module__.startswith("unmask.spec") else {}
        return named | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@contextmanager
def progress(what: str, total: int) -> Iterator[Progress]:
    """A bar on a terminal, a plain line every few seconds elsewhere; both on standard error.

    ``total`` is the initial total; each report gives the current one. 0 means unknown.
    """
    if sys.stderr.isatty():
        from rich.progress import Progress as Bars

        with Bars(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(what, total=total or None)
            yield lambda done, of: bars.update(task, completed=done, total=of or None)
        return
    start = last = time.monotonic()

    def report(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done:
            last = now
            left = f" of {of:,}, about {(now - start) / done * (of - done):.0f} s left" if of else ""
            print(f"{what}: {done:,}{left}", file=sys.stderr, flush=True)

    yield report
