"""Why a passage was found: shares of its score, and the characters that they belong to.

Axes: Q vectors of the query; N tokens of a passage; D features of a state; E of a vector.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.search.analysis import Analyzer
from unmask.search.contents import Place
from unmask.search.options import View
from unmask.search.passages import context_of
from unmask.search.ranking import Ranking
from unmask.search.searcher import Query, Searcher
from unmask.search.syntax import Range
from unmask.search.values import Explanation, Share, Span
from unmask.tasks.late_interaction import late_interaction
from unmask.tasks.prompts import prompt_of, spans_after, unpooled_tokens


@dataclass(frozen=True, eq=False)
class Explainer:
    """Explains the hits of one query.

    Args:
        searcher: what ranked them.
        query: what was asked.
        rankings: the ranking of each view.
        analyzer: the terms of BM25.
        attributes: whether to compute gradient attribution, too.
        compressed: the views whose vectors are; then their score without compression is stated.
        proposing: the views whose passages were proposed by codes or centroids.
    """

    searcher: Searcher
    query: Query
    rankings: Mapping[View, Ranking]
    analyzer: Analyzer
    attributes: bool = True
    compressed: Collection[View] = ()
    proposing: Collection[View] = ()

    def explain(self, passage: int) -> tuple[Explanation, ...]:
        """An explanation by each view whose ranking has the passage."""
        place = self.searcher.contents.place(passage)
        explanations = []
        for view, ranking in self.rankings.items():
            rank = ranking.rank_of(passage)
            if rank is not None:
                explanations.append(self._of_view(view, passage, rank, place))
        return tuple(explanations)

    def _of_view(self, view: View, passage: int, rank: int, place: Place) -> Explanation:
        text = self.searcher.contents.text(place.document)[place.start : place.end]
        match view:
            case "bm25":
                return self._bm25(passage, rank, text, place.start)
            case "sparse":
                return self._sparse(passage, rank, text, place.start)
            case "multi_vector":
                return self._vectors(passage, rank)
            case "dense":
                return self._dense(passage, rank, text, place)
            case _:
                assert_never(view)

    def _bm25(self, passage: int, rank: int, text: str, start: int) -> Explanation:
        spans: dict[str, list[Span]] = {}
        for term in self.analyzer.terms(text):
            spans.setdefault(term.term, []).append((start + term.start, start + term.end))
        weights = self.searcher.bm25.explain(self.query.terms, passage)
        shares = tuple(Share(weight.term, weight.weight, tuple(spans[weight.term])) for weight in weights)
        return Explanation("bm25", _total(shares), rank, shares)

    def _sparse(self, passage: int, rank: int, text: str, start: int) -> Explanation:
        """Words of the query; one that the model only infers from the passage stands nowhere in it."""
        (encoding,) = self.searcher.model_of("sparse").tokenize([text], truncation="end")
        spans: dict[int, list[Span]] = {}
        for id, (begin, end), special in zip(
            encoding.ids.tolist(), encoding.offsets.tolist(), encoding.special.tolist(), strict=True
        ):
            if not special:
                spans.setdefault(id, []).append((start + begin, start + end))
        weights = self.searcher.sparse.explain(*self.query.sparse, passage)
        shares = tuple(Share(self.query.word(id), weight, tuple(spans.get(id, ()))) for id, weight in weights)
        return Explanation("sparse", _total(shares), rank, shares)

    def _vectors(self, passage: int, rank: int) -> Explanation:
        """Tokens of the query; those without characters of their own are summed up as special."""
        tokens = self.query.tokens
        matches = self.searcher.vectors.explain(tokens.vectors_QE, passage)
        shares = tuple(
            Share(label, match.score, ((match.start, match.end),) if match.start >= 0 else ())
            for label, match, lone in zip(tokens.labels, matches, tokens.special, strict=True)
            if not lone
        )
        rest = sum(match.score for match, lone in zip(matches, tokens.special, strict=True) if lone)
        uncompressed = self._uncompressed(passage) if "multi_vector" in self.compressed else None
        return Explanation(
            "multi_vector", _total(shares) + rest, rank, shares, rest, uncompressed_score=uncompressed
        )

    def _uncompressed(self, passage: int) -> float:
        """The score of a passage whose vectors are those of its model."""
        place = self.searcher.contents.place(passage)
        text = self.searcher.contents.text(place.document)[place.start : place.end]
        model = self.searcher.model_of("multi_vector")
        (vectors,) = model.multi_vectors([text], "document", truncation="end")
        return late_interaction(self.query.tokens.vectors_QE, vectors)

    def _dense(self, passage: int, rank: int, text: str, place: Place) -> Explanation:
        """Shares of the passage's tokens if its vector is the mean of theirs, and the gradient attribution.

        Tokens of a context that was embedded before the passage have one share, which is named so.
        Both are those of the passage read alone, also where the index was made by late chunking; shares are
        scaled so that they add up to the stored score.
        """
        from unmask.interpret.activation_cache import ActivationCache
        from unmask.interpret.effects.attribution import attribution
        from unmask.interpret.effects.target import Embedding

        model = self.searcher.model_of("dense")
        head, query_E = model.embedding_head(), self.query.vector_E
        score = float(self.searcher.dense.exact(query_E, np.array([passage]))[0])
        prompt = prompt_of(head.prompts, "document")
        document = self.searcher.contents.text(place.document)
        parts = self.searcher.contents.context(place)
        context = context_of(document, parts)
        (encoding,) = model.tokenize([prompt + context + text], truncation="end")
        passage_text = _PassageText(
            text,
            place.start,
            spans_after(encoding, len(prompt) + len(context)),
            spans_after(encoding, len(prompt)),
            tuple(parts),
        )
        cache = ActivationCache.of(self.searcher.trainable_encoder, encoding)
        target = Embedding(head.pooling, toward=tuple(query_E.tolist()))
        unpooled = unpooled_tokens(model.tokenizer, head, prompt)
        caused: tuple[Share, ...] = ()
        if self.attributes and not unpooled:  # the target pools every token
            caused = passage_text.shares(attribution(cache, target).values)[0]
        stored: dict[str, float | None] = {
            "uncompressed_score": self._uncompressed_dense(context + text)
            if "dense" in self.compressed
            else None,
            "first_score": self.searcher.dense.code_score(query_E, passage)
            if "dense" in self.proposing
            else None,
        }
        if head.pooling != ("mean",) or head.projections:
            return Explanation("dense", score, rank, (), score, caused, **stored)
        products_N = cache.final_ND.double().numpy() @ query_E.astype(np.float64)
        products_N[:unpooled] = 0
        total = float(products_N.sum())
        products_N *= score / total if total else 0.0
        shares, rest = passage_text.shares(products_N)
        return Explanation("dense", score, rank, shares, rest, caused, **stored)

    def _uncompressed_dense(self, text: str) -> float:
        """The score of a passage with the vector of its model."""
        model = self.searcher.model_of("dense")
        return float(model.embed_document(text, normalize=True, truncation="end") @ self.query.vector_E)


@dataclass(frozen=True, eq=False)
class _PassageText:
    """A passage, and the characters of its tokens: in it, and from the start of its context."""

    text: str
    start: int
    spans_N2: NDArray[np.int64]
    read_N2: NDArray[np.int64]
    context: tuple[Range, ...]

    def shares(self, values_N: NDArray[np.float64]) -> tuple[tuple[Share, ...], float]:
        """The value of each token as a share with its characters, and the sum of those without any.

        Those of the context are one share, the first.
        """
        shares, rest, before = list[Share](), 0.0, 0.0
        for value, (begin, end), read in zip(
            values_N.tolist(), self.spans_N2.tolist(), (self.read_N2[:, 0] >= 0).tolist(), strict=True
        ):
            if begin >= 0:
                shares.append(Share(self.text[begin:end], value, ((self.start + begin, self.start + end),)))
            elif read:
                before += value
            else:
                rest += value
        if self.context:
            shares.insert(0, Share("context", before, tuple((first, last) for first, last in self.context)))
        return tuple(shares), rest


def _total(shares: tuple[Share, ...]) -> float:
    return sum(share.share for share in shares)
