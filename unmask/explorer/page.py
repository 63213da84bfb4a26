"""The page as files and addresses: where it lies, its state in an address, the texts it offers."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

STATIC = Path(__file__).parent / "static"

VERSION = "3"
"""Version of the state format, generated into `web/src/api/types.ts` from here. Before 3, a state that named
no view meant the map; since 3 it means the overview."""

EXAMPLES = (
    "The river bank was muddy, so we took the money to the bank.",
    "The trophy does not fit in the suitcase because it is too big.",
    "A rose is a rose is a rose.",
    "Café, naïve, 東京 and 🙂 are words too.",
)


def fragment(fields: Mapping[str, object]) -> str:
    """A state as ``#v=3&text=...``; None and empty values mean the page's defaults."""
    values = {name: value for name, value in fields.items() if value is not None and value != ""}
    return "#" + urlencode({"v": VERSION, **values}, errors="replace", quote_via=quote)
