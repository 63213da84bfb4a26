"""An encoder's architecture as a block diagram: what is drawn, where, and as SVG. Free of torch."""

from unmask.spec.diagram.layout import architecture_drawing, architecture_svg

__all__ = ["architecture_drawing", "architecture_svg"]
