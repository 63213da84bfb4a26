"""The indexes of a server, and a search as work for its scheduler."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unmask.errors import EmptyText, InvalidRequest, InvalidText, TextTooLong, UnmaskError
from unmask.models.load import Model
from unmask.search.index import Index
from unmask.search.searcher import RERANKED, RERANKERS, can_rerank
from unmask.search.store.manifest import read_pointer
from unmask.search.values import Hit
from unmask.serve.errors import BadField
from unmask.serve.models import Models, ServedModel
from unmask.serve.scheduler import Work
from unmask.tasks.reader import Ready
from unmask.text import Truncation

CHARACTERS_PER_TOKEN = 4
"""By which the tokens of a query are estimated: views have different tokenizers, or none."""
OPENING_SECONDS = 1.0
"""How long the first request after a commit waits for it; later ones do not wait. Lists of many millions of
vectors take longer, and until then the index is searched as it was."""
EXPLAINED_TOKENS = 128
"""What explaining one hit costs, in tokens, since the model reads the passage again."""


class _Opening:
    """A newer generation of an index, which another thread opens."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._show: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def newest(self) -> None:
        """Show a newer generation if it is prepared; the first request that sees one waits for that."""
        if thread := self._started():
            thread.join(OPENING_SECONDS)
        with self._lock:
            if self._thread is not None and not self._thread.is_alive():
                show, self._thread, self._show = self._show, None, None
                if show is not None:
                    show()

    def _started(self) -> threading.Thread | None:
        """The thread that was started for a newer generation, if there is one and no thread runs."""
        newer = False
        with suppress(UnmaskError, OSError):
            newer = read_pointer(self._index.path).number > self._index.generation
        with self._lock:
            if not newer or self._thread is not None:
                return None
            self._thread = threading.Thread(target=self._prepare, name="unmask serve: index", daemon=True)
            self._thread.start()
            return self._thread

    def _prepare(self) -> None:
        with suppress(UnmaskError, OSError):
            self._show = self._index.prepared_refresh()


@dataclass(frozen=True)
class ServedIndex:
    """An index under the name that requests use."""

    name: str
    index: Index
    opening: _Opening = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "opening", _Opening(self.index))

    def work(self, ready: Ready[Any]) -> Work:
        """A prepared search as work for the scheduler."""
        return Work(("search", ready.key), ready.run)

    def newest(self) -> Index:
        """The index as it was committed last, as soon as that is prepared.

        Until then, or if its folder cannot be read, it is the index as it was before. What is returned keeps
        its generation, so that hits are those of the generation that is reported.
        """
        self.opening.newest()
        return copy(self.index)


@dataclass(frozen=True)
class Answered:
    """The hits of one search, whether the end of its query was dropped, and what was searched."""

    hits: tuple[Hit, ...]
    truncated: bool
    generation: int


class Indexes:
    """The indexes of a server, in the order in which they were named; models that are served are shared."""

    def __init__(self, indexes: Mapping[str, Index], models: Sequence[Model]) -> None:
        for index in indexes.values():
            for model in models:
                with suppress(InvalidRequest):  # it is a model of no view
                    index.use(model)
            for view in index.settings.models:
                index.model(view)  # the first search shall not load it
        self.all = tuple(ServedIndex(name, index) for name, index in indexes.items())

    def models(self) -> list[Model]:
        """The models that compute queries."""
        return [served.index.model(view) for served in self.all for view in served.index.settings.models]

    def warm(self) -> None:
        """Search each index once in each way, so that the first request finds what it needs in memory."""
        for served in self.all:
            served.index.search("a text", truncation="end")
            for view in served.index.settings.proposing:
                served.index.search("a text", mode=view, approximate=True, truncation="end")

    def named(self, name: str | None) -> ServedIndex:
        """The index with that name, or the first if no name is given.

        Raises:
            BadField: there is none.
        """
        if not self.all:
            raise BadField("index", "no index is served; start the server with --index", 404, "no_index")
        if name is None:
            return self.all[0]
        chosen = next((served for served in self.all if served.name == name), None)
        if chosen is None:
            names = ", ".join(served.name for served in self.all)
            raise BadField(
                "index", f"there is no index {name[:80]!r}; there are {names}", 404, "index_not_found"
            )
        return chosen


@dataclass(frozen=True, eq=False)
class _Search:
    """One search."""

    served: ServedIndex
    query: str
    k: int
    truncation: Truncation
    reranker: ServedModel | None
    options: Mapping[str, Any]
    truncated_tokens = 0  # whether the query is too long is known when it is read

    def __len__(self) -> int:
        explained = self.k * EXPLAINED_TOKENS if self.options["why"] else 0
        readings = 1 if self.reranker is None else 1 + max(self.k, self.options.get("candidates") or RERANKED)
        return 1 + readings * len(self.query) // CHARACTERS_PER_TOKEN + explained

    def run(self) -> Answered:
        """The hits."""
        reranker = None if self.reranker is None else self.reranker.model
        index = self.served.newest()
        search = partial(index.search, self.query, self.k, reranker=reranker, **self.options)
        try:
            return Answered(search(), False, index.generation)
        except TextTooLong:
            if self.truncation == "error":
                raise
        return Answered(search(truncation="end"), True, index.generation)


def reranker_named(models: Models, name: str) -> ServedModel:
    """The served model with that name, which scores hits again.

    Raises:
        BadField: there is none, or it scores nothing.
    """
    served = models.named(name, field="reranker")
    if not can_rerank(served.model):
        raise BadField("reranker", f"reranker is {name!r}; name a served {RERANKERS}", kind="wrong_task")
    return served


def search(
    served: ServedIndex,
    query: str,
    k: int,
    *,
    truncation: Truncation,
    reranker: ServedModel | None,
    **options: Any,
) -> Ready[list[Answered]]:
    """A search whose only result is `Answered`; options as of `unmask.Index.search`.

    It runs where models run, like a pass, for the price of its estimated tokens.
    """
    try:
        query.encode()
    except UnicodeEncodeError:
        raise InvalidText("query holds a lone surrogate, which is not Unicode text; remove it") from None
    if not query.strip():
        raise EmptyText("query has no words; give a text with at least one")
    if options["approximate"]:
        mode = served.index.mode(options["mode"])
        if ("dense" if mode == "hybrid" else mode) not in served.index.settings.proposing:
            # A graph of neighbors may have to be built first, for longer than a request lasts.
            raise BadField(
                "approximate",
                f"nothing in the index {served.name} proposes passages for mode {mode}; leave approximate "
                "out, or serve an index made with dense_bits or vector_bits",
            )
    searched = _Search(served, query, k, truncation, reranker, options)
    return Ready([searched], _run, list, id(searched))  # no two share a pass


def _run(searches: Sequence[_Search]) -> list[Answered]:
    return [searched.run() for searched in searches]
