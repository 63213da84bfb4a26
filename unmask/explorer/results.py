"""What the API answers in JSON: frozen dataclasses, and the one place that writes them down.

``web/src/api/types.ts`` mirrors every class here, name by name; a test compares the two.
Numbers of attention are not here: they travel as bytes (`unmask.explorer.binary`).
"""

import json
from dataclasses import asdict, dataclass

from unmask.explorer.interface import ExplorableModel, ExplorableView


@dataclass(frozen=True)
class ModelInfo:
    """The model that is being looked at."""

    name: str
    revision: str | None
    parameter_count: int
    layers: int
    heads: int
    width: int
    max_tokens: int | None


@dataclass(frozen=True)
class Token:
    """One token; ``start`` and ``end`` count code points of the text, both 0 if ``special``."""

    id: int
    piece: str
    surface: str
    start: int
    end: int
    special: bool


@dataclass(frozen=True)
class TextRead:
    """One text as the model reads it. ``id`` names it in later requests."""

    id: str
    model: str
    layers: int
    heads: int
    total_tokens: int
    kept_tokens: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Problem:
    """Why a request was refused: a kind for programs, a sentence for people.

    ``total_tokens`` and ``max_tokens`` are set when a text is too long.
    """

    kind: str
    sentence: str
    total_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Failure:
    """The body of every answer that is not a success."""

    error: Problem


Result = ModelInfo | TextRead | Failure


def model_info(model: ExplorableModel) -> ModelInfo:
    """Describe a model."""
    return ModelInfo(
        name=model.name,
        revision=model.revision,
        parameter_count=model.parameter_count,
        layers=model.layer_count,
        heads=model.head_count,
        width=model.width,
        max_tokens=model.max_tokens,
    )


def text_read(text_id: str, model: ExplorableModel, view: ExplorableView) -> TextRead:
    """Describe one text that was read."""
    encoding = view.encoding
    tokens = tuple(
        Token(
            id=int(encoding.ids[index]),
            piece=encoding.pieces[index],
            surface=encoding.surface(index),
            start=int(encoding.spans[index, 0]),
            end=int(encoding.spans[index, 1]),
            special=bool(encoding.special[index]),
        )
        for index in range(len(view))
    )
    return TextRead(
        id=text_id,
        model=model.name,
        layers=view.layer_count,
        heads=view.head_count,
        total_tokens=encoding.total_tokens,
        kept_tokens=encoding.kept_tokens,
        tokens=tokens,
    )


def to_json(result: Result) -> bytes:
    """UTF-8 JSON of a result.

    Written in ASCII with escapes, because a sentence may quote a text that is not valid Unicode.
    """
    return json.dumps(asdict(result), allow_nan=False, separators=(",", ":")).encode("ascii")
