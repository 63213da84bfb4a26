"""Scores of token vectors by late interaction, in tiles.

A query's score is the sum over its tokens of the largest product with any token of the document (MaxSim,
Khattab & Zaharia 2020). Products are float32; each is computed in a tile and never all of them at once.

Axes: Q tokens of a query.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.tasks import multi_vectors
from unmask.tasks.multi_vectors import TokenVectors
from unmask.tasks.reader import Name, Reader, Ready
from unmask.text import Truncation

Vectors = TokenVectors | NDArray[np.float32]

TILE = 4096
"""Document tokens of one tile: 512 KB of products with a query of 32 tokens."""


class Matches(NamedTuple):
    """What each token of a query found in a document; the shares add up to the score."""

    shares_Q: NDArray[np.float32]
    """The largest product of each query token with a document token."""
    tokens_Q: NDArray[np.int64]
    """The document token of that product; the first of equals."""


def prepare(
    reader: Reader,
    query: str,
    documents: Sequence[str],
    *,
    truncation: Truncation = "error",
    document_name: Name | None = None,
) -> Ready[list[Matches]]:
    """What each vector of one query found in each document; their shares add up to the document's score.

    ``document_name`` is how error messages name the document at an index.

    Raises:
        InvalidRequest: the model does not give one vector per token.
        TextError: a text is blank or too long.
    """
    queries = multi_vectors.prepare(
        reader, [query], "query", truncation=truncation, name=lambda _: "the query"
    )
    texts = multi_vectors.prepare(
        reader,
        documents,
        truncation=truncation,
        name=document_name or (lambda index: f"document {index + 1}"),
    )

    def finish(vectors: Sequence[TokenVectors]) -> list[Matches]:
        return [matches(vectors[0], document) for document in vectors[1:]]

    return Ready(
        [*queries.encodings, *texts.encodings],
        texts.run,
        finish,
        texts.key,
        lambda index: texts.name(index - 1) if index else "the query",
        reads_last_states=False,
    )


def late_interaction(query: Vectors, document: Vectors, *, mean: bool = False) -> float:
    """The score of a document for a query.

    Args:
        query: token vectors of the query, (Q, E).
        document: token vectors of the document, (D, E).
        mean: divide by the number of the query's vectors, for models trained that way
            (`MultiVector.mean_score`).

    Raises:
        InvalidRequest: there is no vector, or widths differ.
    """
    shares_Q = matches(query, document).shares_Q
    return _score(shares_Q, mean=mean)


def matches(query: Vectors, document: Vectors) -> Matches:
    """The best token of a document for each token of a query; see `late_interaction`.

    Raises:
        InvalidRequest: there is no vector, or widths differ.
    """
    q_QE, d_DE = _checked(query, document)
    best_Q = np.full(len(q_QE), -np.inf, dtype=np.float32)
    token_Q = np.zeros(len(q_QE), dtype=np.int64)
    for start in range(0, len(d_DE), TILE):
        products_QC = q_QE @ d_DE[start : start + TILE].T
        first_Q = products_QC.argmax(axis=1)
        value_Q = products_QC[np.arange(len(q_QE)), first_Q]
        better_Q = value_Q > best_Q
        best_Q[better_Q], token_Q[better_Q] = value_Q[better_Q], first_Q[better_Q] + start
    return Matches(best_Q, token_Q)


def _score(shares_Q: NDArray[np.float32], *, mean: bool) -> float:
    total = float(shares_Q.astype(np.float64).sum())
    return float(np.float32(total / len(shares_Q) if mean else total))


def _checked(query: Vectors, document: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    arrays = []
    for name, value in (("query", query), ("document", document)):
        vectors = value.vectors_NE if isinstance(value, TokenVectors) else value
        if vectors.ndim != 2 or not len(vectors):
            raise InvalidRequest(
                f"the {name}'s vectors have shape {vectors.shape}; give at least one, (N, E)"
            )
        arrays.append(np.asarray(vectors, dtype=np.float32))
    q_QE, d_DE = arrays
    if q_QE.shape[1] != d_DE.shape[1]:
        raise InvalidRequest(
            f"the query's vectors have {q_QE.shape[1]} numbers and the document's {d_DE.shape[1]}; "
            "make both with one model"
        )
    return q_QE, d_DE
