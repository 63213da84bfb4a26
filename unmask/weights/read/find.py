"""Find a checkpoint by name: a folder, a shipped or installed checkpoint, or a hub id."""

from importlib.util import find_spec
from pathlib import Path

import unmask
from unmask.base.optional import require
from unmask.errors import CheckpointNotFound, InvalidRequest
from unmask.families import DEFAULT_NAME, DEFAULT_PACKAGE
from unmask.weights.read.hub import download
from unmask.weights.read.source import Source

DEFAULT = "default"
"""The name of the model from an installed package."""

VARIANTS = ("alibi", "disentangled", "learned", "linear", "local-global", "unordered", "windows")
"""Tiny encoders that each demonstrate one mechanism, loaded as "variant/alibi" and so on."""

_INSIDE = Path(unmask.__file__).parent / "shipped"
SHIPPED = {"unmask-mini": _INSIDE / "unmask-mini"} | {
    f"variant/{name}": _INSIDE / "variants" / name for name in VARIANTS
}
"""Checkpoints in this package by name; the README.md in their folders describes them."""


def find(name: str | Path, revision: str | None = None) -> Source:
    """The checkpoint of that name: "default", one of `SHIPPED`, a folder, or a hub id like ``owner/model``.

    A folder takes precedence over a hub id of the same name. Names that look like paths are never
    requested from the hub.

    Raises:
        MissingExtra: "default" was requested and its package is not installed.
        CheckpointNotFound: there is no such folder, and the name cannot be a hub id.
        InvalidRequest: a revision was given for a checkpoint that is not on a hub.
        HubError: the hub did not provide it.
    """
    text = str(name)
    path = Path(name).expanduser()
    if text not in (DEFAULT, *SHIPPED) and not path.is_dir():
        if _is_hub_id(text):
            return download(text, revision)
        what = "is a file, not a folder" if path.exists() else "is not a folder"
        raise CheckpointNotFound(
            f"{text} {what}; name a checkpoint folder, a hub id such as owner/model, "
            f"{', '.join(map(repr, SHIPPED))} or 'default'"
        )
    if revision is not None:
        raise InvalidRequest(f"revision {revision!r} was given, and {text} is not on a hub")
    if text in SHIPPED:
        return Source(SHIPPED[text], text)
    return _default() if text == DEFAULT else Source(path, path.resolve().name)


def _default() -> Source:
    require("default")
    spec = find_spec(DEFAULT_PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    return Source(Path(spec.submodule_search_locations[0]) / "model", DEFAULT_NAME)


def _is_hub_id(text: str) -> bool:
    parts = text.split("/")
    return (
        len(parts) == 2
        and all(part and part not in (".", "..") for part in parts)
        and not text.startswith("~")
        and "\\" not in text
    )
