"""A drawing as a list of shapes in points, how wide its text is, the small map of a pattern, and its SVG.

Widths are those of DejaVu Sans, so that text can be broken into lines without a font. The other fonts that an
SVG names are narrower.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, assert_never
from xml.sax.saxutils import escape, quoteattr

from unmask.spec import (
    AttentionPattern,
    BlockSparse,
    CausalAttention,
    FullAttention,
    SlidingWindow,
    SlidingWindowGlobal,
)

FIRST = 32
"""The code of the first character in `REGULAR` and `BOLD`."""

# fmt: off
REGULAR = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775,
    752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390,
    337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
    635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
)
"""Thousandths of the type's size, by character from `FIRST` on."""
BOLD = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696,
    696, 696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821,
    837, 372, 372, 775, 637, 995, 837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457,
    365, 457, 838, 500, 500, 675, 716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687,
    716, 716, 493, 595, 478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
)
# fmt: on
OTHERS = {"×": 838, "θ": 690, "±": 838, "φ": 790, "·": 380, "σ": 780}
UNKNOWN = 1050
"""Of a character that is in no table; few are wider."""


@dataclass(frozen=True)
class Box:
    """A rectangle; a circle if its radius is half of its sides."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str | None = None
    radius: float = 0.0
    line_width: float = 0.75
    name: str = ""
    """What it stands for; empty for decoration."""


@dataclass(frozen=True)
class Line:
    """A line through points, from the first to the last, with an arrow there if wanted."""

    points: tuple[tuple[float, float], ...]
    color: str
    arrow: bool = False
    line_width: float = 0.9


@dataclass(frozen=True)
class Label:
    """One line of text. ``y`` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    color: str
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"
    inside: str = ""
    """The name of the box that holds it; empty if none does."""

    @property
    def left(self) -> float:
        """Where it starts."""
        width = text_width(self.text, self.size, bold=self.bold)
        return self.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]


Shape = Box | Line | Label


@dataclass(frozen=True)
class Drawing:
    """Shapes on a page of points, y downward; later ones lie on earlier ones."""

    width: float
    height: float
    title: str
    shapes: tuple[Shape, ...]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The width of a line of text, in points."""
    table = BOLD if bold else REGULAR
    codes = ((character, ord(character) - FIRST) for character in text)
    parts = (
        table[code] if 0 <= code < len(table) else OTHERS.get(character, UNKNOWN) for character, code in codes
    )
    return sum(parts) * size / 1000


def wrap(text: str, width: float, size: float, *, bold: bool = False) -> Iterator[str]:
    """The text in lines of at most this width, broken at spaces, and inside of a word that is wider."""
    line = ""
    for word in text.split():
        together = f"{line} {word}".strip()
        if text_width(together, size, bold=bold) <= width:
            line = together
            continue
        if line:
            yield line
        line = word
        while text_width(line, size, bold=bold) > width:
            fits = max(
                1, next(n for n in range(len(line)) if text_width(line[: n + 1], size, bold=bold) > width)
            )
            yield line[:fits]
            line = line[fits:]
    if line:
        yield line


SIDE = 12
"""Cells of a side."""
RADIUS = 2
"""Of a window that is drawn, whatever the pattern's own: the map says that there is one."""
SEAM = 0.3
"""Points by which a row covers the next one's edge, where a viewer would leave a pale line."""
SEEN, UNSEEN, BORDER = "#1d5aa8", "#ffffff", "#8fa3bf"
RANDOM = {(2, 7), (3, 9), (4, 8), (5, 2), (6, 9), (7, 3), (8, 4), (9, 5)}
"""Cells that stand for random blocks."""


def minimap(pattern: AttentionPattern | None, side: float) -> list[Shape]:
    """The map at the origin, ``side`` points wide; nothing for attention without a pattern."""
    if pattern is None:
        return []
    allowed, cell = _allowed(pattern), side / SIDE
    shapes: list[Shape] = [Box(0, 0, side, side, UNSEEN)]
    for query in range(SIDE):
        keys = [key for key in range(SIDE) if allowed(query, key)]
        starts = [key for key in keys if key - 1 not in keys]
        ends = [key for key in keys if key + 1 not in keys]
        for start, end in zip(starts, ends, strict=True):
            high = min(cell + SEAM, side - query * cell)
            shapes.append(Box(start * cell, query * cell, (end - start + 1) * cell, high, SEEN))
    shapes.append(Box(0, 0, side, side, "none", BORDER, line_width=0.6))
    return shapes


def _allowed(pattern: AttentionPattern) -> Callable[[int, int], bool]:
    match pattern:
        case FullAttention():
            return lambda query, key: True
        case CausalAttention():
            return lambda query, key: key <= query
        case SlidingWindow(dilation=dilation):
            step = 1 if dilation == 1 else 2
            return lambda query, key: abs(query - key) <= RADIUS * step and (query - key) % step == 0
        case SlidingWindowGlobal(window=window):
            inner = _allowed(window)
            return lambda query, key: 0 in (query, key) or inner(query, key)
        case BlockSparse(random_blocks=random):
            ends = (0, SIDE - 1)
            return lambda query, key: (
                query in ends
                or key in ends
                or abs(query - key) <= 1
                or (random > 0 and (query, key) in RANDOM)
            )
        case _:
            assert_never(pattern)


FONTS = "DejaVu Sans, Arial, Helvetica, sans-serif"
ARROW = 4.5
"""Length of an arrow's head, in points."""


def svg(drawing: Drawing) -> str:
    """The drawing as the text of an SVG, with text that stays text."""
    width, height = f"{drawing.width:g}", f"{drawing.height:g}"
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt" '
        f'viewBox="0 0 {width} {height}" font-family={quoteattr(FONTS)} role="img" '
        f"aria-label={quoteattr(drawing.title)}>",
        f"<title>{escape(drawing.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *map(_shape, drawing.shapes),
        "</svg>",
    )
    return "\n".join(lines) + "\n"


def arrow_head(line: Line) -> tuple[tuple[float, float], ...]:
    """The triangle at the end of a line whose last part is vertical or horizontal."""
    (x0, y0), (x, y) = line.points[-2:]
    length = max(abs(x - x0), abs(y - y0)) or 1.0
    dx, dy = (x - x0) / length * ARROW, (y - y0) / length * ARROW
    return (x, y), (x - dx - dy / 2.5, y - dy + dx / 2.5), (x - dx + dy / 2.5, y - dy - dx / 2.5)


def _shape(shape: Shape) -> str:
    match shape:
        case Box():
            stroke = (
                ""
                if shape.stroke is None
                else f' stroke="{shape.stroke}" stroke-width="{shape.line_width:g}"'
            )
            rounded = f' rx="{shape.radius:.2f}"' if shape.radius else ""
            return (
                f'<rect x="{shape.x:.2f}" y="{shape.y:.2f}" width="{shape.width:.2f}" '
                f'height="{shape.height:.2f}"{rounded} fill="{shape.fill}"{stroke}/>'
            )
        case Line():
            head = ""
            if shape.arrow:
                head = f'<polygon points="{_points(arrow_head(shape))}" fill="{shape.color}"/>'
            return (
                f'<polyline points="{_points(shape.points)}" fill="none" stroke="{shape.color}" '
                f'stroke-width="{shape.line_width:g}"/>{head}'
            )
        case Label():
            bold = ' font-weight="bold"' if shape.bold else ""
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            return (
                f'<text x="{shape.x:.2f}" y="{shape.y:.2f}" font-size="{shape.size:g}" '
                f'fill="{shape.color}"{bold}{anchor}>{escape(shape.text)}</text>'
            )
        case _:
            assert_never(shape)


def _points(points: tuple[tuple[float, float], ...]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
