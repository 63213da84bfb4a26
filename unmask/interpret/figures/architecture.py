"""The architecture of an encoder as a figure: a block diagram, or two with their differences colored."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from unmask.base.files import whole_file
from unmask.interpret.figures.paper import check_format, paper_style, save_figure
from unmask.spec import CheckpointOutput, EncoderSpec
from unmask.spec.diagram.drawing import Box, Drawing, Label, Line, arrow_head, svg
from unmask.spec.diagram.layout import architecture_drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unmask.spec.elmo import ElmoSpec

POINTS = 72
"""Points per inch."""


def architecture_figure(
    *specs: "EncoderSpec | ElmoSpec",
    names: Sequence[str] = (),
    outputs: Sequence[CheckpointOutput | None] = (),
) -> "Figure":
    """The block diagram of one encoder, as wide as a column, or of two beside each other.

    Layers that differ at most in their attention are drawn as one block; see
    `unmask.spec.diagram.architecture_drawing`.

    Args:
        specs: one or two encoders or ELMos, such as ``model.spec``.
        names: the title of each; without names there are no titles.
        outputs: what the checkpoint of each outputs, such as ``model.checkpoint.head``.

    Raises:
        InvalidRequest: there are no specs or more than two, or not as many names or outputs.
        MissingExtra: matplotlib is not installed.
    """
    return _figure(architecture_drawing(*specs, names=names, outputs=outputs))


def save_architecture(
    path: str | Path,
    *specs: "EncoderSpec | ElmoSpec",
    names: Sequence[str] = (),
    outputs: Sequence[CheckpointOutput | None] = (),
) -> None:
    """Write the diagram of `architecture_figure` as SVG, which needs no matplotlib, PDF or PNG.

    Raises:
        InvalidRequest: see `architecture_figure`, or the file has another ending.
        MissingExtra: matplotlib is not installed, and the file is a PDF or PNG.
        OutputError: the file cannot be written.
    """
    path = Path(path)
    check_format(path)
    drawing = architecture_drawing(*specs, names=names, outputs=outputs)
    if path.suffix.lower() != ".svg":
        save_figure(_figure(drawing), path)
        return
    with whole_file(path) as partial:
        partial.write_text(svg(drawing), encoding="utf-8", newline="\n")


def _figure(drawing: Drawing) -> "Figure":
    with paper_style():
        from matplotlib.figure import Figure
        from matplotlib.patches import Ellipse, FancyBboxPatch, Polygon, Rectangle

        figure = Figure(figsize=(drawing.width / POINTS, drawing.height / POINTS))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        for order, shape in enumerate(drawing.shapes):
            match shape:
                case Box(x=x, y=y, width=width, height=height, radius=radius):
                    style: dict[str, Any] = {
                        "facecolor": shape.fill,
                        "edgecolor": shape.stroke or "none",
                        "linewidth": shape.line_width if shape.stroke else 0.0,
                        "zorder": order,
                    }
                    if 2 * radius == width == height:
                        middle = (x + radius, y + radius)
                        axes.add_patch(Ellipse(middle, width, height, **style))
                    elif radius:
                        rounded = f"round,pad=0,rounding_size={radius}"
                        axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=rounded, **style))
                    else:
                        axes.add_patch(Rectangle((x, y), width, height, **style))
                case Line(points=points, color=color):
                    xs, ys = zip(*points, strict=True)
                    axes.plot(xs, ys, color=color, linewidth=shape.line_width, zorder=order)
                    if shape.arrow:
                        axes.add_patch(Polygon(arrow_head(shape), color=color, linewidth=0, zorder=order))
                case Label():
                    axes.text(
                        shape.x,
                        shape.y,
                        shape.text,
                        fontsize=shape.size,
                        color=shape.color,
                        fontweight="bold" if shape.bold else "normal",
                        ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                        va="baseline",
                        zorder=order,
                    )
                case _:
                    assert_never(shape)
    return figure
