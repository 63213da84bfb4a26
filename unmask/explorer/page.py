"""The page: where its files lie, its views, its state in an address, the texts and files that it offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlencode

STATIC = Path(__file__).parent / "static"

VERSION = "3"
"""Version of the state format, generated into `web/src/api/types.ts` from here. Before 3, a state that named
no view meant the map; since 3 it means the arcs of its text, and the first view where it names no text."""

MAX_PDF_BYTES = 32 << 20
"""Maximum size of a PDF file: 32 MiB. Its text is subject to the limits of every text."""
PDF = "application/pdf"

EXAMPLES = (
    "The river bank was muddy, so we took the money to the bank.",
    "The trophy does not fit in the suitcase because it is too big.",
    "A rose is a rose is a rose.",
    "Café, naïve, 東京 and 🙂 are words too.",
)
OTHER_SCRIPTS = (
    "山上有人，水中有月。",
    "كانت ضفة النهر موحلة، لذلك أخذنا المال إلى البنك.",
    "नदी के किनारे एक बैंक है।",
)
"""Offered where the tokenizer knows their characters; the second is read from right to left."""


def fragment(fields: Mapping[str, object]) -> str:
    """A state as ``#v=3&text=...``; None and empty values mean the page's defaults."""
    values = {name: value for name, value in fields.items() if value is not None and value != ""}
    return "#" + urlencode({"v": VERSION, **values}, errors="replace", quote_via=quote)


Group = Literal["Start", "Look", "Labels", "Search", "Compare", "Measure", "Tour"]
"""The tabs, in their order; the views of one stand beside each other."""

Needs = Literal["text", "two", "index", "live", "none"]
"""A text that was read; the same text read by two models; an index; short texts of its own; nothing."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One view. Its component is ``web/src/views/{id}/{Id}.svelte``."""

    id: str
    """What addresses, requests (`PageRequest.saved_in`) and ``unmask report --views`` call it."""
    group: Group
    title: str
    key: str
    """The key that opens it."""
    hint: str
    """What it shows, in one sentence."""
    needs: Needs = "text"
    ability: Literal["takes_labels"] | None = None
    """What a model of the explorer must be able to do (`ModelInfo`) for the view to be offered."""
    maps: bool = False
    """Whether it shows attention maps, which some models do not have."""
    strip: bool = False
    """Whether it shows the text itself."""
    one_head: bool = False
    """Whether it is about one head of one layer."""


VIEWS = (
    View(
        id="start", group="Start", title="Start", key="a", needs="live",
        hint="two senses of a word through the layers, and three guesses",
    ),
    View(
        id="overview", group="Look", title="Arcs", key="o", maps=True, strip=True,
        hint="what the model did with the text: arcs of one head, and findings",
    ),
    View(
        id="map", group="Look", title="Map", key="m", maps=True, strip=True, one_head=True,
        hint="one head, down to a single exact value",
    ),
    View(
        id="flow", group="Look", title="Flow", key="f", maps=True, strip=True, one_head=True,
        hint="the top-k attention edges of a token, across layers",
    ),
    View(
        id="heads", group="Look", title="Heads", key="h", maps=True,
        hint="every layer and head at a glance",
    ),
    View(
        id="head", group="Look", title="Head", key="i", maps=True, one_head=True,
        hint="one head: its kind, effect, likes and strongest examples in a corpus",
    ),
    View(
        id="labels", group="Labels", title="Labels", key="b", ability="takes_labels", strip=True,
        hint="spans of the text that fit labels you name, and why",
    ),
    View(
        id="search", group="Search", title="Search", key="q", needs="index", strip=True,
        hint="passages of an index, and why each was found",
    ),
    View(
        id="compare", group="Compare", title="Compare", key="c", needs="two", strip=True,
        hint="two models on one text, or two texts in one model",
    ),
    View(
        id="tokens", group="Measure", title="Tokens", key="k", strip=True,
        hint="the tokens of the text and the attention each receives",
    ),
    View(
        id="sinks", group="Measure", title="Sinks", key="s", maps=True, strip=True,
        hint="attention sinks by class of key, token and head",
    ),
    View(
        id="paths", group="Measure", title="Paths", key="p", maps=True, strip=True,
        hint="attention rollout and gradient attribution for a token",
    ),
    View(
        id="words", group="Measure", title="Words", key="w", strip=True,
        hint="masked-word predictions, logit lens and head ablations",
    ),
    View(
        id="features", group="Measure", title="Features", key="y", strip=True,
        hint="features of a sparse autoencoder that are active in the text",
    ),
    View(
        id="geometry", group="Measure", title="Geometry", key="g", strip=True,
        hint="intrinsic dimension, isotropy and word senses by layer",
    ),
    View(
        id="roofline", group="Measure", title="Roofline", key="l", needs="none", strip=True,
        hint="operations and bytes of attention beside what this machine can do",
    ),
    View(
        id="tour", group="Tour", title="Tour", key="t", needs="none",
        hint="an introduction to attention, with experiments on your text",
    ),
)  # fmt: skip
"""All views. In a group, tabs have this order."""

SAVED = tuple(view.id for view in VIEWS if view.needs not in ("index", "live") and view.ability is None)
"""Views that a saved page can hold."""

_VIEW = {view.id: view for view in VIEWS}

IN_DRAWER = tuple(view.id for view in VIEWS if view.group == "Measure")
"""Those that the page shows in a drawer over its canvas, beside the heads of the text."""

OF_A_TEXT = tuple(view for view in SAVED if _VIEW[view].needs in ("text", "two") and view != "features")
"""Those that are about the text that was read, and follow from it and the model: features depend on what the
cache of this machine holds, so a page has them where they were looked at alone."""
