"""The guided tour: each chapter runs experiments on the reader's text and names the encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import InvalidRequest
from unmask.explorer.tour.experiments import (
    Run,
    TourQuery,
    blur,
    collapse,
    handshake,
    layers,
    order,
    positions,
    prediction,
    reach,
    scaling,
    search,
    sinks,
    tiles,
    values,
)
from unmask.models.load import Model

DEFAULT_TEXT = "The woman lost her keys in the garden, so she waited by the door until her brother came home."
MOST_CHARACTERS = 4000


@dataclass(frozen=True)
class Chapter:
    """A chapter in the table of contents."""

    id: str
    title: str
    order: int
    needs: str
    """The mechanism that its encoder must have."""
    choices: tuple[str, ...]
    """Parameters in addition to the text: ``layer``, ``head``, ``token``."""


def chapters() -> tuple[Chapter, ...]:
    """All chapters in order."""
    return CHAPTERS


def run(
    chapter: str,
    models: Sequence[Model],
    text: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    token: int | None = None,
) -> dict[str, Any]:
    """Run the experiments of a chapter on a text; return plain values for JSON.

    Args:
        chapter: the id of the chapter.
        models: the loaded models, in order of preference. If none has the mechanism, a small encoder from the
            package is used, and the result says so.
        text: the reader's text; an empty one is replaced by a default sentence, a long one is truncated.
        layer: layer of the head, for chapters that show one head; None chooses a head with a clear pattern.
        head: the head in that layer.
        token: the chosen token; None for a content word near the middle.

    Raises:
        InvalidRequest: there is no such chapter, layer, head or token, or the text is too long.
        TextError: the text cannot be read.
    """
    if chapter not in _RUNS:
        raise InvalidRequest(f"there is no chapter {chapter!r}; there are {', '.join(_RUNS)}")
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"the text has {len(text):,} characters and the tour reads at most {MOST_CHARACTERS:,}; "
            "shorten it"
        )
    words = text if text.strip() else DEFAULT_TEXT
    experiments = _RUNS[chapter](models, words, TourQuery(layer, head, token))
    return {"chapter": chapter, "text": words, "experiments": experiments}


_HEAD = ("layer", "head")
_TOLD: tuple[tuple[str, str, str, tuple[str, ...], Run], ...] = (
    ("handshake", "Queries and keys", "softmax attention", _HEAD, handshake),
    ("values", "Values and the residual stream", "softmax attention", (*_HEAD, "token"), values),
    ("scaling", "Why scores are scaled", "softmax attention", (), scaling),
    ("order", "Attention without positions", "no positions", (), order),
    ("positions", "Four position encodings", "positions of four kinds", _HEAD, positions),
    ("reach", "Windows and global tokens", "windows", ("token",), reach),
    ("blur", "What linear attention loses", "linear attention", _HEAD, blur),
    ("tiles", "Tile by tile, the same numbers", "softmax attention", (*_HEAD, "token"), tiles),
    ("layers", "Local and global layers", "windows in some layers", (), layers),
    ("sinks", "Attention sinks", "softmax attention", (), sinks),
    ("collapse", "Does the representation collapse?", "softmax attention", (), collapse),
    ("prediction", "What a prediction rests on", "an MLM head", ("token",), prediction),
    ("search", "Why a passage matches", "mean-pooled embeddings", (), search),
)
CHAPTERS = tuple(
    Chapter(name, title, order, needs, choices)
    for order, (name, title, needs, choices, _) in enumerate(_TOLD, start=1)
)
_RUNS: dict[str, Run] = {name: told for name, _, _, _, told in _TOLD}
