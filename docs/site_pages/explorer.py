"""Saved pages of the explorer, computed when the site is built, and the frames that show them."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sphinx.errors import ExtensionError
from sphinx.util.logging import getLogger

import unmask

TEXT = "The river bank was muddy, so she went to the bank for a loan."


class Saved(NamedTuple):
    """A page that ``unmask report`` saves."""

    heading: str
    about: str
    options: tuple[str, ...]


SAVED = {
    "mini.html": Saved(
        "A masked language model",
        "This is unmask-mini, a small masked language model, in the views *Map*, *Heads*, *Flow* and "
        "*Sinks*. Click the second *bank* to see which words it attends to.",
        ("-m", "unmask-mini", "--views", "map,heads,flow,sinks", "-l", "3", "-H", "2"),
    ),
    "alibi.html": Saved(
        "Positions as a term of the scores",
        "This is a tiny encoder with ALiBi, whose scores have a term that falls with the distance between "
        "query and key. *Bias* shows this term alone, *Content* the scores without it.",
        ("-m", "variant/alibi", "--views", "map,heads"),
    ),
}
"""By the name of the file."""

FRAME = """\
## {heading}

{about}

```{{raw}} html
<iframe class="explorer" src="_static/saved/{name}" title="{heading}" loading="lazy"></iframe>
```

"""
ABSENT = "The pages are left out, because this site was built without torch.\n"


def frames(folder: Path) -> str:
    """The Markdown of the frames; their pages are computed into a folder, unless they are there and recent.

    Raises:
        ExtensionError: a page could not be computed.
    """
    if find_spec("torch") is None:
        getLogger(__name__).info(
            "torch is not installed, so live pages of the explorer and names that need torch are left out"
        )
        return ABSENT
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(unmask.__file__).parent
    changed = max(path.stat().st_mtime for path in package.rglob("*") if path.suffix != ".pyc")
    for name, saved in SAVED.items():
        path = folder / name
        if not path.exists() or path.stat().st_mtime < changed:
            compute(saved, path)
    return "".join(FRAME.format(name=name, **saved._asdict()) for name, saved in SAVED.items())


def compute(saved: Saved, path: Path) -> None:
    """Save a page, in a process of its own, so that a build holds no model."""
    command = [sys.executable, "-m", "unmask", "report", TEXT, "-o", str(path), *saved.options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ExtensionError(f"unmask report failed: {ran.stderr.strip().splitlines()[-1]}")
