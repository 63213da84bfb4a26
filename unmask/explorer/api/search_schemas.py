"""The schemas of search: what the explorer's index holds, and the passages that it finds.

Characters are code points of the document's text; a hit's ``text`` begins at its ``start``.
"""

from dataclasses import dataclass
from typing import Any, Literal

from unmask.explorer.api.page_request import PageRequest
from unmask.search.options import Mode, Unit
from unmask.search.values import Explanation


@dataclass(frozen=True)
class IndexModel:
    """The model of one view of the index."""

    view: str
    name: str
    revision: str | None


@dataclass(frozen=True)
class SearchIndex:
    """The index of this explorer. ``modes``: what a search can rank by, the default first.

    Hybrid search adds 1 / (``rank_constant`` + rank) for each view that found a passage.
    """

    path: str
    generation: int
    documents: int
    passages: int
    views: tuple[str, ...]
    modes: tuple[str, ...]
    models: tuple[IndexModel, ...]
    rank_constant: int


@dataclass(frozen=True)
class SearchIndexRequest(PageRequest):
    """What the index holds; asked again, it shows what was added since."""

    path = "index"
    answer = SearchIndex


@dataclass(frozen=True)
class SearchHit:
    """A passage that was found. ``matches``: where terms of the query stand, as BM25 reads both.

    ``why`` has an explanation for each view that found it, if they were asked for.
    """

    document: str
    page: int | None
    start: int
    end: int
    score: float
    text: str
    title: str
    metadata: dict[str, Any]
    matches: tuple[tuple[int, int], ...]
    why: tuple[Explanation, ...] | None


@dataclass(frozen=True)
class SearchResults:
    """The hits of a query, best first; ``seconds`` is the time of the search with its explanations."""

    query: str
    mode: str
    unit: str
    generation: int
    seconds: float
    hits: tuple[SearchHit, ...]


@dataclass(frozen=True)
class SearchRequest(PageRequest):
    """The best passages or documents for a query."""

    path = "search"
    answer = SearchResults

    text: str
    k: int = 10
    mode: Mode | None = None
    unit: Unit = "passage"
    why: Literal["no", "shares", "yes"] = "no"
    """shares: without gradient attribution, which takes most of the time."""
