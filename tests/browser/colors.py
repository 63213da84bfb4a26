"""The page's color map, written down a second time from its definition."""

import math

import numpy as np

FLOOR = 1e-6


def palette(tone):
    """(256, 3) sRGB bytes: lightness in equal steps, hue from indigo to yellow, OKLab."""
    t = np.arange(256) / 255
    if tone == "light":
        t = 1 - t
    lightness = 0.205 + (0.985 - 0.205) * t
    chroma = 0.025 + 0.095 * np.sin(math.pi * t)
    hue = np.radians(283 - 180 * t)
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    to_lms = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = (lab @ to_lms.T) ** 3 @ to_rgb.T
    curved = 1.055 * np.clip(linear, 0.0031308, None) ** (1 / 2.4) - 0.055
    shown = np.where(linear <= 0.0031308, 12.92 * linear, curved)
    return np.floor(255 * np.clip(shown, 0, 1) + 0.5).astype(int)


def tile_codes(probability):
    """The codes that a tile may have for a probability: one, or two where it lies between them."""
    if probability < FLOOR:
        return {0}
    exact = 255 + 254 * math.log(probability) / -math.log(FLOOR)
    return {min(255, max(1, math.floor(exact + 0.5 + slack))) for slack in (-0.002, 0.002)}


def color_indexes(scale, probability):
    """Which of the 256 colors the cell of a probability may have."""
    return {_index(scale, code) for code in tile_codes(probability)}


def _index(scale, code):
    probability = math.exp(math.log(FLOOR) * (255 - code) / 254) if code else 0.0
    if scale == "linear":
        place = probability
    elif scale == "sqrt":
        place = math.sqrt(probability)
    else:
        place = 1 - math.log(probability) / math.log(FLOOR) if probability > FLOOR else 0.0
    return math.floor(255 * min(1, place) + 0.5)
