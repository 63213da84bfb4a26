"""The source of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A folder of checkpoint files and its name."""

    folder: Path
    name: str
    """The published name if known, else the folder's name."""
    revision: str | None = None
    """The 40-digit commit on the hub; None for a local folder."""
