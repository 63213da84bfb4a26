"""Output of results: tables, JSON, and progress for a terminal or a log.

What draws tables is imported where they are drawn: most output of programs is JSON.
"""

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from unmask.base.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Result = TypeVar("Result")

SECONDS_BETWEEN_LINES = 5.0
"""Between two lines of progress outside a terminal."""


LONGEST_HEADING = 200
"""Characters of a text that are shown above its predictions."""


def on_terminal() -> bool:
    """Whether people read what is printed; a pipe or a file is read by programs."""
    return sys.stdout.isatty()


def console(width: int = 500) -> "Console":
    """A console for results. Outside a terminal there are no colors, and tables have this width."""
    from rich.console import Console

    return Console(width=None if on_terminal() else width, highlight=False, soft_wrap=True)


def for_programs(*parts: "RenderableType", width: int = 500) -> str:
    """What `console` prints outside a terminal."""
    from rich.console import Console

    screen = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True, color_system=None)
    with screen.capture() as printed:
        for part in parts:
            screen.print(part)
    return printed.get()


def table(
    title: str | None, *columns: str, right: tuple[str, ...] = (), rows: Iterable[Sequence[str]] = ()
) -> "Table":
    """A table in the style of every command; ``right`` names the columns of numbers."""
    from rich.table import Table

    empty = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        style = "" if place else "cyan"
        empty.add_column(column, justify="right" if column in right else "left", style=style, overflow="fold")
    for row in rows:
        empty.add_row(*row)
    return empty


def print_legend(legend: str) -> None:
    """Print what the columns of a table mean, below it."""
    console().print(f"\n[dim]{legend}[/dim]")


def print_prediction(
    heading: "Text", rows: "Sequence[Sequence[str | Text]] | None", styles: Sequence[str] = ()
) -> None:
    """Print a text, and below it what was predicted, in columns.

    Args:
        heading: the text.
        rows: the cells of each prediction; None if the heading says all.
        styles: of each column.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.print(heading)
    if rows is None:
        return
    columns = Table.grid(padding=(0, 2))
    for place in range(max(map(len, rows), default=0)):
        columns.add_column(overflow="fold", style=styles[place] if place < len(styles) else "")
    for row in rows:
        columns.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    screen.print(Padding(columns if rows else "[dim]nothing[/dim]", (0, 0, 0, 2), expand=False))


def marked(text: str, spans: Iterable[tuple[int, int]] = (), *, bold: bool = True) -> "Text":
    """The beginning of a text on one line; ``spans``, which do not overlap, are in another color."""
    from rich.text import Text

    line, place, beginning = Text(), 0, text[:LONGEST_HEADING]
    for start, end in sorted(spans):
        line.append(_on_one_line(beginning[place:start]), "bold" if bold else "")
        line.append(_on_one_line(beginning[start:end]), "bold cyan")
        place = end
    line.append(_on_one_line(beginning[place:]), "bold" if bold else "")
    return line.append("…") if len(text) > LONGEST_HEADING else line


def around(text: str, start: int, end: int, most: int = 40) -> "Text":
    """A part of a text, with up to ``most`` characters before and after it."""
    from rich.text import Text

    line = Text().append("…" if start > most else "", "dim")
    line.append(_on_one_line(text[max(0, start - most) : start]), "dim")
    line.append(_on_one_line(text[start:end]), "bold cyan")
    line.append(_on_one_line(text[end : end + most]), "dim")
    return line.append("…" if end + most < len(text) else "", "dim")


def _on_one_line(text: str) -> str:
    return printable("".join(" " if c.isspace() else c for c in text))


def tabbed(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells for programs: lines with tabs, in which nothing else is a tab or the end of a line."""
    return "".join("\t".join(map(printable, row)) + "\n" for row in rows)


def printable(text: str) -> str:
    """A text without characters that control a terminal or end a line: they are escaped."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def safe(text: str) -> str:
    """A printable text in which nothing is markup of a console."""
    return printable(text).replace("[", "\\[")


def print_json(value: object, stream: TextIO | None = None) -> None:
    """Print the value as one line of JSON; parts of a spec include their kind."""
    print(json_line(value), end="", file=stream)


def present(result: Result, show: Callable[[Result], None], *, json: bool) -> None:
    """Print a result as JSON, or as ``show`` prints it."""
    if json:
        print_json(result)
    else:
        show(result)


def json_line(value: object) -> str:
    """The value as one line of JSON, with its line end."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: object) -> Any:
    """The value as JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": type(value).__name__} if type(value).__module__.startswith("unmask.spec") else {}
        return kind | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
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
        from rich.console import Console
        from rich.progress import Progress as Bars

        # The library would send what is printed meanwhile to standard error, also if it is meant for a file.
        with Bars(
            console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
        ) as bars:
            yield _Bar(bars, bars.add_task(what, total=total or None))
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


@dataclass(frozen=True)
class _Bar:
    """Reports progress to a bar, which is out of the way while results are printed to the same terminal."""

    bars: Any
    task: Any

    def __call__(self, done: int, of: int) -> None:
        self.bars.update(self.task, completed=done, total=of or None)


@contextmanager
def beside(report: Progress) -> Iterator[None]:
    """Print results while there may be a bar of progress."""
    bars = report.bars if isinstance(report, _Bar) and on_terminal() else None
    if bars is not None:
        bars.stop()
    try:
        yield
    finally:
        sys.stdout.flush()
        if bars is not None:
            bars.start()
