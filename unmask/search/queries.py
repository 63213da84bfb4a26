"""A query as each view reads it.

Axes: Q vectors of the query.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidText, quoted
from unmask.models.load import Model
from unmask.search.analysis import Analyzer
from unmask.search.options import View
from unmask.spec import MultiVector
from unmask.text import Truncation

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TokenQuery:
    """The vectors of a query's tokens, and how each is called in an explanation."""

    vectors_QE: Floats
    labels: tuple[str, ...]
    special: NDArray[np.bool_]
    """Which stand for no characters of the query."""


class Query:
    """One query. Each model reads it alone, so that its vector depends on no other query.

    Args:
        text: what is asked.
        model_of: loads the model of a view.
        analyzer: the terms of BM25.
        truncation: what a model does with a query that it cannot read whole, see `Model.tokenize`.

    Raises:
        TextError: the query is not text, or blank.
    """

    def __init__(
        self,
        text: str,
        model_of: Callable[[View], Model],
        analyzer: Analyzer,
        truncation: Truncation = "error",
    ) -> None:
        if not isinstance(text, str):
            raise InvalidText(f"the query is {quoted(text)}; give a string")
        if not text.strip():
            raise EmptyText("the query is blank; write what to search for")
        self.text = text
        self._model_of = model_of
        self._analyzer = analyzer
        self._truncation = truncation

    @cached_property
    def terms(self) -> list[str]:
        """The terms that BM25 looks for."""
        return self._analyzer.asked(self.text)

    @cached_property
    def vector_E(self) -> Floats:
        """The unit vector of the query, read after the checkpoint's prompt for queries."""
        return self._model_of("dense").embed_query(self.text, normalize=True, truncation=self._truncation)

    @cached_property
    def sparse(self) -> tuple[NDArray[np.int64], Floats]:
        """Ids of words and their weights."""
        (vector,) = self._model_of("sparse").sparse_vectors([self.text], "query", truncation=self._truncation)
        return vector.ids, vector.weights

    @cached_property
    def tokens(self) -> TokenQuery:
        """The vectors of the query's tokens."""
        model = self._model_of("multi_vector")
        (vectors,) = model.multi_vectors([self.text], "query", truncation=self._truncation)
        special = vectors.spans_N2[:, 0] < 0
        labels = [
            str(model.tokenizer.engine.id_to_token(int(id))) if lone else self.text[start:end]
            for id, lone, (start, end) in zip(vectors.ids_N, special, vectors.spans_N2.tolist(), strict=True)
        ]
        head = model.checkpoint.head
        # The mean over the query's vectors is the sum over vectors of that share of their length.
        shared = isinstance(head, MultiVector) and head.mean_score
        vectors_QE = vectors.vectors_NE / np.float32(len(vectors) if shared else 1)
        return TokenQuery(vectors_QE, tuple(labels), special)

    def word(self, id: int) -> str:
        """The spelling of a word of the sparse model's vocabulary."""
        return str(self._model_of("sparse").tokenizer.engine.id_to_token(id))
