"""The page's state as the fragment of its URL; ``web/src/state/url.ts`` reads it."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

VERSION = "3"
"""Version of the state format, generated into `web/src/api/types.ts` from here. Before 3, a state that named
no view meant the map; since 3 it means the overview."""


def fragment(fields: Mapping[str, object]) -> str:
    """A state as ``#v=3&text=...``; None and empty values mean the page's defaults."""
    given = {name: value for name, value in fields.items() if value is not None and value != ""}
    return "#" + urlencode({"v": VERSION, **given}, errors="replace", quote_via=quote)
