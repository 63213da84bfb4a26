"""The index page of a gallery: one card per saved page, in a static HTML file without a script.

Axes: S cells of a map along a side.
"""

import base64
import hashlib
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from unmask.explorer.wire.tiles import FLOOR
from unmask.interpret.figures.paper import COLORS, hex_color, palette

CELLS = 48
"""Cells of a picture along a side, at most."""
SHADES = 16
"""Colors of a picture, evenly along the color map."""


@dataclass(frozen=True)
class Card:
    """One page in the index."""

    file: str
    """The page's name in the folder."""
    title: str
    words: str
    """The beginning of the text."""
    sentence: str
    """Its first finding; empty where there is none."""
    about: str
    """The model, the tokens, and the head of the picture."""
    picture: str
    """A map, from `map_picture`."""
    sha256: str = ""
    """Of the page; it is written again where its file has another."""


def map_picture(codes_SS: NDArray[np.uint8], label: str) -> str:
    """A map of one head as SVG: rows are queries, columns are keys, on the page's square-root color scale.

    Runs of equal cells are one rectangle, and cells next to zero are left to the background. Colors are
    classes ``c1`` to ``c15``, which `index_page` defines for both tones.

    Args:
        codes_SS: codes of attention weights, see `unmask.explorer.wire.tiles.codes`. More than `CELLS` along
            a side are made fewer, each the largest of those it stands for.
        label: a description for screen readers.
    """
    step = math.ceil(len(codes_SS) / CELLS)
    starts = np.arange(0, len(codes_SS), step)
    small_SS = np.maximum.reduceat(np.maximum.reduceat(codes_SS, starts, axis=0), starts, axis=1)
    shades_SS = shades(small_SS)
    parts = []
    for y, row in enumerate(shades_SS):
        borders = np.flatnonzero(np.diff(row)) + 1
        for start, end in zip([0, *borders], [*borders, len(row)], strict=True):
            if row[start]:
                parts.append(f'<path class="c{row[start]}" d="M{start} {y}h{end - start}v1h{start - end}z"/>')
    side = len(shades_SS)
    return (
        f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {side} {side}" '
        f'shape-rendering="crispEdges">{"".join(parts)}</svg>'
    )


def shades(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Which of the `SHADES` colors stands for each code; 0 is no attention."""
    weights = np.where(codes > 0, np.exp(math.log(FLOOR) * (255.0 - codes) / 254), 0.0)
    return np.floor((SHADES - 1) * np.sqrt(weights) + 0.5).astype(np.int64)


def index_page(cards: Sequence[Card], title: str, version: str) -> bytes:
    """The index as one HTML file: it loads nothing, runs no script and is the same for the same cards."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'none'; base-uri 'none'"
    count = f"{len(cards)} text{'' if len(cards) == 1 else 's'}"
    listed = "\n".join(_card(card) for card in cards)
    heading = html.escape(title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{heading}</h1>
<p>{count}, read by encoders. Each page is one file that stays interactive without a network: every head, the
map down to a single weight, and what was found. A picture is the attention of one head: a row is a token that
attends, a column the token attended to.</p>
</header>
<main>
<ul>
{listed}
</ul>
</main>
<footer>Made with unmask {html.escape(version)}.</footer>
</body>
</html>
""".encode("utf-8", "replace")


def _card(card: Card) -> str:
    sentence = f'<p class="found">{html.escape(card.sentence)}</p>\n' if card.sentence else ""
    words = "" if card.words == card.title else f'<p class="words">{html.escape(card.words)}</p>\n'
    return f"""<li>
<a href="{html.escape(quote(card.file))}">
{card.picture}
<h2>{html.escape(card.title)}</h2>
</a>
{words}{sentence}<p class="about">{html.escape(card.about)}</p>
</li>"""


def _style() -> str:
    return STYLE + _tone("light") + "@media (prefers-color-scheme: dark) {\n" + _tone("dark") + "}\n"


def _tone(tone: str) -> str:
    colors = palette("dark" if tone == "dark" else "light")
    chosen = [colors[round((COLORS - 1) * shade / (SHADES - 1))] for shade in range(SHADES)]
    names = PAPERS[tone] + f" --zero: {hex_color(chosen[0])};"
    classes = "".join(f".c{shade} {{ fill: {hex_color(chosen[shade])}; }}\n" for shade in range(1, SHADES))
    return f":root {{ {names} }}\n{classes}"


PAPERS = {
    "light": "--paper: #fbfaf6; --card: #ffffff; --line: #dedbd1; --text: #1d1f24; --muted: #636670; "
    "--accent: #1d5aa8;",
    "dark": "--paper: #14161c; --card: #1a1d25; --line: #333845; --text: #e7e6e1; --muted: #9a9ea9; "
    "--accent: #8ab8f5;",
}
"""The colors of the explorer's page, from ``web/src/page.css``."""

STYLE = """
:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 40px 24px 56px; max-width: 1240px; background: var(--paper);
  color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; }
h1, h2, .words { font-family: 'Iowan Old Style', 'Palatino Linotype', Palatino, 'URW Palladio L',
  'Source Serif 4', Georgia, serif; }
h1 { margin: 0 0 8px; font-size: 34px; font-weight: 600; line-height: 1.15; overflow-wrap: anywhere; }
header p { margin: 0 0 32px; max-width: 68ch; color: var(--muted); }
ul { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 270px), 1fr)); gap: 20px;
  margin: 0; padding: 0; list-style: none; }
li { display: flex; flex-direction: column; gap: 8px; position: relative; padding: 14px 14px 12px;
  border: 1px solid var(--line); border-radius: 12px; background: var(--card);
  overflow-wrap: anywhere; max-width: 440px; }
li:hover { border-color: var(--accent); }
a { color: inherit; text-decoration: none; }
a::after { content: ''; position: absolute; inset: 0; border-radius: 12px; }
a:hover h2 { color: var(--accent); }
a:focus-visible { outline: none; }
a:focus-visible::after { outline: 2px solid var(--accent); outline-offset: 2px; }
svg { display: block; width: 100%; aspect-ratio: 1; border-radius: 6px; background: var(--zero); }
h2 { margin: 12px 0 0; font-size: 19px; font-weight: 600; line-height: 1.25; }
p { margin: 0; }
.words { color: var(--muted); font-style: italic; }
.about { margin-top: auto; padding-top: 4px; color: var(--muted); font-size: 13px; }
footer { margin-top: 32px; color: var(--muted); font-size: 13px; }
@media (max-width: 480px) { body { padding: 24px 16px 40px; } h1 { font-size: 27px; } }
"""
