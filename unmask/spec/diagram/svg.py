"""A drawing as the text of an SVG."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never
from xml.sax.saxutils import escape, quoteattr

from unmask.spec import CheckpointOutput, EncoderSpec
from unmask.spec.diagram.drawing import Box, Drawing, Label, Line, Shape
from unmask.spec.diagram.layout import architecture_drawing

if TYPE_CHECKING:
    from unmask.spec.elmo import ElmoSpec

FONTS = "DejaVu Sans, Arial, Helvetica, sans-serif"
ARROW = 4.5
"""Length of an arrow's head, in points."""


def architecture_svg(
    *specs: "EncoderSpec | ElmoSpec",
    names: Sequence[str] = (),
    outputs: Sequence[CheckpointOutput | None] = (),
) -> str:
    """The diagram of one encoder, or of two beside each other, as SVG; see `architecture_drawing`."""
    return svg(architecture_drawing(*specs, names=names, outputs=outputs))


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
