"""The list of texts of a gallery: one text a line, or one JSON object a line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from unmask.base.files import check_regular
from unmask.errors import InvalidRequest, InvalidText
from unmask.text.lines import lines
from unmask.text.rows import json_rows


@dataclass(frozen=True)
class GalleryText:
    """One page that is asked for."""

    text: str
    pair: str | None = None
    title: str | None = None
    view: str = "overview"
    layer: int | None = None
    head: int | None = None
    """Without a layer and a head, those of the finding on its card."""
    model: str | None = None
    """None is the model of the command."""
    name: str = ""
    """What errors call it: its line and its file."""


def read_gallery_texts(path: Path) -> tuple[GalleryText, ...]:
    """The texts of a ``.jsonl`` file, or of a file with one text a line; blank lines are left out.

    Raises:
        InvalidText: a line is not UTF-8, no JSON object, or has a key or a value that does not fit; the error
            names the line.
        InvalidRequest: the file cannot be read or has no text.
    """
    check_regular(path, InvalidRequest)
    found = tuple(_of_json(path) if path.suffix == ".jsonl" else _of_lines(path))
    if not found:
        raise InvalidRequest(
            f"{path} has no text; write one text a line, or .jsonl with a text in each object"
        )
    seen: dict[GalleryText, str] = {}
    for one in found:
        known = seen.setdefault(GalleryText(**{**vars(one), "name": "", "title": None}), one.name)
        if known != one.name:
            raise InvalidText(f"{one.name} asks for the same page as {known}; leave one of them out")
    return found


def _of_lines(path: Path) -> Iterator[GalleryText]:
    for number, line in lines(path):
        if line.strip():
            yield GalleryText(line.strip(), name=f"line {number} of {path}")


def _of_json(path: Path) -> Iterator[GalleryText]:
    for place, row in json_rows(path):
        yield _checked(row, str(place))


def _checked(row: Mapping[str, Any], name: str) -> GalleryText:
    known = [field.name for field in fields(GalleryText) if field.name != "name"]
    unknown = [key for key in row if key not in known]
    if unknown:
        raise InvalidText(f"{name} has a key {unknown[0]!r}; there are {', '.join(known)}")
    for key in ("text", "pair", "title", "view", "model"):
        value = row.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise InvalidText(f"{name}: {key} is {value!r}; it must be text")
    for key in ("layer", "head"):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InvalidText(f"{name}: {key} is {value!r}; it must be a number from 0")
    if row.get("text") is None:
        raise InvalidText(f'{name} has no "text"')
    if (row.get("layer") is None) != (row.get("head") is None):
        raise InvalidText(f"{name} names a layer or a head alone; name both or neither")
    view, views = row.get("view"), _views()
    if view is not None and view not in views:
        raise InvalidText(f"{name}: there is no view {view!r}; there are {', '.join(views)}")
    return GalleryText(**{key: value for key, value in row.items() if value is not None}, name=name)


def _views() -> tuple[str, ...]:
    """Views of one text by one model, which a page of a gallery can open on."""
    from unmask.explorer.views import VIEWS

    return tuple(view.id for view in VIEWS if view.needs == "text")
