"""Why a passage was found: shares of its score, and the characters that they belong to.

Axes: N tokens of a passage, E features.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attribution import attribution
from unmask.interpret.intervention.target import Embedding
from unmask.loaded import Model
from unmask.model.spec import PooledVector
from unmask.search.analysis import Analyzer
from unmask.search.queries import Query
from unmask.search.ranking import Ranking
from unmask.search.searcher import Searcher
from unmask.search.options import View
from unmask.search.values import Explanation, Share, Span

Floats = NDArray[np.float32]


def explain(
    searcher: Searcher, query: Query, passage: int, rankings: Mapping[View, Ranking], analyzer: Analyzer
) -> tuple[Explanation, ...]:
    """An explanation by each view whose ranking has the passage."""
    ranks = {view: ranking.rank_of(passage) for view, ranking in rankings.items()}
    place = searcher.contents.place(passage)
    text = searcher.contents.text(place.document)[place.start : place.end]
    found = []
    for view, rank in ranks.items():
        if rank is None and len(rankings) > 1:
            continue
        match view:
            case "bm25":
                found.append(_bm25(searcher, query, passage, rank, analyzer, text, place.start))
            case "sparse":
                found.append(_sparse(searcher, query, passage, rank))
            case "multi_vector":
                found.append(_vectors(searcher, query, passage, rank))
            case "dense":
                found.append(_dense(searcher, query, passage, rank, text, place.start))
    return tuple(found)


def _bm25(
    searcher: Searcher,
    query: Query,
    passage: int,
    rank: int | None,
    analyzer: Analyzer,
    text: str,
    start: int,
) -> Explanation:
    weights = searcher.bm25.explain(query.terms, passage)
    spans: dict[str, list[Span]] = {}
    for found in analyzer.terms(text):
        spans.setdefault(found.term, []).append((start + found.start, start + found.end))
    shares = tuple(Share(one.term, one.weight, tuple(spans.get(one.term, ()))) for one in weights)
    return Explanation("bm25", sum(one.share for one in shares), rank, shares)


def _sparse(searcher: Searcher, query: Query, passage: int, rank: int | None) -> Explanation:
    weights = searcher.sparse.explain(*query.sparse, passage)
    shares = tuple(Share(query.word(id), weight) for id, weight in weights)
    return Explanation("sparse", sum(weight for _, weight in weights), rank, shares)


def _vectors(searcher: Searcher, query: Query, passage: int, rank: int | None) -> Explanation:
    """Tokens of the query; those without characters of their own are summed up as special."""
    matches = searcher.vectors.explain(query.tokens.vectors_QE, passage)
    labels, special = query.tokens.labels, query.tokens.special
    shares = tuple(
        Share(label, match.score, ((match.start, match.end),) if match.start >= 0 else ())
        for label, match, lone in zip(labels, matches, special, strict=True)
        if not lone
    )
    rest = sum(match.score for match, lone in zip(matches, special, strict=True) if lone)
    return Explanation("multi_vector", sum(match.score for match in matches), rank, shares, rest)


def _dense(
    searcher: Searcher, query: Query, passage: int, rank: int | None, text: str, start: int
) -> Explanation:
    """Shares of the passage's tokens if its vector is the mean of theirs, and the gradient attribution.

    The states are those of the passage read alone. The score is the stored one: with late chunking, and by
    rounding, shares are scaled to add up to it.
    """
    model = searcher.model("dense")
    head = model.embedding_head()
    score = float(searcher.dense.exact(query.vector_E, np.array([passage]))[0])
    (encoding,) = model.document_encodings([text], truncation="end")
    raise NotImplementedError((model, head, score, encoding, start))
