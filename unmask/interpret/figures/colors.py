"""The color map of the explorer's page: one path through OKLab from dark indigo over teal to pale yellow.

Lightness changes in equal steps and carries the value alone, so the order of the colors is seen with any
color vision and in gray.

Axes: C colors.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
    shown = np.where(linear <= 0.0031308, 12.92 * linear, curved)
    found: NDArray[np.uint8] = np.floor(255 * np.clip(shown, 0, 1) + 0.5).astype(np.uint8)
    return found


def hex_color(color: NDArray[np.uint8]) -> str:
    """One color of a palette for CSS and SVG."""
    return "#" + "".join(f"{part:02x}" for part in color)
