"""Figures for papers: widths of a column and a page, 8 pt type, text that stays text, and their colors.

The color map is that of the explorer's page: one path through OKLab from dark indigo over teal to pale
yellow. Lightness changes in equal steps and carries the value alone, so the order of the colors is seen with
any color vision and in gray.

Axes: C colors.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import whole_file
from unmask.base.optional import require
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

COLUMN = 3.25
"""Inches: one of two columns, as in the styles of ACL and ICML."""
PAGE = 6.75
"""Inches: the width of both columns."""
DOTS_PER_INCH = 600

QUERY = "#1d5aa8"
KEY = "#b4500b"
"""The explorer's colors of queries and keys; they differ for every kind of color vision."""
INK = "#1d1f24"
MUTED = "#636670"

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "text.parse_math": False,  # a "$" of the text is no formula
    "svg.fonttype": "none",
    "svg.hashsalt": "unmask",
    "pdf.fonttype": 42,
}
"""Settings of matplotlib. Text stays text, so that it can be searched, edited and set in another font."""

METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
}
"""Metadata that each format omits, so that the same figure is the same file."""


@contextmanager
def paper_style() -> Iterator[None]:
    """Matplotlib with `STYLE` inside the block; yours can draw in it too.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require("figures")
    import matplotlib as mpl

    settings: Any = STYLE  # its keys are among those that matplotlib types one by one
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A script that the font lacks: the text is in the file, and another program has its glyphs.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in inches; draw in it inside `paper_style`.

    Raises:
        InvalidRequest: the width is not one that fits on a page.
    """
    from matplotlib.figure import Figure

    if not 1 <= width <= 20:
        raise InvalidRequest(f"width is {width}; give inches from 1 to 20, such as {COLUMN} or {PAGE}")
    return Figure(figsize=(width, height), layout="constrained")


def attention_colors() -> "ListedColormap":
    """The color map of the explorer's maps on paper: 0 is pale, 1 is dark."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(palette("light") / 255, name="unmask")


def check_format(path: Path) -> None:
    """Refuse a file that is no figure.

    Raises:
        InvalidRequest: its name ends in something else than .svg, .pdf or .png.
    """
    if path.suffix.lower() not in METADATA:
        raise InvalidRequest(f"a figure is a file that ends in .svg, .pdf or .png, not {path}")


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure as SVG, PDF or PNG (600 dots per inch); the same figure gives the same bytes.

    Raises:
        InvalidRequest: the file has another ending.
        OutputError: the file cannot be written.
    """
    path = Path(path)
    check_format(path)
    kind = path.suffix.lower()
    with paper_style(), whole_file(path) as partial:
        figure.savefig(partial, format=kind[1:], dpi=DOTS_PER_INCH, metadata=METADATA[kind])


Tone = Literal["light", "dark"]

COLORS = 256
LIGHTNESS = (0.205, 0.985)
HUE_DEGREES = (283, 103)
CHROMA_ENDS = 0.025
CHROMA_RISE = 0.095

TO_LMS = (
    (1, 0.3963377774, 0.2158037573),
    (1, -0.1055613458, -0.0638541728),
    (1, -0.0894841775, -1.291485548),
)
TO_RGB = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.707614701),
)
"""From OKLab to the cube roots of cone responses, and from those responses to linear sRGB: Ottosson 2020."""


def palette(tone: Tone = "light") -> NDArray[np.uint8]:
    """The 256 colors (256, 3) as sRGB bytes; the first stands for 0 and is near the paper of the tone."""
    t_C = np.arange(COLORS) / (COLORS - 1)
    if tone == "light":
        t_C = 1 - t_C
    lightness_C = LIGHTNESS[0] + (LIGHTNESS[1] - LIGHTNESS[0]) * t_C
    chroma_C = CHROMA_ENDS + CHROMA_RISE * np.sin(math.pi * t_C)
    hue_C = np.radians(HUE_DEGREES[0] + (HUE_DEGREES[1] - HUE_DEGREES[0]) * t_C)
    lab = np.stack([lightness_C, chroma_C * np.cos(hue_C), chroma_C * np.sin(hue_C)], axis=1)
    linear = (lab @ np.array(TO_LMS).T) ** 3 @ np.array(TO_RGB).T
    curved = 1.055 * np.clip(linear, 0.0031308, None) ** (1 / 2.4) - 0.055
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, curved)
    return np.asarray(np.floor(255 * np.clip(encoded, 0, 1) + 0.5).astype(np.uint8))


def hex_color(color: NDArray[np.uint8]) -> str:
    """One color of a palette for CSS and SVG."""
    return "#" + "".join(f"{part:02x}" for part in color)
