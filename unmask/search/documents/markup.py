"""Text and title of HTML, with rows of tables under their headings, and the title of Markdown."""

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from unmask.base.optional import require
from unmask.errors import InvalidText
from unmask.text.lines import decode

_DROPPED = "head iframe math nav noscript object script style svg template -comment -document-type"
_PARAGRAPHS = (
    "address article aside blockquote body dd details dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 "
    "header hgroup hr main menu ol p pre section table ul"
)
_LINES = "br caption div figcaption legend li option summary tbody tfoot thead tr"
DROPPED = frozenset(_DROPPED.split())
"""Elements that hold no text of the document."""
PARAGRAPHS = frozenset(_PARAGRAPHS.split())
"""Elements that a blank line separates from what stands around them."""
LINES = frozenset(_LINES.split())
"""Elements that begin a line, and end it."""
CELLS = frozenset(("td", "th"))
SECTIONS = frozenset(("tbody", "tfoot", "thead"))
LAYOUT = frozenset(("none", "presentation"))
"""Roles of tables that only arrange what they hold."""
SPAN = re.compile(r"[ \t\n\r\f]*\+?(\d{1,9})")
MOST_COLUMNS = 1000
"""Columns that have headings, and the largest ``colspan`` of HTML."""
MOST_ROWS = 65534
"""The largest ``rowspan`` of HTML."""
MOST_HEADING_ROWS = 10
"""A table with more rows of headings is read without them."""
LONGEST_REPEATED = 200
"""Characters of a heading, or of a cell that spans rows, that is written in every row."""
REPEATED = 4
"""How many times as long as the page all that is repeated may be, besides 10,000 characters."""
SPACE = re.compile(r"[ \t\n\r\f]+")
"""White space that HTML collapses; a no-break space stays."""

DEEPEST = 25_000
"""The most elements inside each other, or left open; parsing takes up to a few seconds at this depth."""
TAG = re.compile(
    r"<!--.*?(?:-->|\Z)|<script\b.*?(?:</script|\Z)|<(/?)([a-zA-Z][^\s/<>]*)([^<>]*)",
    re.DOTALL | re.IGNORECASE,
)
"""A tag; or a comment or a script, in which nothing is one."""
_VOID = "area base br col embed hr img input link meta param source track wbr"
_OPTIONAL = "body caption colgroup dd dt head html li optgroup option p rp rt tbody td tfoot th thead tr"
VOID = frozenset(_VOID.split())
UNCOUNTED = VOID | frozenset(_OPTIONAL.split())
"""Elements without an end tag, or that may lack it."""
INSIDE = {"optgroup": "select", "rp": "ruby", "rt": "ruby"}
"""Of those, the elements that stay open outside another one, whose end closes them."""
FORMATTING = frozenset(["b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"])
"""Elements that a parser opens again in every block that follows, until they are closed."""
MOST_ALIKE = 3
"""How many of the same tag it opens again."""
MOST_OPENED_AGAIN = 1_000_000
"""Elements that a parser may add so, in about a second and 300 MB; a page of 30 kB can ask for more."""

CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:.-]+)", re.IGNORECASE)
DECLARED_WITHIN = 1024
"""Bytes at the beginning of a page in which HTML allows the declaration."""
LATIN = frozenset(
    ("iso-8859-1", "iso8859-1", "latin1", "latin-1", "us-ascii", "ascii", "windows-1252", "cp1252")
)
"""Names that browsers read as Windows-1252."""

HEADING = re.compile(r" {0,3}#{1,6}[ \t]")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
FRONT_MATTER = re.compile(
    r"(?:---|\+\+\+)[ \t]*\r?\n(.*?)^(?:---|\+\+\+|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE
)
FRONT_TITLE = re.compile(r"^title[ \t]*[:=](.*)$", re.MULTILINE)
FENCE = re.compile(r" {0,3}(```|~~~)")


def check_depth(source: str) -> None:
    """Refuse a page for which a parser would take quadratic time or memory.

    Elements whose end tags HTML makes optional are not counted, except for those that stay open outside
    their place (`INSIDE`).

    Raises:
        InvalidText: its elements are nested deeper than `DEEPEST`, or formatting that is left open would be
            opened again more than `MOST_OPENED_AGAIN` times.
    """
    depth = pictures = 0
    loose, formatting = dict.fromkeys(INSIDE.values(), 0), _OpenFormatting()
    for ends, tag, rest in TAG.findall(source):
        name = tag.lower()
        if name in ("svg", "math"):
            pictures += -1 if ends else 1
        if not name or (pictures > 0 and rest.endswith("/")):
            continue
        if name in FORMATTING or formatting.counted:
            formatting.read(name, rest, ends=bool(ends))
        if name in loose and ends:
            loose[name] = 0
        if name in INSIDE:
            loose[INSIDE[name]] += -1 if ends and loose[INSIDE[name]] else not ends
        elif name not in UNCOUNTED:
            depth = max(0, depth - 1) if ends else depth + 1
        if depth + sum(loose.values()) > DEEPEST:
            raise InvalidText(
                f"its elements are nested more than {DEEPEST:,} deep; convert it to plain text first"
            )


class _OpenFormatting:
    """Follows the formatting elements that are open, and how often they are opened again."""

    def __init__(self) -> None:
        self._open: dict[str, list[str]] = {}
        """The attributes of those of each name, innermost last."""
        self._alike: Counter[tuple[str, str]] = Counter()
        self._again = 0
        self.counted = 0
        """Elements that are opened again in a block."""

    def read(self, name: str, rest: str, *, ends: bool) -> None:
        """Take a tag.

        Raises:
            InvalidText: there are too many.
        """
        if name not in FORMATTING:
            self._again += 0 if name in VOID else self.counted
            if self._again > MOST_OPENED_AGAIN:
                raise InvalidText(
                    f"it leaves formatting open that would be opened again {MOST_OPENED_AGAIN:,} times; "
                    "convert it to plain text first"
                )
            return
        spans = self._open.setdefault(name, [])
        if ends and not spans:
            return
        key = name, spans.pop() if ends else rest
        if not ends:
            spans.append(rest)
            self._alike[key] += 1
            self.counted += self._alike[key] <= MOST_ALIKE
        else:
            self.counted -= self._alike[key] <= MOST_ALIKE
            self._alike[key] -= 1


def decode_html(raw: bytes) -> str:
    """The text of the bytes of a page: UTF-8, or in the encoding that a ``meta`` element declares.

    Raises:
        InvalidText: it is neither.
    """
    declared = CHARSET.search(raw[:DECLARED_WITHIN])
    name = declared[1].decode("ascii").lower() if declared else "utf-8"
    try:
        codec = "cp1252" if name in LATIN else codecs.lookup(name).name
        # Pages that are UTF-8 and declare Latin-1 are frequent, and the reverse is hardly ever valid UTF-8.
        if codec not in ("utf-8", "cp1252") and not codec.startswith("utf-16"):
            return raw.decode(codec)
        return decode(raw)
    except (LookupError, UnicodeDecodeError):
        return decode(raw)
    except InvalidText:
        if codec != "cp1252" or b"\0" in raw:
            raise
        return raw.decode(codec, "replace")


def html_text(source: str) -> tuple[str, str]:
    """The text of an HTML page as it reads, and its title.

    White space is collapsed but in ``pre``; blocks stand on lines of their own, and paragraphs have a blank
    line between them. A table with headings is read row by row, see `_table_lines`.
    """
    require("search")
    check_depth(source)
    parser = import_module("selectolax.lexbor").LexborHTMLParser(source)
    title = parser.css_first("title") or parser.css_first("h1")
    body = parser.body
    text = "" if body is None else _Text(REPEATED * len(source) + 10_000).of(body)
    return text, "" if title is None else SPACE.sub(" ", title.text()).strip()


class _Text:
    """Collects the text of a tree of elements.

    Args:
        repeated: the characters that tables may repeat; None for the text of a cell, which holds no table.
    """

    def __init__(self, repeated: int | None = None) -> None:
        self._repeated = repeated
        self.parts: list[str] = []
        self.breaks = 0
        """Line ends to write before the next text."""
        self.space = False
        """Whether to write a space before the next text."""

    def of(self, root: Any) -> str:
        """The text below ``root``, whose depth is not limited by Python's stack."""
        waiting: list[tuple[Any, bool, bool]] = [(root, False, False)]  # node, whether it ends, inside pre
        while waiting:
            node, ends, preformatted = waiting.pop()
            tag = node.tag
            if tag == "-text":
                self._write(node.text_content or "", preformatted)
            elif tag not in DROPPED and "hidden" not in node.attributes:
                self._border(tag)
                if tag == "table" and not ends and not preformatted and self._table(node):
                    continue
                if not ends and node.child is not None:
                    preformatted = preformatted or tag in ("pre", "textarea")
                    waiting.append((node, True, preformatted))
                    children = [(child, False, preformatted) for child in _children(node)]
                    waiting.extend(reversed(children))
        return "".join(self.parts)

    def _table(self, table: Any) -> bool:
        """Write a table row by row; whether it has headings and was written."""
        if self._repeated is None:
            raise _HoldsTable
        try:
            lines = _table_lines(table)
        except _HoldsTable:
            return False
        written = False
        for line, plain in lines:
            written = written or bool(line)
            added = max(0, len(line) - len(plain))
            self.breaks = 2
            self._write(line if added <= self._repeated else plain, preformatted=False)
            self._repeated -= added if added <= self._repeated else 0
            self.breaks = 2
        return written

    def _border(self, tag: str) -> None:
        if tag == "br":
            self.breaks += 1
        elif tag in PARAGRAPHS:
            self.breaks = max(self.breaks, 2)
        elif tag in LINES:
            self.breaks = max(self.breaks, 1)
        elif tag in CELLS:
            self.space = True

    def _write(self, text: str, preformatted: bool) -> None:
        words = text if preformatted else SPACE.sub(" ", text)
        if not words.strip(" \n" if preformatted else " "):
            self.space = self.space or bool(words)
            if preformatted:
                self.breaks += words.count("\n")
            return
        if self.breaks:
            if self.parts:
                self.parts.append("\n" * min(self.breaks, 2))
            words = words.lstrip("\n") if preformatted else words.lstrip(" ")
        elif (self.space or words[0] == " ") and self.parts:
            words = " " + words.lstrip(" ")
        elif not self.parts:
            words = words.lstrip(" ")
        self.breaks, self.space = 0, False
        if preformatted:
            self.breaks = len(words) - len(words.rstrip("\n"))
            words = words.rstrip("\n")
        else:
            self.space = words[-1] == " "
            words = words.rstrip(" ")
        self.parts.append(words)


class _HoldsTable(Exception):
    """A table holds another one in a cell, and so arranges what is in it."""


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    heading: bool
    start: int
    """Its first column."""
    stop: int
    until: int
    """The row after its last one."""


Row = list[tuple[Cell, bool]]
"""Cells, and whether each begins in this row or spans it from above."""


def _children(node: Any) -> Iterator[Any]:
    child = node.child
    while child is not None:
        yield child
        child = child.next


def _table_lines(table: Any) -> Iterator[tuple[str, str]]:
    """The lines of a table with headings, each also without what it repeats; none of another table.

    The caption and the rows of headings come first, each on a line. Then each row is a line in which a cell
    stands after the heading of its column, as in ``City: Bergen; People: 290,000``. Headings above each other
    are joined by a space, and those of a cell that spans columns by commas. A cell that spans rows is part of
    each of them. Headings are the rows of ``thead``, else the first rows that have only ``th``; without such
    rows a ``th`` before other cells is their heading.

    Raises:
        _HoldsTable: a cell holds a table.
    """
    rows, heads = _grid(table)
    wanted = (0 < heads < len(rows)) or any(_labeled(row) for row in rows)
    if table.attributes.get("role") in LAYOUT or not wanted or heads > MOST_HEADING_ROWS:
        return iter(())
    captions = [_plain_text(child) for child in _children(table) if child.tag == "caption"]
    return chain(((text, text) for text in captions), row_lines(rows, heads))


def row_lines(rows: Sequence[Row], heads: int) -> Iterator[tuple[str, str]]:
    """The lines of rows, of which the first ``heads`` are headings, each also without what it repeats."""
    headings = _headings(rows[:heads])
    for number, row in enumerate(rows):
        plain = "; ".join(cell.text for cell, begins in row if begins and cell.text)
        cells = [cell for cell, _ in row if cell.text]
        if number < heads:
            yield plain, plain
        elif heads:
            yield "; ".join(_named(cell, headings) for cell in cells), plain
        elif _labeled(row) and row[0][0].text:
            values = "; ".join(cell.text for cell in cells[1:])
            yield f"{cells[0].text.rstrip(':')}: {values}", plain
        else:
            yield plain, plain


def _labeled(row: Row) -> bool:
    """Whether a row begins with a heading of the cells that follow."""
    return len(row) > 1 and row[0][0].heading and not all(cell.heading for cell, _ in row)


def _named(cell: Cell, headings: Sequence[str]) -> str:
    """A cell after the headings of its columns; one that spans all of them has none."""
    columns = headings[cell.start : cell.stop]
    name = ", ".join(dict.fromkeys(filter(None, columns)))
    whole = len(columns) == len(headings) > 1
    return cell.text if whole or not name or len(name) > LONGEST_REPEATED else f"{name}: {cell.text}"


def _headings(rows: Sequence[Row]) -> list[str]:
    """The heading of each column."""
    parts: list[list[str]] = []
    for row in rows:
        for cell, begins in row:
            parts += [[] for _ in range(len(parts), cell.stop)]
            if begins and cell.text:
                for column in parts[cell.start : cell.stop]:
                    column.append(cell.text.rstrip(":"))
    return [" ".join(column) for column in parts]


def _grid(table: Any) -> tuple[list[Row], int]:
    """The cells of each row in the order of their columns, and how many rows are headings."""
    rows: list[Row] = []
    heads = repeatable = 0
    for section in _sections(table):
        spanning: list[Cell] = []
        for row in section:
            spanning = [cell for cell in spanning if cell.until > len(rows)]
            begun = _placed(row, spanning, len(rows))
            again = [cell for cell in spanning if begun and len(cell.text) <= LONGEST_REPEATED]
            repeatable += REPEATED * len(begun)
            again = again if len(again) <= repeatable + MOST_COLUMNS else []
            repeatable -= len(again)
            cells = [*((cell, False) for cell in again), *((cell, True) for cell in begun)]
            if heads == len(rows) and (row[0] or (begun and all(cell.heading for cell in begun))):
                heads += 1
            spanning += [cell for cell in begun if cell.until > len(rows) + 1]
            rows.append(sorted(cells, key=lambda placed: placed[0].start))
    return rows, heads


def _sections(table: Any) -> Iterator[Iterator[tuple[bool, Any]]]:
    """The rows of each section of a table, and whether it is ``thead``."""
    for part in _children(table):
        if part.tag in SECTIONS and "hidden" not in part.attributes:
            head = part.tag == "thead"
            yield (
                (head, row) for row in _children(part) if row.tag == "tr" and "hidden" not in row.attributes
            )


def _placed(row: tuple[bool, Any], spanning: Sequence[Cell], number: int) -> list[Cell]:
    """The cells of a row in the columns that those which span rows from above leave free."""
    taken = {column: cell.stop for cell in spanning for column in range(cell.start, cell.stop)}
    cells, column = [], 0
    for node in _children(row[1]):
        if node.tag in CELLS and "hidden" not in node.attributes:
            while column in taken:
                column = taken[column]
            start = min(column, MOST_COLUMNS)
            stop = min(start + max(1, _span(node, "colspan")), MOST_COLUMNS)
            until = number + (_span(node, "rowspan") or MOST_ROWS)
            cells.append(Cell(_plain_text(node), node.tag == "th", start, stop, until))
            column = stop
    return cells


def _span(node: Any, name: str) -> int:
    """How many columns or rows a cell spans; a ``rowspan`` of 0 is all that follow in its section."""
    match = SPAN.match(node.attributes.get(name) or "")
    return min(int(match[1]), MOST_ROWS) if match else 1


def _plain_text(node: Any) -> str:
    """The text below an element on one line."""
    return SPACE.sub(" ", _Text().of(node)).strip(" ")


def markdown_title(source: str) -> str:
    """The title of the front matter (YAML or TOML); without one the first heading outside blocks of code."""
    front = FRONT_MATTER.match(source)
    if front is not None and (named := FRONT_TITLE.search(front[1])):
        title = named[1].strip()
        quoted = len(title) > 1 and title[0] == title[-1] and title[0] in "\"'"
        return title[1:-1].strip() if quoted else title
    above, fence = "", ""
    for line in source[front.end() if front else 0 :].splitlines():
        if match := FENCE.match(line):
            fence = "" if fence == match[1] else fence or match[1]
            above = ""
        elif not fence:
            if (match := HEADING.match(line)) and (title := _heading(line[match.end() :])):
                return title
            if above and UNDERLINE.fullmatch(line):
                return above
            above = line.strip()
    return ""


def _heading(rest: str) -> str:
    """The text after the signs of a heading, without those that may close it."""
    return rest.strip(" \t").rstrip("#").rstrip(" \t")
