"""The cheapest way to pair rows with columns (the Hungarian method)."""

import numpy as np
from numpy.typing import NDArray

from unmask.errors import NonFiniteResult


def assign(cost_RC: NDArray[np.float64]) -> NDArray[np.int64]:
    """A column for every row of a matrix with R <= C, each column once, at the least total cost: (R,).

    Shortest augmenting paths with potentials (Kuhn 1955, in the form of Jonker & Volgenant 1987): R times at
    most R steps over C columns.

    Raises:
        NonFiniteResult: a cost is infinite or not a number.
    """
    rows, columns = cost_RC.shape
    assert rows <= columns
    if not np.isfinite(cost_RC).all():
        raise NonFiniteResult("a cost to pair by is not finite")
    row_of_C = np.full(columns + 1, -1)  # the last column is where each path begins
    of_row_R, of_column_C = np.zeros(rows), np.zeros(columns + 1)
    for row in range(rows):
        row_of_C[columns], at = row, columns
        least_C, before_C = np.full(columns, np.inf), np.full(columns, columns)
        visited_C = np.zeros(columns + 1, dtype=np.bool_)
        while row_of_C[at] >= 0:
            visited_C[at] = True
            here = row_of_C[at]
            open_C = ~visited_C[:columns]
            reduced_C = cost_RC[here] - of_row_R[here] - of_column_C[:columns]
            nearer_C = open_C & (reduced_C < least_C)
            least_C[nearer_C], before_C[nearer_C] = reduced_C[nearer_C], at
            found = int(np.where(open_C, least_C, np.inf).argmin())
            step = least_C[found]
            of_row_R[row_of_C[visited_C]] += step
            of_column_C[visited_C] -= step
            least_C[open_C] -= step
            at = found
        while at != columns:
            row_of_C[at] = row_of_C[before_C[at]]
            at = before_C[at]
    column_of_R = np.zeros(rows, dtype=np.int64)
    taken_C = np.flatnonzero(row_of_C[:columns] >= 0)
    column_of_R[row_of_C[taken_C]] = taken_C
    return column_of_R
