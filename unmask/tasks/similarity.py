"""Similarity of embeddings, with the metrics of `sentence-transformers`.

Axes: A rows of the first; B rows of the second.
"""

from typing import Any, Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.errors import InvalidRequest, quoted

Metric = Literal["cosine", "dot", "euclidean", "manhattan"]
"""The two distances are negated, so that larger always means more similar."""

METRICS: tuple[Metric, ...] = get_args(Metric)


def similarity(a: Any, b: Any, metric: Metric = "cosine") -> NDArray[np.float32]:
    """The similarity of every row of ``a`` with every row of ``b``, (A, B).

    ``a`` and ``b`` are embeddings, (A, E) and (B, E); a single vector counts as one row. The cosine with a
    zero vector is 0.

    Raises:
        InvalidRequest: there is no such metric, or the widths of the arrays differ.
    """
    check_choice("metric", metric, METRICS)
    a_AE, b_BE = _rows("a", a), _rows("b", b)
    if a_AE.shape[1] != b_BE.shape[1]:
        raise InvalidRequest(
            f"a has vectors of {a_AE.shape[1]} numbers and b of {b_BE.shape[1]}; embed both with one model"
        )
    match metric:
        case "cosine":
            return _unit(a_AE) @ _unit(b_BE).T
        case "dot":
            return a_AE @ b_BE.T
        case "euclidean":
            order = 2
        case "manhattan":
            order = 1
        case _:
            assert_never(metric)
    distances_AB = np.empty((len(a_AE), len(b_BE)), dtype=np.float32)
    for row_B, one_E in zip(distances_AB, a_AE, strict=True):
        row_B[:] = np.linalg.norm(b_BE - one_E, ord=order, axis=1)
    return -distances_AB


def _rows(name: str, values: Any) -> NDArray[np.float32]:
    try:
        rows: NDArray[np.float32] | None = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError):
        rows = None
    if rows is None or rows.ndim not in (1, 2) or not np.isfinite(rows).all():
        raise InvalidRequest(
            f"{name} is {quoted(values)}; give texts, or embeddings of shape (texts, numbers)"
        )
    return np.atleast_2d(rows)


def _unit(rows_SE: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths_S1 = np.linalg.norm(rows_SE, axis=1, keepdims=True)
    return np.asarray(rows_SE / np.where(lengths_S1 > 0, lengths_S1, 1), dtype=np.float32)
