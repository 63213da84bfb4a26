"""The indexes of a server, and a search as work for its scheduler."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import EmptyText, InvalidRequest, InvalidText, TextTooLong
from unmask.loaded import Model
from unmask.search.index import Index
from unmask.search.values import Hit
from unmask.serve.errors import BadField
from unmask.serve.models import Ready
from unmask.serve.scheduler import Work
from unmask.text import Encoding, Truncation

CHARACTERS_PER_TOKEN = 4
"""By which the tokens of a query are estimated: views have different tokenizers, or none."""
EXPLAINED_TOKENS = 128
"""What explaining one hit costs, in tokens, since the model reads the passage again."""


@dataclass(frozen=True)
class ServedIndex:
    """An index under the name that requests use."""

    name: str
    index: Index


@dataclass(frozen=True)
class Found:
    """The hits of one search, and whether the end of its query was dropped."""

    hits: tuple[Hit, ...]
    truncated: bool


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

    def named(self, name: str | None) -> ServedIndex:
        """The index with that name, or the first if no name is given.

        Raises:
            BadField: there is none.
        """
        if not self.all:
            raise BadField("index", "no index is served; start the server with --index", 404, "no_index")
        if name is None:
            return self.all[0]
        found = next((one for one in self.all if one.name == name), None)
        if found is None:
            names = ", ".join(one.name for one in self.all)
            raise BadField(
                "index", f"there is no index {name[:80]!r}; there are {names}", 404, "index_not_found"
            )
        return found


@dataclass(frozen=True)
class _Search:
    """One search; no two share a pass."""

    served: ServedIndex
    query: str
    k: int
    truncation: Truncation
    options: Mapping[str, Any] = field(compare=False)

    def run(self, encodings: Sequence[Encoding]) -> list[Found]:
        """The hits, as the only result."""
        search = self.served.index.search
        try:
            return [Found(search(self.query, self.k, **self.options), False)]
        except TextTooLong:
            if self.truncation == "error":
                raise
        return [Found(search(self.query, self.k, truncation="end", **self.options), True)]


def search(served: ServedIndex, query: str, k: int, *, truncation: Truncation, **options: Any) -> Ready:
    """A search whose only result is `Found`; options as of `unmask.search.Index.search`.

    It runs in the thread of the models, like a pass, for the price of its estimated tokens.
    """
    try:
        query.encode()
    except UnicodeEncodeError:
        raise InvalidText("query holds a lone surrogate, which is not Unicode text; remove it") from None
    if not query.strip():
        raise EmptyText("query has no words; give a text with at least one")
    one = _Search(served, query, k, truncation, options)
    tokens = 1 + len(query) // CHARACTERS_PER_TOKEN + (k * EXPLAINED_TOKENS if options["why"] else 0)
    zeros = np.zeros(tokens, dtype=np.int64)
    work = Work(("search", id(one)), one.run, here=True)
    return Ready(work, [Encoding("", None, zeros, zeros, tokens, served)])  # type: ignore[arg-type]
