"""Why two texts match: the cosine of their embeddings as a sum over tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.activation_cache import ActivationCache


@dataclass(frozen=True, eq=False)
class Matching:
    """The cosine of the mean-pooled embeddings of two texts, of N and M tokens."""

    cosine: float
    query_parts: NDArray[np.float64]
    """(N,): what each token of the first text adds to the cosine; the sum is the cosine."""
    passage_parts: NDArray[np.float64]
    """(M,): what each token of the second text adds to the cosine; the sum is the cosine."""


def matching(query: ActivationCache, passage: ActivationCache) -> Matching:
    """Decompose a cosine between two means of states exactly, in float64.

    An embedding is the mean of the final states of its tokens, so its cosine with another vector u is the sum
    of (x_n . u) / (N |mean| |u|). These are the numbers by which the Search view explains a dense score
    (`unmask.search`). The other text's embedding is held fixed: the numbers say what a token adds, not what
    would change without it.
    """
    x_ND, y_MD = (cache.final_ND.double().cpu().numpy() for cache in (query, passage))
    a_D, b_D = (_unit(states.mean(0)) for states in (x_ND, y_MD))
    return Matching(float(a_D @ b_D), _parts(x_ND, b_D), _parts(y_MD, a_D))


def _unit(x_D: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = x_D / max(float(np.linalg.norm(x_D)), 1e-300)
    return unit


def _parts(x_ND: NDArray[np.float64], toward_D: NDArray[np.float64]) -> NDArray[np.float64]:
    length = max(float(np.linalg.norm(x_ND.mean(0))), 1e-300)
    parts: NDArray[np.float64] = x_ND @ toward_D / (len(x_ND) * length)
    return parts
