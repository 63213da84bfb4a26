"""What all routes share: the models, the texts, and the worker that runs both."""

from collections.abc import Callable
from dataclasses import dataclass

from unmask.explorer.analyses import Analyses
from unmask.explorer.models import Models
from unmask.explorer.texts import Texts
from unmask.explorer.wall import Wall
from unmask.http.responses import Answer
from unmask.http.worker import Worker


@dataclass(frozen=True)
class Workplace:
    """One explorer."""

    models: Models
    texts: Texts
    worker: Worker
    analyses: Analyses
    """Those of no single text."""
    wall: Wall
    answer: Callable[[str], Answer]
    """What the API answers to a GET of a path."""
