"""Where a checkpoint comes from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A folder of checkpoint files and what it is called."""

    folder: Path
    name: str
    """The published name where it is known, else the folder's."""
    revision: str | None = None
    """The hub's 40-digit commit; None for a local folder."""
