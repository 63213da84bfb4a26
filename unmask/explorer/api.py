"""The API as a function: a method, a path, a query and a body in, an answer out.

It uses no socket and no web framework. `unmask.explorer.server.application` wraps it in a server, a notebook
sends its messages to it, and a saved page contains the answers of some paths.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from unmask.errors import UnmaskError
from unmask.explorer.routes import every_route, first_routes
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.sessions.background import Analyses, Corpora
from unmask.explorer.sessions.loading import PageLoader
from unmask.explorer.sessions.models import AnyModel, Loader, Models, ModelSlot
from unmask.explorer.sessions.opened_index import OpenedIndex
from unmask.explorer.sessions.texts import HELD_BYTES, HELD_TEXTS, Texts, read_ahead
from unmask.http.requests import Request
from unmask.http.responses import Answer, Refused, failure, plain, unexpected
from unmask.http.worker import Worker
from unmask.interpret.corpus.texts import Corpus
from unmask.models.model import Model

LATER_SECONDS = 1.5
"""After its first model is loaded: what the page does not begin with is imported when it has its picture."""


@cache
def _other_routes() -> tuple[Route, ...]:
    from unmask.explorer.export.views import ROUTES

    return (*every_route(), *ROUTES)


class Api:
    """The API of the explorer's page for some models.

    Args:
        models: loaded ones, or each a name and a function that loads it. The first is a new text's unless
            another is asked for. Those to be loaded are, one after the other, while it answers already.
        held_texts: texts kept in memory.
        held_bytes: memory limit for all texts together; a text that needs more by itself is refused.
        index: the folder of an index that the page can search; None offers no search.
        first_text: read by the first model as soon as it is loaded, before a page asks for it.
        corpus: the texts that heads are shown on; None takes the sentences of the package.
        corpus_cache: the folder where results over the corpus are kept; None keeps them in memory alone.
        loader: loads further models that the page names, by hub id or folder of this machine. None allows
            none, as everywhere but where a user of this machine alone can reach the page.
    """

    def __init__(
        self,
        models: Sequence[AnyModel | tuple[str, Loader]],
        *,
        held_texts: int = HELD_TEXTS,
        held_bytes: int = HELD_BYTES,
        index: str | Path | None = None,
        first_text: str | None = None,
        corpus: Corpus | str | Path | None = None,
        corpus_cache: Path | None = None,
        loader: PageLoader | None = None,
    ) -> None:
        worker, all_models = Worker(), Models(models)
        texts = Texts(all_models, worker, held_texts, held_bytes)
        analyses = Analyses(worker)
        opened = OpenedIndex(None if index is None else Path(index), all_models, worker, analyses)
        self._context = AppContext(
            all_models,
            texts,
            worker,
            analyses,
            opened,
            Corpora(corpus, corpus_cache, all_models, worker),
            loader,
            lambda path: self.answer("GET", path),
        )

        def loaded(place: ModelSlot) -> None:
            if place.index != 0:
                return
            if first_text is not None:
                read_ahead(texts, place, first_text)
            later = threading.Timer(LATER_SECONDS, _other_routes)
            later.daemon = True
            later.start()

        all_models.start(loaded)

    def answer(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """Answer one request; an error becomes an answer that says what is wrong.

        Args:
            method: GET, POST or DELETE.
            path: relative to the API, such as ``texts/0123/heads``, each part as in a URL. A query may stand
                behind it, instead of in ``query``.
            query: values by name, not escaped.
            body: of a POST: an object in JSON.

        Called from several threads at once, it answers each as soon as it can; a request that needs a model
        waits for its turn.
        """
        path, _, written = path.partition("?")
        values = {**dict(parse_qsl(written, keep_blank_values=True)), **(query or {})}
        parts = tuple(unquote(part) for part in path.strip("/").split("/"))
        try:
            for routes in (first_routes, _other_routes):
                for route in routes():
                    match = route.match(method, parts)
                    if match is not None:
                        return route.handler(self._context, Request(match, values, body))
            raise Refused(404, "UnknownRoute", "the explorer has no such route")
        except UnmaskError as error:
            return failure(error)
        except Exception as error:
            return failure(unexpected(error))

    def ask(self, path: str, body: object = None) -> Any:
        """The JSON that answers a GET of a path, or a POST where there is a body.

        Raises:
            Refused: it is refused, for the reason that the page would show.
        """
        data = b"" if body is None else json.dumps(body).encode()
        return plain(self.answer("GET" if body is None else "POST", path, body=data))

    def model(self, index: int) -> Model:
        """A model by its number, once it is loaded.

        Raises:
            Refused: it could not be loaded, or is an ELMo.
        """
        return self._context.models.at(index).need()

    def finish(self, text_id: str, seconds: float | None = None) -> bool:
        """Wait until a text was measured whole (or that has failed); False where it has not by then.

        Raises:
            Refused: the text is not held.
        """
        return self._context.texts.get(text_id).wait(seconds)

    def close(self) -> None:
        """Stop all work in the background."""
        for place in self._context.models.places:
            place.give_up()
        self._context.worker.close()
