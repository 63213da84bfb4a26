"""What all routes share: the models, the texts, and the worker that runs both."""

from collections.abc import Callable
from dataclasses import dataclass

from unmask.explorer.sessions.analyses import Analyses
from unmask.explorer.sessions.corpora import Corpora
from unmask.explorer.sessions.loading import PageLoader
from unmask.explorer.sessions.models import Models
from unmask.explorer.sessions.opened_index import OpenedIndex
from unmask.explorer.sessions.scaling import LengthScaling
from unmask.explorer.sessions.texts import Texts
from unmask.http.responses import Answer
from unmask.http.worker import Worker


@dataclass(frozen=True)
class AppContext:
    """The shared state of one explorer."""

    models: Models
    texts: Texts
    worker: Worker
    analyses: Analyses
    """Analyses that do not belong to a single text."""
    wall: LengthScaling
    index: OpenedIndex
    corpora: Corpora
    loader: PageLoader | None
    """Loads models that the page names; None where it may name none."""
    answer: Callable[[str], Answer]
    """What the API answers to a GET of a path."""
