"""The views of the page: one row each. The page's list of them is generated from here."""

from dataclasses import dataclass
from typing import Literal

Group = Literal["Search", "Look", "Explain", "Compare", "Measure", "Tour"]
"""The tabs are grouped by the question that a view answers, in this order."""

Needs = Literal["text", "two", "index", "none"]
"""A text that was read; the same text read by two models; an index; nothing."""


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
    maps: bool = False
    """Whether it shows attention maps, which some models do not have."""
    strip: bool = False
    """Whether it shows the text itself."""
    one_head: bool = False
    """Whether it is about one head of one layer."""


VIEWS = (
    View(
        id="overview", group="Look", title="Overview", key="o", maps=True, strip=True,
        hint="what the model did with the text, in one sentence each",
    ),
    View(
        id="search", group="Search", title="Search", key="q", needs="index", strip=True,
        hint="passages of an index, and why each was found",
    ),
    View(
        id="tokens", group="Look", title="Tokens", key="k", strip=True,
        hint="the tokens of the text and the attention each receives",
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
        id="map", group="Look", title="Map", key="m", maps=True, strip=True, one_head=True,
        hint="one head, down to a single exact value",
    ),
    View(
        id="flow", group="Look", title="Flow", key="f", maps=True, strip=True, one_head=True,
        hint="the top-k attention edges of a token, across layers",
    ),
    View(
        id="sinks", group="Explain", title="Sinks", key="s", maps=True, strip=True,
        hint="attention sinks by class of key, token and head",
    ),
    View(
        id="paths", group="Explain", title="Paths", key="p", maps=True, strip=True,
        hint="attention rollout and gradient attribution for a token",
    ),
    View(
        id="words", group="Explain", title="Words", key="w", strip=True,
        hint="masked-word predictions, logit lens and head ablations",
    ),
    View(
        id="compare", group="Compare", title="Compare", key="c", needs="two", strip=True,
        hint="two models on one text, or two texts in one model",
    ),
    View(
        id="geometry", group="Measure", title="Geometry", key="g",
        hint="intrinsic dimension, isotropy and word senses by layer",
    ),
    View(
        id="wall", group="Measure", title="Length scaling", key="l", needs="none",
        hint="time and memory versus sequence length, measured on this machine",
    ),
    View(
        id="tour", group="Tour", title="Tour", key="t", needs="none",
        hint="an introduction to attention, with experiments on your text",
    ),
)  # fmt: skip
"""All views. In a group, tabs have this order."""

SAVED = tuple(view.id for view in VIEWS if view.needs != "index")
"""Views that a saved page can hold."""

OF_A_TEXT = tuple(view.id for view in VIEWS if view.needs in ("text", "two"))
"""Those that are about the text that was read."""
